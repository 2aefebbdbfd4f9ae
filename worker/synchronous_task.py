"""A synchronous worker: a task of a cluster without parameter servers.

The strategy connects to the other workers itself: each worker accepts the ring connection of the
one before it, and notices at its next collective call if a worker has ended. Beside the ring the
job has what every job has: the chief, or worker 0 in its place, keeps the membership at its one
port, so that the status shows every worker's steps and metrics, and the job ends in order.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..client.chief.calls import ChiefClient
from ..client.chief.membership import Membership
from ..cluster.principal import principal_of_task
from ..cluster.resolved import ResolvedTask
from ..collectives.group import close_rings, leave_rings
from ..collectives.peers import hold_server, release_server
from ..core.errors import WindlassError
from ..core.exit_codes import ExitCode
from ..core.settings import Settings
from ..core.states import Outcome, Phase
from ..core.task import new_job_id
from ..core.waiting import WaitLog
from ..distribute.runtime import ClusterRuntime
from .program import Ending
from .status import write_last_status

if TYPE_CHECKING:
    from .chief_loop import ChiefLoop

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
        self._membership: Membership | None = None
        self.runtime = ClusterRuntime(task, settings, check=self.check)
        # Called when the program must end without waiting for its next collective call.
        self.on_interrupt: Callable[[WindlassError], None] = lambda error: log.error("%s", error)

    def start(self) -> ClusterRuntime:
        """Join the job; the strategy waits for the other workers.

        Raises:
            AddressInUseError: This worker's port is taken.
            JoinTimeoutError: The chief did not answer.
            OtherJobError: Another process is at work as this task.
        """
        task, settings = self.task, self._settings
        if not task.chief_address:  # a dynamic cluster that lists only this worker
            return self.runtime
        chief_loop = None
        if task.is_chief:
            from ..server.chief.servicer import SERVICE, new_chief
            from .chief_loop import ChiefLoop

            expected = [(other, task.address_of(other)) for other in task.spec.tasks()]
            job_id = settings.job_id or new_job_id()
            locked_job, calls = new_chief(task.task, expected, settings, job_id)
            hold_server(task.task, task.address, settings, {SERVICE: calls})
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
        who = self._membership.join(still_wanted=self.check)
        if task.is_chief:
            chief_loop = ChiefLoop(locked_job, who, task.address, [], None, settings)
            chief_loop.start()
            self._chief_loop = chief_loop
        return self.runtime

    def check(self) -> None:
        """Raise if the program should end.

        Called before each collective call and during its waits.
        """
        if self._pending is not None:
            raise self._pending

    def ask_to_end(self, error: WindlassError) -> None:
        """Have the program end at its next collective call; on the chief, the whole job."""
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
        if ending.outcome is not Outcome.DONE:
            leave_rings(ending.message)
        close_rings()  # a worker that still makes a call learns that this one makes none
        membership = self._membership
        if membership is None or membership.who.generation == 0:
            return ending.code
        membership.finish(ending.outcome, ending.message)
        if self._chief_loop is not None:
            phase = self._chief_loop.end(
                global_step=self.runtime.progress.steps,
                on_wait=lambda names: log.info("done; waiting for %s", names),
            )
            if self._settings.model_dir and self._chief is not None:
                write_last_status(self._settings.model_dir, self._chief)
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

    def close(self) -> None:
        """Leave the job. The strategy closes its ring when the process ends."""
        if self._membership is not None:
            self._membership.close()
        if self._chief_loop is not None:
            self._chief_loop.close()
        if self._chief is not None:
            self._chief.close()
        if self._held:
            self._held = False
            release_server(self.task.address)
