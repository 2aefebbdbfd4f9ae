"""The chief's server: serves the control plane at the chief's address."""

from collections.abc import Iterable, Iterator

from ...core.clock import Clock
from ...core.settings import Settings
from ...core.task import TaskId
from ...net.auth.guard import Guard
from ...net.host import HostedServer, TaskHost
from ...telemetry.catalogue import Sample
from .parts import SERVICE
from .servicer import new_chief

_THREADS = 16  # calls are short: heartbeats of hundreds of workers fit


class ChiefServer(HostedServer):
    """The control plane of one job.

    Args:
        task: The chief.
        expected: Tasks of the spec and their addresses.
        settings: Lease and bind rule.
        clock: Clock, replaced in tests.
        job_id: Id of the job; None: it is set later, and no task can register before.
    """

    def __init__(
        self,
        task: TaskId,
        expected: Iterable[tuple[TaskId, str]],
        settings: Settings,
        clock: Clock | None = None,
        job_id: str | None = "",
    ) -> None:
        self.locked_job, methods = new_chief(task, expected, settings, job_id, clock)
        self._host = TaskHost(
            task,
            # If shares move, each task has a call open that waits until another ps leads one.
            threads=_THREADS + (settings.max_sessions if settings.shares_move else 0),
            settings=settings,
            calls={SERVICE: methods},
            guard=Guard(task, settings, job=self._job_id),
        )

    def _job_id(self) -> str:
        with self.locked_job.open() as (job, _):
            return job.name or ""

    def samples(self) -> Iterator[Sample]:
        """Yield the callers, for Prometheus."""
        return self._host.samples()

    def stop(self, grace_s: float = 0.5) -> None:
        """Stop serving."""
        self._host.drain()
        self._host.stop(grace_s)
