"""A synchronous worker: a task of a cluster without parameter servers.

Such a job has no chief. The worker's strategy connects to the other workers itself: each worker
accepts the ring connection of the one before it, and notices at its next collective call if a
worker has ended.
"""

from ..cluster.resolved import ResolvedTask
from ..collectives.group import leave_rings
from ..core.errors import WindlassError
from ..core.settings import Settings
from ..core.states import Outcome
from ..distribute.runtime import ClusterRuntime
from .program import Ending


class SynchronousTask:
    """A worker that trains synchronously with the others. The daemon drives one per process.

    Args:
        task: Who this is, in which cluster.
        settings: Of this task.
    """

    def __init__(self, task: ResolvedTask, settings: Settings) -> None:
        self.task = task
        self._pending: WindlassError | None = None
        self.runtime = ClusterRuntime(task, settings, check=self.check)

    def start(self) -> ClusterRuntime:
        """Return the runtime; the strategy waits for the other workers."""
        return self.runtime

    def check(self) -> None:
        """Raise if the program should end.

        Called before each collective call and during its waits.
        """
        if self._pending is not None:
            raise self._pending

    def ask_to_end(self, error: WindlassError) -> None:
        """Have the program end at its next collective call."""
        self._pending = self._pending or error

    def finish(self, ending: Ending) -> int:
        """What the process should exit with. A failure is told to the other workers."""
        if ending.outcome is not Outcome.DONE:
            leave_rings(ending.message)
        return ending.code

    def close(self) -> None:
        """Nothing to do: the strategy closes its ring when the process ends."""
