"""Times at which a job is saved and its record is written: in a thread of its own, one at a time.

Leases are renewed meanwhile, however long a large model takes to write.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ...core.checkpoint.job_record import JobRecord
from ...core.errors import RopewalkError, StorageError, said_of
from ...core.process.events import event
from ...core.settings import Settings
from ...core.task import Phase, TaskId
from ...server.chief.servicer import LockedJob
from .checkpointer import Checkpointer

log = logging.getLogger(__name__)


_RECORD_S = 10.0  # a restart knows how far the job was within this


class JobSaver:
    """Saves a job's checkpoints, and the record that a restart reads.

    Args:
        locked_job: The job.
        checkpointer: Saves the job; None: no checkpoints, and no record.
        settings: Settings that say how often to save.
        add_to: Adds who leads what to a record.

    Attributes:
        failure: Why a checkpoint could not be saved; None: all could.
    """

    def __init__(
        self,
        locked_job: LockedJob,
        checkpointer: Checkpointer | None,
        settings: Settings,
        add_to: Callable[[JobRecord], JobRecord],
    ) -> None:
        self._locked_job = locked_job
        self._checkpointer = checkpointer
        self._settings = settings
        self._add_to = add_to
        self.failure: RopewalkError | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._under_way: Future[Any] | None = None
        self._has_periods = True
        self._saved_at = self._recorded_at = locked_job.clock.now()
        self._recorded_step = 0
        self._recorded_processes: dict[TaskId, int] = {}
        self._record_lock = threading.Lock()  # what was read later is written later

    @property
    def saved_step(self) -> int:
        """Global step of the last checkpoint; 0: there is none."""
        last = self._checkpointer.last if self._checkpointer is not None else None
        return last.global_step if last is not None else 0

    def has_changed(self, step: int, pushes: int) -> bool:
        """Return whether there is anything to save: what is assigned outside of steps counts,
        too.
        """
        saved_pushes = self._checkpointer.saved_pushes if self._checkpointer is not None else 0
        return step > self.saved_step or pushes > saved_pushes

    def _is_due(self, step: int, pushes: int, now: float) -> bool:
        settings = self._settings
        if self._checkpointer is None:
            return False
        by_steps = 0 < settings.save_every_steps <= step - self.saved_step
        by_time = 0 < settings.save_every_s <= now - self._saved_at
        return (by_steps or by_time) and self.has_changed(step, pushes)

    def begin_if_due(self) -> None:
        """Begin to save the job, or to write its record, if it is time and neither is under way."""
        with self._locked_job.open() as (job, now):
            step, pushes = job.members.global_step, job.members.pushes
            due = job.phase is Phase.RUNNING and self._is_due(step, pushes, now)
            record = step > self._recorded_step and now - self._recorded_at >= _RECORD_S
            if self._checkpointer is not None:  # else nothing is written down
                record |= job.members.processes != self._recorded_processes
        if not self._has_periods or not (self._under_way is None or self._under_way.done()):
            return
        if due:
            self._under_way = self._thread.submit(self._save, step, pushes, final=False)
        elif record:
            self._recorded_at, self._recorded_step = now, step
            self._under_way = self._thread.submit(self.record)

    def end_periods(self) -> None:
        """Let :meth:`begin_if_due` begin nothing any more: the last checkpoint follows."""
        self._has_periods = False

    def wait(self) -> None:
        """Wait for what is under way."""
        if self._under_way is not None:
            self._under_way.result()

    def save(self, step: int, pushes: int, *, final: bool = False) -> bool:
        """Save now, if the job has checkpoints.

        Args:
            step: About the global step that is saved.
            pushes: Pushes that the ps have counted.
            final: The job is complete.

        Returns:
            False: that failed, and :attr:`failure` says why.
        """
        if final:
            self.failure = None  # of an earlier save
        return self._thread.submit(self._save, step, pushes, final=final).result()

    def _save(self, step: int, pushes: int, *, final: bool) -> bool:
        if self._checkpointer is None:
            return True
        changed = pushes > self._checkpointer.saved_pushes
        saves, began = self._locked_job.saves, self._locked_job.clock.now()
        saves.under_way = True
        try:
            path = self._checkpointer.save(step, final=final, changed=changed)
        except Exception as error:  # no caller sees what the saving thread raises
            known = error if isinstance(error, RopewalkError) else None
            why = said_of(error)
            log.error(
                "could not save a checkpoint of step %d: %s",
                step,
                why,
                exc_info=known is None,
                extra=event("checkpoint.failed", step=step, error=why),
            )
            self.failure = self.failure or known or RopewalkError(why)
            saves.has_failed(why)
            return False
        finally:
            saves.under_way = False
            self._saved_at = self._locked_job.clock.now()
        saved = self._checkpointer.last
        if path and saved is not None:
            saves.done(time.time(), self._saved_at - began)
            self._locked_job.last_checkpoint = path
            with self._locked_job.open() as (job, _):
                job.saved_step = saved.global_step
            took = event("checkpoint.saved", path=path, step=saved.global_step, final=final)
            log.info("saved %s%s", path, " (final)" if final else "", extra=took)
        return True

    def record(self) -> None:
        """Write the record that a restart reads; a failure is logged."""
        try:
            self.write_record()
        except StorageError as error:
            log.warning("%s", error)
        except Exception as error:  # a client of an object store raises its own
            log.exception("what a restart has to know is not written: %s", said_of(error))

    def write_record(self) -> None:
        """Write the record that a restart reads. From any thread.

        Raises:
            StorageError: The model directory cannot be written.
        """
        if self._checkpointer is None:
            return
        with self._record_lock:
            with self._locked_job.open() as (job, _):
                record = JobRecord(
                    job=job.name or "",
                    phase=job.phase,
                    last_generation=job.last_generation,
                    global_step=job.members.global_step,
                    processes={task.index: each for task, each in job.members.processes.items()},
                )
                self._recorded_processes = job.members.processes
            self._checkpointer.record(self._add_to(record))

    def close(self) -> None:
        """Begin nothing more; what is under way goes on."""
        self._thread.shutdown(wait=False, cancel_futures=True)
