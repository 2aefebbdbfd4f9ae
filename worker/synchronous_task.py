"""A synchronous worker: a task of a cluster without parameter servers.

The strategy connects to the other workers itself: each worker accepts the ring connection of the
one before it, and notices at its next collective call if a worker has ended. Beside the ring the
job has what every job has: the chief, or worker 0 in its place, keeps the membership at its one
port, so that the status shows every worker's steps and metrics, and the job ends in order; and it
saves checkpoints of its own program's variables, which are equal on all workers.
"""

import logging
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..client.chief.calls import ChiefClient
from ..client.chief.membership import Membership
from ..cluster.access.principal import principal_of_task
from ..cluster.resolvers.resolved import ResolvedTask
from ..collectives.group import close_rings, leave_rings
from ..collectives.peers import hold_server, release_server
from ..core.errors import WindlassError
from ..core.exit_codes import ExitCode
from ..core.process.waiting import WaitLog
from ..core.settings import Settings
from ..core.states import Outcome, Phase
from ..core.task import new_job_id
from ..distribute.job_snapshots import JobSnapshots
from ..distribute.runtime import ClusterRuntime
from ..net.announcement import ChiefAnnouncement
from ..telemetry.catalogue import Sample
from .lead.status import write_last_status
from .membership import join_unless_done
from .process.metrics import chief_samples, metrics_port, program_samples
from .process.program import Ending, ending_of

if TYPE_CHECKING:
    from ..core.checkpoint.job_record import JobRecord
    from ..core.task import Incarnation
    from ..server.chief.servicer import LockedJob
    from .lead.checkpointer import Checkpointer
    from .lead.chief_loop import ChiefLoop

log = logging.getLogger(__name__)


