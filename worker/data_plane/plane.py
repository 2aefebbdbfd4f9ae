"""The data plane of a task: what all kinds have in common, and the one that carries nothing."""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from ...client.chief.calls import ChiefClient
from ...client.ps.parameter_session import ParameterSession
from ...cluster.resolvers.resolved import ResolvedTask
from ...core.errors import RopewalkError
from ...core.settings import Settings
from ...core.task import Incarnation, Outcome
from ...distribute.job_snapshots import JobSnapshots
from ...telemetry.catalogue import Sample
from ..process.probes import Probes
from ..process.program import Ending, ending_of

if TYPE_CHECKING:
    from ...server.chief.servicer import LockedJob

log = logging.getLogger(__name__)


class DataPlane:
    """Carries the values of variables between the tasks of a job. This one carries none.

    Args:
        task: Task of this process, and its cluster.
        settings: The task's settings.

    Attributes:
        in_sync: Workers make every step together, wait for each other, and end after the same step.
        alone: Whether this process is the whole cluster.
        session: Connection to the parameter servers; None: there are none, or it is not open yet.
        snapshots: Hands the variables of a synchronous strategy to the job; None: servers have all.
    """

    in_sync = False
    alone = False
    session: ParameterSession | None = None
    snapshots: JobSnapshots | None = None

    def __init__(self, task: ResolvedTask, settings: Settings) -> None:
        self._task = task
        self._settings = settings
        self._probes = Probes(task, settings)

    def serve_chief(self) -> "tuple[LockedJob, str]":
        """Serve the job that this task leads; the job, and the address where it is served.

        Raises:
            AddressInUseError: The port is taken.
        """
        raise NotImplementedError

    def listen(self, check: Callable[[], None]) -> str:  # noqa: ARG002 - nothing is waited for
        """Listen, in a task that another one leads; the chief's address, empty if in no job.

        Args:
            check: Called during waits; raises to give up.

        Raises:
            AddressInUseError: The port is taken.
            JoinTimeoutError: The chief's address is not known in time.
        """
        self._probes.start()
        return self._task.chief_address

    def connect(self, who: Incarnation, chief: ChiefClient, check: Callable[[], None]) -> None:
        """Connect to the peers as ``who``, once the task has joined its job; see :meth:`listen`."""

    def abort(self, error: RopewalkError) -> None:
        """Let the calls under way fail with ``error``. Thread-safe."""

    def drain(self) -> None:
        """Answer health probes that the task is about to end."""
        self._probes.drain()

    def finish(self, ending: Ending) -> Ending:
        """Send and save what is left after the program; the ending, with a failure to do that."""
        if self.snapshots is None:
            return ending
        take = partial(self.snapshots.end, together=ending.outcome is Outcome.DONE)
        return attempted(ending, "the last checkpoint cannot be made", take)

    def samples(self) -> Iterator[Sample]:
        """Yield samples of what this process serves, for Prometheus."""
        return iter(())

    def close(self) -> None:
        """Close every connection. Idempotent."""
        if self.snapshots is not None:
            self.snapshots.give_last(None)  # no thread waits for one any more
        self._probes.stop()


def attempted(ending: Ending, failure: str, do: Callable[[], object]) -> Ending:
    """Do what is left after a program; a failure is logged, and is the ending of a good program."""
    try:
        do()
    except RopewalkError as error:
        log.error("%s: %s", failure, error)
        return ending_of(error) if ending.outcome is Outcome.DONE else ending
    return ending
