"""A ps process's server: starts, serves until the job is over, leaves in order."""

import logging
import secrets

from ...core.clock import Clock, SystemClock
from ...core.exit_codes import ExitCode
from ...core.launcher_tells import LAUNCHER_TELLS
from ...core.settings import Settings
from ...core.states import Phase
from ...core.task import TaskId
from ...core.waiting import FIRST_S, WaitLog
from ...engine.library import library
from ...engine.own_rules import import_rules
from ...net.host import TaskHost
from . import session_service
from .lease import ChiefLease
from .model_dir import PsModelDir
from .servicer import SERVICE, ParameterServerServicer, add_to_server
from .session_limiter import CONNECTIONS_PER_WORKER, SessionLimiter
from .session_service import SessionService
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
        import_rules(settings.rule_modules)
        self.store = Store(task, settings)
        self.lease = ChiefLease(self._clock, settings.job_id)
        # Of this process alone: whoever meets another one knows that the variables are gone.
        self.generation = secrets.randbits(62) + 1
        limiter = SessionLimiter(task, settings.max_sessions)
        model_dir = PsModelDir(task, settings.model_dir)
        servicer = ParameterServerServicer(
            self.store, self.lease, self.generation, limiter, model_dir
        )
        sessions = SessionService(
            self.store, self.generation, settings, limiter, self.lease.check_job
        )
        most = CONNECTIONS_PER_WORKER * settings.max_sessions
        self._host = TaskHost(
            task,
            threads=most + 16,
            settings=settings,
            add=lambda server: add_to_server(servicer, server),
            services=[SERVICE],
            sessions={session_service.SERVICE: sessions.serve},
            max_sessions=most,
        )

    def start(self, address: str) -> None:
        """Listen. Ready means answering, not that the cluster has formed.

        Raises:
            AddressInUseError: The port is taken.
            ConfigurationError: The address is not loopback and ``insecure`` was not said.
        """
        self._host.start(address)
        # The first update rule needs Numba, which takes 0.3 s to load: while the tasks join.
        library.load_in_background()
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
        waits = WaitLog(
            self.task,
            limit_s=self._settings.orphan_timeout_s,
            limit="orphan_timeout_s",
            clock=self._clock,
        )
        while not self._clock.wait(self.lease.ended, 0.1):
            if self.lease.draining and deadline is None:
                led = bool(self.lease.chief_address)
                grace_s = self._settings.leave_grace_s + self._settings.drain_grace_s if led else 0
                deadline = self._clock.now() + grace_s
            if deadline is not None and self._clock.now() >= deadline:
                log.warning("leaving before the job is over")
                return ExitCode.DRAINED
            if self.lease.silent_s > FIRST_S:
                known = self.lease.chief_address
                waits.tick(f"the chief at {known}, not heard of" if known else "a chief")
            else:
                waits.restart(self._clock.now() - self.lease.silent_s)
            if self.lease.silent_s > self._settings.orphan_timeout_s:
                log.error(
                    "no chief for %.0f s (orphan_timeout_s); leaving",
                    self._settings.orphan_timeout_s,
                )
                return ExitCode.PEER_LOST
        phase = self.lease.phase or Phase.DONE
        why = f": {self.lease.reason}" if self.lease.reason else ""
        log.info("the job is %s%s", phase, why, extra=LAUNCHER_TELLS)
        return _EXITS.get(phase, ExitCode.DONE)

    def stop(self, grace_s: float = 0.5) -> None:
        """Stop serving."""
        self._host.drain()
        self._host.stop(grace_s)
