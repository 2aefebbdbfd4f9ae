"""A ps process's server: starts, serves until the job is over, leaves in order."""

import logging
import time

import grpc

from ...core.clock import Clock, SystemClock
from ...core.errors import WindlassError
from ...core.exit_codes import ExitCode
from ...core.settings import Settings
from ...core.states import Phase
from ...core.task import TaskId
from ...net.hosting import GrpcHost, bind_address
from .doors import Doors
from .lease import ChiefLease
from .servicer import SERVICE, STREAMS_PER_SEAT, ParameterServerServicer, add_to_server
from .store import Store

log = logging.getLogger(__name__)

_EXITS = {
    Phase.DONE: ExitCode.DONE,
    Phase.STOPPED: ExitCode.DRAINED,
    Phase.FAILED: ExitCode.PEER_LOST,
}


class PsServer:
    """One parameter server.

    ::

        server = PsServer(TaskId("ps", 0), settings)
        server.start("127.0.0.1:2222")
        exit_code = server.wait()
    """

    def __init__(self, task: TaskId, settings: Settings, clock: Clock | None = None) -> None:
        self.task = task
        self._settings = settings
        self._clock = clock or SystemClock()
        self.store = Store(task, settings)
        self.lease = ChiefLease(self._clock)
        # Milliseconds of the wall clock: a restarted ps always has a higher one.
        self.generation = time.time_ns() // 1_000_000
        servicer = ParameterServerServicer(self.store, self.lease, self.generation, settings)
        self._doors = Doors(task, servicer, settings)

        def add(server: grpc.Server) -> None:
            add_to_server(servicer, server)

        self._host = GrpcHost(
            task,
            threads=STREAMS_PER_SEAT * settings.max_sessions + 16,
            settings=settings,
            add=add,
            services=[SERVICE],
        )

    def start(self, address: str) -> None:
        """Listen. Ready means answering, not that the cluster has formed.

        Raises:
            AddressInUseError: The port, or ``session_port``, is taken.
            ConfigurationError: The address is not loopback and ``insecure`` was not said.
        """
        # First the doors: whoever hears of them at the port may come at once.
        try:
            self._doors.start(bind_address(address, self._settings).rpartition(":")[0])
            self._host.start(address)
        except WindlassError:
            self._doors.stop()
            raise
        log.info("ready at port %d", self._host.port)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._host.port

    def drain(self) -> None:
        """SIGTERM: ask the chief to save and stop; leave after that, or after the leave grace."""
        if self.lease.draining:
            return
        log.warning("asked to stop; telling the chief, so that it saves a checkpoint first")
        self.lease.draining = True
        self._host.drain()

    def wait(self) -> ExitCode:
        """Serve until the chief ends the job, nobody leads it for too long, or a drain is over.

        Returns:
            What the process should exit with.
        """
        deadline: float | None = None
        while not self._clock.wait(self.lease.ended, 0.1):
            if self.lease.draining and deadline is None:
                led = bool(self.lease.chief_address)
                grace_s = self._settings.leave_grace_s + self._settings.drain_grace_s if led else 0
                deadline = self._clock.now() + grace_s
            if deadline is not None and self._clock.now() >= deadline:
                log.warning("leaving before the job is over")
                return ExitCode.DRAINED
            if self.lease.silent_s > self._settings.orphan_timeout_s:
                log.error(
                    "no chief for %.0f s (orphan_timeout_s); leaving",
                    self._settings.orphan_timeout_s,
                )
                return ExitCode.PEER_LOST
        phase = self.lease.phase or Phase.DONE
        log.info("the job is %s%s", phase, f": {self.lease.reason}" if self.lease.reason else "")
        return _EXITS.get(phase, ExitCode.DONE)

    def stop(self, grace_s: float = 0.5) -> None:
        """Stop serving."""
        self._host.drain()
        self._host.stop(grace_s)
        self._doors.stop()
