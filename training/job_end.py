"""Whether a final checkpoint is the end of the job that an evaluator follows.

A job writes a final checkpoint and ends. A job that is started again in the same model directory
goes on from there, and its evaluator may look before its chief has begun: then the final checkpoint
is an earlier run's. The record in the model directory tells one from the other where it can: by the
job's id, if the evaluator was told its own, and by what has changed since the evaluator began.
"""

import time

from ..core.checkpoint import list_checkpoints
from ..core.checkpoint.job_record import JobRecord, read_job_record
from ..core.checkpoint.storage import open_model_dir
from ..core.errors import PeerLostError
from ..core.process.waiting import WaitLog
from ..core.settings import Settings


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
