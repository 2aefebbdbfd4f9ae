"""The chief's server: serves the control plane at the chief's address."""

from collections.abc import Iterable

import grpc

from ...core.clock import Clock, SystemClock
from ...core.settings import Settings
from ...core.task import TaskId
from ...net.host import TaskHost
from ...proto.v1 import chief_pb2_grpc
from .servicer import ChiefServicer, LockedJob, new_job

_THREADS = 16  # calls are short: heartbeats of hundreds of workers fit


class ChiefServer:
    """The control plane of one job.

    Args:
        task: The chief.
        expected: Tasks of the spec and their addresses.
        settings: Lease and bind rule.
        clock: For tests.
        job_id: Of the job; None: it is set later, and nobody can register before.
    """

    def __init__(
        self,
        task: TaskId,
        expected: Iterable[tuple[TaskId, str]],
        settings: Settings,
        clock: Clock | None = None,
        job_id: str | None = "",
    ) -> None:
        clock = clock or SystemClock()
        job = new_job(task, expected, settings, clock, job_id)
        self.locked_job = LockedJob(job, clock)
        servicer = ChiefServicer(self.locked_job, settings)

        def add(server: grpc.Server) -> None:
            chief_pb2_grpc.add_ChiefServicer_to_server(servicer, server)

        self._host = TaskHost(
            task,
            threads=_THREADS,
            settings=settings,
            add=add,
            services=["windlass.proto.v1.Chief"],
        )

    def start(self, address: str) -> None:
        """Listen.

        Raises:
            AddressInUseError: The port is taken.
            ConfigurationError: The address is not loopback and ``insecure`` was not said.
        """
        self._host.start(address)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._host.port

    def stop(self, grace_s: float = 0.5) -> None:
        """Stop serving."""
        self._host.drain()
        self._host.stop(grace_s)
