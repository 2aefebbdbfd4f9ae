"""The data plane of a job without parameter servers: a ring of synchronous workers.

The strategy connects to the other workers itself: each worker accepts the ring connection of the
one before it, and notices at its next collective call if a worker has ended. Beside the ring the
job has what every job has: the chief, or worker 0 in its place, keeps the membership at its one
port, so that the status shows every worker's steps and metrics, and the job ends in order; and it
saves checkpoints of its own program's variables, which are equal on all workers.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...cluster.resolvers.resolved import ResolvedTask
from ...core.settings import Settings
from ...core.task import Outcome
from ...distribute.job_snapshots import JobSnapshots
from ...worker.data_plane.plane import DataPlane
from ...worker.process.program import Ending
from .group import close_rings, leave_rings
from .server import hold_server, release_server

if TYPE_CHECKING:
    from ...server.chief.servicer import LockedJob


class RingPlane(DataPlane):
    """A worker's part in a ring."""

    in_sync = True

    def __init__(self, task: ResolvedTask, settings: Settings) -> None:
        super().__init__(task, settings)
        self._is_held = False
        self.snapshots = JobSnapshots(settings.drain_grace_s)

    def serve_chief(self) -> "tuple[LockedJob, str]":
        """Serve the control plane at the worker's port; see :class:`DataPlane`."""
        from ...server.chief.parts import SERVICE
        from ...server.chief.servicer import new_chief

        task = self._task
        locked_job, calls = new_chief(task.task, task.addresses(), self._settings, job_id=None)
        self._hold({SERVICE: calls})
        return locked_job, task.address

    def listen(self, check: Callable[[], None]) -> str:  # noqa: ARG002 - nothing is waited for
        """Listen for the worker before; not where a dynamic cluster lists only this one."""
        if self._task.chief_address:
            self._hold()
        return self._task.chief_address

    def _hold(self, more: Any = None) -> None:
        hold_server(self._task.task, self._task.address, self._settings, more)
        self._is_held = True

    def finish(self, ending: Ending) -> Ending:
        """Take the last snapshot while the ring is there, and leave it.

        A worker that makes more steps than this one is noticed here; a failure is reported to the
        other workers.
        """
        ending = super().finish(ending)
        if ending.outcome is not Outcome.DONE:
            leave_rings(ending.message)
        close_rings()  # a worker that still makes a call learns that this one makes none
        return ending

    def close(self) -> None:
        """Leave the port. The strategy closes its ring when the process ends."""
        super().close()
        if self._is_held:
            self._is_held = False
            release_server(self._task.address)
