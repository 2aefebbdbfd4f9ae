"""SidecarEvaluator: evaluate each new checkpoint of a job, beside it.

A job writes a final checkpoint and ends. A job that is started again in the same model directory
goes on from there, and its evaluator may look before its chief has begun: then the final checkpoint
is an earlier run's. The record in the model directory tells one from the other where it can: by the
job's id, if the evaluator was told its own, and by what has changed since the evaluator began.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..core.arrays.dtypes import Array
from ..core.checkpoint import CheckpointReader, latest_checkpoint, list_checkpoints
from ..core.checkpoint.job_record import JobRecord, read_job_record
from ..core.checkpoint.storage import open_model_dir, storage_error
from ..core.errors import CheckpointError, ConfigurationError, PeerLostError
from ..core.process.waiting import WaitLog
from ..core.settings import Settings, load_settings
from ..distribute.program_cluster import join_cluster, program_cluster
from .evaluations import Evaluation, evaluation_records, write_evaluation
from .progress import is_evaluator

log = logging.getLogger(__name__)


def goes_on(
    before: JobRecord, record: JobRecord, *, job_id: str, old: bool, waits_s: float
) -> str | None:
    """Say why a job may still go on from a final checkpoint; None: that is the end.

    Args:
        before: The record when the evaluator began; an empty one if there was none.
        record: The record as it is now.
        job_id: Identifier of the evaluator's job; empty: it is not known.
        old: Whether the checkpoint was there before the evaluator began.
        waits_s: Time to wait still for a job that has not begun yet. Unit: seconds.
    """
    if not old:
        return None
    if record.job and not record.phase.is_over:
        return f"job {record.job!r}, which has begun, to go on from it"
    if record.job and (record.job == job_id if job_id else record != before):
        return None  # its own job is over; or some job has ended since it began
    if waits_s <= 0:
        return None
    return f"a job that goes on from it, {waits_s:.0f} s more (join_timeout_s)"


class JobEnd:
    """Looks into a model directory, from the evaluator's beginning on.

    Args:
        model_dir: Path or fsspec URL.
        settings: Settings of the evaluator.
        in_cluster: Whether it is a task of a cluster; if not, no job is about to start.
    """

    def __init__(self, model_dir: str, settings: Settings, *, in_cluster: bool) -> None:
        self._folder = open_model_dir(model_dir)
        self._job_id = settings.job_id
        self._old = {info.path for info in list_checkpoints(model_dir)}
        self._before = read_job_record(self._folder)
        self._until = time.monotonic() + (settings.join_timeout_s if in_cluster else 0)

    def goes_on_from(self, path: str) -> str | None:
        """Say why a job may still go on from a final checkpoint; None: that is the end.

        Args:
            path: Path of the checkpoint.
        """
        if path not in self._old:
            return None
        return goes_on(
            self._before,
            read_job_record(self._folder),
            job_id=self._job_id,
            old=True,
            waits_s=self._until - time.monotonic(),
        )


class CheckpointWait(WaitLog):
    """The wait of an evaluator for the next checkpoint of its job, and its log.

    Args:
        model_dir: Directory of the checkpoints.
        settings: Settings of the evaluator.
        limit: Name of the limit, for messages.
        limit_s: Longest wait; None: as long as a job takes that is not gone, which may save rarely.
            Unit: seconds.
    """

    def __init__(
        self, model_dir: str, settings: Settings, limit: str, limit_s: float | None = None
    ) -> None:
        if limit_s is None:
            limit_s = max(settings.orphan_timeout_s, 2 * settings.save_every_s)
        super().__init__("the evaluator", limit_s=limit_s, limit=limit)
        self._too_long = (
            f"no new checkpoint in {model_dir} for {limit_s:g} s ({limit}); is the job still "
            "running, with the same model_dir?"
        )
        self._model_dir = model_dir

    def check(self) -> None:
        """Check that the job is not gone.

        Raises:
            PeerLostError: No checkpoint came for too long.
        """
        if self.is_over:
            raise PeerLostError(self._too_long, model_dir=self._model_dir)


class SidecarEvaluator:
    """Follows the checkpoints of a job. As ``tf.keras.utils.SidecarEvaluator``, for a plain
    function.

    ::

        if rw.training.is_evaluator():
            rw.training.SidecarEvaluator(evaluate).start()

    Args:
        evaluate: Given all variables by name, returns metrics by name.
        checkpoint_dir: Folder into which the job writes; None: ``model_dir`` of the settings.
        poll_s: Time between looks for a new checkpoint. Unit: seconds.
        max_evaluations: End after so many; None: with the job's final checkpoint. One that was
            there before is none if a job goes on from it, which is waited for as long as tasks
            wait for each other (``join_timeout_s``), in a cluster.
        idle_timeout_s: End if no checkpoint comes for this long; None: ``orphan_timeout_s``, or
            twice ``save_every_s`` if that is longer.
    """

    def __init__(
        self,
        evaluate: Callable[[Mapping[str, Array]], Mapping[str, Any]],
        checkpoint_dir: str | None = None,
        *,
        poll_s: float = 0.25,
        max_evaluations: int | None = None,
        idle_timeout_s: float | None = None,
    ) -> None:
        runtime = program_cluster()
        if runtime is None and is_evaluator():
            runtime = join_cluster()
        settings = runtime.settings if runtime is not None else load_settings()
        self._evaluate = evaluate
        self._model_dir = checkpoint_dir or settings.model_dir
        if not self._model_dir:
            raise ConfigurationError(
                "SidecarEvaluator needs checkpoint_dir, or model_dir as the other tasks have it "
                "(--model-dir, or the variable ROPEWALK_MODEL_DIR)"
            )
        in_cluster = runtime is not None and not runtime.alone
        self._end = JobEnd(self._model_dir, settings, in_cluster=in_cluster)
        self._check = runtime.job.check if runtime is not None else lambda: None
        self._progress = runtime.progress if runtime is not None else None
        self._poll_s = poll_s
        self._max_evaluations = max_evaluations
        self._waits = CheckpointWait(
            self._model_dir, settings, "idle_timeout_s", limit_s=idle_timeout_s
        )
        self._settings = settings
        self._records = evaluation_records(settings, self._model_dir)

    def start(self) -> list[Evaluation]:
        """Evaluate until the final checkpoint was; returns all results.

        Raises:
            CheckpointError: A checkpoint is damaged.
            PeerLostError: No checkpoint came for ``idle_timeout_s``; the job is gone.
            JobStoppedError: The job was stopped.
            StorageError: The model directory cannot be written.
        """
        try:
            return self._evaluate_all()
        finally:
            records, self._records = (
                self._records,
                evaluation_records(self._settings, self._model_dir),
            )
            for record in records:
                record.close()

    def _evaluate_all(self) -> list[Evaluation]:
        results: list[Evaluation] = []
        done, final = "", False
        pause, waits = threading.Event(), self._waits
        waits.restart()
        while self._max_evaluations is None or len(results) < self._max_evaluations:
            self._check()
            newest = latest_checkpoint(self._model_dir)
            if newest is not None and newest.path != done:
                waits.done()
                result = self._evaluate_one(newest.path)
                waits.restart()
                done = newest.path
                if result is None:
                    continue
                results.append(result)
                final = result.final
                continue
            waits_for = self._end.goes_on_from(done) if final else "a new checkpoint"
            if waits_for is None:
                return results
            waits.check()
            waits.tick(f"{waits_for} in {self._model_dir}")
            pause.wait(self._poll_s)
        return results

    def _evaluate_one(self, path: str) -> Evaluation | None:
        began = time.monotonic()
        try:
            reader = CheckpointReader(path)
            values = reader.read_all()
        except (CheckpointError, FileNotFoundError):
            newest = latest_checkpoint(self._model_dir)
            if newest is not None and newest.path != path:
                return None  # pruned while we read it; a newer one is there
            raise
        metrics = {name: float(np.asarray(value)) for name, value in self._evaluate(values).items()}
        step = reader.manifest.global_step
        result = Evaluation(
            global_step=step,
            checkpoint=path,
            final=reader.manifest.final,
            metrics=metrics,
            seconds=time.monotonic() - began,
        )
        try:
            write_evaluation(self._model_dir, result)
        except OSError as error:
            raise storage_error(error, self._model_dir, "the evaluator") from error
        for record in self._records:
            record.add(result)
        if self._progress is not None:
            self._progress.steps = self._progress.global_step = step
            self._progress.metrics |= metrics
        shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        log.info("step %d: %s%s", step, shown, " (final)" if result.final else "")
        return result