class SynchronousTask:
    """A worker that trains synchronously with the others. The daemon drives one per process.

    Args:
        task: Who this is, in which cluster.
        settings: Of this task.
    """

    def __init__(self, task: ResolvedTask, settings: Settings) -> None:
        self.task = task
        self._settings = settings
        self._pending: WindlassError | None = None
        self._held = False
        self._chief: ChiefClient | None = None
        self._chief_loop: ChiefLoop | None = None
        self._checkpointer: Checkpointer | None = None
        self._record: JobRecord | None = None
        self._membership: Membership | None = None
        self._announcement: ChiefAnnouncement | None = None
        self._snapshots = JobSnapshots(settings.drain_grace_s)
        self.runtime = ClusterRuntime(task, settings, check=self.check, snapshots=self._snapshots)
        self._locked_job: LockedJob | None = None
        self._metrics = metrics_port(task, settings, self._samples)
        # Called when the program must end without waiting for its next collective call.
        self.on_interrupt: Callable[[WindlassError], None] = lambda error: log.error("%s", error)

    def start(self) -> ClusterRuntime:
        """Join the job; the strategy waits for the other workers.

        Raises:
            AddressInUseError: This worker's port is taken.
            JoinTimeoutError: The chief did not answer.
            JobDoneError: The job is over; there is nothing to do.
            OtherJobError: Another process is at work as this task.
            CheckpointError: The checkpoint to resume from cannot be used.
            StorageError: The model directory cannot be written.
        """
        task, settings = self.task, self._settings
        self._metrics.start()
        if not task.chief_address:  # a dynamic cluster that lists only this worker
            return self.runtime
        locked_job: LockedJob | None = None
        if task.is_chief:
            from ..server.chief.servicer import SERVICE, new_chief

            expected = [(other, task.address_of(other)) for other in task.spec.tasks()]
            locked_job, calls = new_chief(task.task, expected, settings, job_id=None)
            hold_server(task.task, task.address, settings, {SERVICE: calls})
            recorded = self._read_record()
            with locked_job.open() as (job, _):
                job.identify(settings.job_id or new_job_id(), after=recorded)
        else:
            hold_server(task.task, task.address, settings)
        self._held = True
        self._chief = ChiefClient(
            task.chief_address, settings, principal_of_task(task.task, settings.job_id)
        )
        self._membership = Membership(
            task.task, task.address, self._chief, settings, report=self.runtime.report
        )
        self._membership.on_lost = self._interrupt
        who = join_unless_done(self._membership, task, settings, self.check)
        if locked_job is not None:
            self._lead(locked_job, who)
        return self.runtime

    def _samples(self) -> Iterator[Sample]:
        draining = self._pending is not None or self._snapshots.stop is not None
        yield from program_samples(self.runtime, self._membership, draining=draining)
        if self._locked_job is not None:
            yield from chief_samples(self._locked_job)

    def _read_record(self) -> int:
        """Read what the job before wrote down; the highest generation that counts as given out."""
        from .lead.checkpoint_sources import ProgramVariables
        from .lead.checkpointer import Checkpointer

        settings = self._settings
        if not settings.model_dir:
            return secrets.randbits(40)  # nobody knows: most likely none of the job before
        source = ProgramVariables(self._snapshots)
        self._checkpointer = Checkpointer(
            settings.model_dir, source, settings.keep_checkpoints, str(self.task.task)
        )
        self._record = self._checkpointer.read_record()
        return self._record.last_generation

    def _lead(self, locked_job: "LockedJob", who: "Incarnation") -> None:
        from .lead.chief_loop import ChiefLoop

        settings, task, checkpointer = self._settings, self.task, self._checkpointer
        self._locked_job = locked_job
        if checkpointer is not None:
            checkpointer.prepare()
        self._chief_loop = ChiefLoop(locked_job, who, task.address, [], checkpointer, settings)
        self._chief_loop.start()
        self._announcement = ChiefAnnouncement(task.address)
        if settings.model_dir and self._chief is not None:
            # With the addresses: `windlass status` looks there.
            write_last_status(settings.model_dir, self._chief)
        if checkpointer is not None and self._record is not None:
            chosen = checkpointer.choose()
            checkpointer.tell_resumed(self._record)
            self._snapshots.restore_from = chosen.path if chosen is not None else ""
            self._snapshots.saves = True
            self._chief_loop.record()

    def check(self) -> None:
        """Raise if the program should end.

        Called before each collective call and during its waits.
        """
        if self._pending is not None:
            raise self._pending
        self._snapshots.check()

    def ask_to_end(self, error: WindlassError) -> None:
        """Have the program end after its step, so that it can be saved, or at its next collective
        call; on the chief, the whole job.
        """
        if not self._snapshots.ask_to_stop(error):
            self._pending = self._pending or error
        if self._chief_loop is not None:
            self._chief_loop.stop_job(error.message)

    def _interrupt(self, error: WindlassError) -> None:
        self._pending = self._pending or error
        self.on_interrupt(error)

    def finish(self, ending: Ending) -> int:
        """Report how the program ended and wait for the end of the job; returns the exit code.

        A failure is told to the other workers.
        """
        ending = self._with_last_snapshot(ending)
        if ending.outcome is not Outcome.DONE:
            leave_rings(ending.message)
        close_rings()  # a worker that still makes a call learns that this one makes none
        membership = self._membership
        if membership is None or membership.who.generation == 0:
            return ending.code
        membership.finish(ending.outcome, ending.message)
        if self._chief_loop is not None:
            phase = self._chief_loop.end(
                global_step=self.runtime.progress.global_step,
                on_wait=lambda names: log.info("done; waiting for %s", names),
                save_first=ending.outcome is not Outcome.DONE,
            )
            if self._settings.model_dir and self._chief is not None:
                write_last_status(self._settings.model_dir, self._chief)
            failure = self._chief_loop.failure
            if phase is Phase.FAILED and failure is not None:
                return failure.exit_code
        elif ending.outcome is Outcome.DONE:
            waits = WaitLog(self.task.task, limit="it ends with the job, or if the chief is lost")
            while not membership.wait_over(0.1):
                waits.tick("the chief to end the job: the program here is done")
                if self._pending is not None:
                    return self._pending.exit_code
            phase = membership.phase
        if ending.outcome is not Outcome.DONE:
            return ending.code
        ends = {Phase.DONE: ExitCode.DONE, Phase.STOPPED: ExitCode.DRAINED}
        return ends.get(phase, ExitCode.PEER_LOST)

    def _with_last_snapshot(self, ending: Ending) -> Ending:
        """Take what the job saves last, while the ring is there; with all workers if all is well.

        A worker that makes more steps than this one is noticed here.
        """
        try:
            self._snapshots.end(together=ending.outcome is Outcome.DONE)
        except WindlassError as error:
            log.error("the last checkpoint cannot be made: %s", error)
            return ending_of(error) if ending.outcome is Outcome.DONE else ending
        return ending

    def close(self) -> None:
        """Leave the job. The strategy closes its ring when the process ends."""
        self._snapshots.give_last(None)  # nobody waits for one any more
        if self._announcement is not None:
            self._announcement.close()
        if self._membership is not None:
            self._membership.close()
        if self._chief_loop is not None:
            self._chief_loop.close()
        if self._chief is not None:
            self._chief.close()
        if self._held:
            self._held = False
            release_server(self.task.address)
        self._metrics.stop()
