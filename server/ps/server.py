"""A ps process's server: starts, serves until the job is over, leaves in order."""

import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...cluster.access import Leadership
from ...core import annexes
from ...core.arrays.dtypes import Array
from ...core.clock import Clock, Silence, SystemClock
from ...core.exit_codes import ExitCode
from ...core.process.events import event
from ...core.process.log_records import REPORTED_BY_LAUNCHER
from ...core.process.usage import UsageReader
from ...core.process.waiting import FIRST_S, WaitLog
from ...core.report import PsCounters
from ...core.rules.known_rules import import_rules
from ...core.settings import Settings
from ...core.task import Incarnation, Phase, TaskId
from ...core.wire.steps import SESSION_SERVICE
from ...engine.library import library
from ...net.auth.guard import Guard
from ...net.host import HostedServer, MetricsPort, TaskHost
from ...telemetry.catalogue import Sample
from ...telemetry.task_metrics import ps_samples, task_samples
from .lease import ChiefLease
from .limits import SessionLimiter, connections_per_worker
from .parts import OnlyShare, ServedPs, ServedShares, moments_of
from .saving import PsModelDir
from .servicer import SERVICE, ParameterServerServicer, calls_of
from .session_service import SessionService
from .store import Store

log = logging.getLogger(__name__)

# After its start. Numba is loaded within a second; where kernels have to be compiled a replica is
# needed sooner. A leader greets a ps of its machine twice, and the second one must not wait again.
_LOADED_S = 5.0
_LONGEST_LOOK_S = 5.0  # for the chief: on a busy machine
_MOST_FOLLOWED = 256  # connections of leaders of shares


class PsServer(HostedServer):
    """A parameter server.

    ::

        server = PsServer(TaskId("ps", 0), settings)
        server.start("127.0.0.1:2222")
        exit_code = server.wait()

    Args:
        task: The task of this ps.
        settings: Settings of this task.
        clock: Clock, replaced in tests.
        has_chief: Whether the cluster is known to have a task of the type chief; else it is once
            one has attached.
    """

    def __init__(
        self,
        task: TaskId,
        settings: Settings,
        clock: Clock | None = None,
        has_chief: bool = False,
    ) -> None:
        self.task = task
        self._settings = settings
        self._clock = clock or SystemClock()
        import_rules(settings.rule_modules)
        self.lease = ChiefLease(self._clock, settings.job_id)
        # Of this process alone: whoever meets another one knows that it was started again.
        self.generation = secrets.randbits(62) + 1
        replication = self._replication() if settings.shares_move else None
        self.shares: ServedShares = (
            replication.shares if replication else OnlyShare(task, settings, self.generation)
        )
        per_worker = connections_per_worker(settings.ps_shares)
        self._limiter = limiter = SessionLimiter(task, settings.max_sessions, per_worker)
        self._metrics: MetricsPort | None = None
        self._usage = UsageReader()
        model_dir = PsModelDir(task, settings.model_dir)
        readers = next(annexes.at("reader_part"), None)
        rows_of = readers.rows_of if readers is not None else _no_rows
        moments = moments_of(ServedPs(task, self.shares, self.lease, rows_of))
        calls = ParameterServerServicer(
            task, self.shares, self.lease, self.generation, self._counters, model_dir, moments.save
        )
        sessions = SessionService(
            self.shares,
            settings,
            limiter,
            self.lease.check_job,
            readers.reader_sessions(moments.rows) if readers is not None else None,
        )
        asked = [module.CALLS(settings) for module in annexes.at("ps_calls")]
        served = {SESSION_SERVICE: sessions.serve}
        if replication is not None:
            served |= replication.services
        # Those of readers and of other ps have no place of a worker's.
        most = per_worker * (settings.max_sessions + sessions.most_readers) + _MOST_FOLLOWED
        self._host = TaskHost(
            task,
            threads=2 * settings.max_sessions + 16,
            settings=settings,
            calls={SERVICE: calls_of(task, calls, moments, replication, *asked)},
            guard=Guard(
                task,
                settings,
                job=lambda: self.lease.job,
                leadership=lambda: Leadership(has_chief, self.lease.leader),
            ),
            sessions=served,
            max_sessions=most,
            is_replicated=lambda: settings.ps_replicas < 2 or self.lease.is_replicated,
        )

    def start(self, address: str) -> None:
        """Listen. Ready means answering, not that the cluster has formed.

        Raises:
            AddressInUseError: The port is taken.
            ConfigurationError: Nothing says how tasks show who they are.
        """
        self._metrics = MetricsPort(self.task, address, self._settings, self._samples)
        super().start(address)
        try:
            self._metrics.start()
        except BaseException:
            self._host.stop(0)
            raise
        log.info("ready at port %d", self._host.port)

    def _replication(self) -> Any:
        annex = annexes.the("server.servicer", "replication", "ps_shares, or ps_replicas,")
        prepare = partial(library.wait, time.monotonic() + _LOADED_S)
        return annex.ReplicationCalls(
            self.task, self._settings, self.generation, self.lease, prepare
        )

    @property
    def store(self) -> Store:
        """The store of this ps's own share."""
        return self.shares.at(self.task.index).store

    def drain(self) -> None:
        """Ask the chief to save and stop, on SIGTERM; leave after that, or after the leave
        grace.
        """
        if self.lease.draining:
            return
        first = (
            "so that other ps take over what is here"
            if self._settings.shares_move
            else "so that it saves a checkpoint first"
        )
        signalled = event("signal.received", to="drain")
        log.warning("asked to stop; telling the chief, %s", first, extra=signalled)
        self.lease.draining = True
        self.shares.drain()
        self._host.drain()

    def wait(self) -> ExitCode:
        """Serve until the chief ends the job, nobody leads it for too long, or a drain is over.

        Returns:
            Exit code of the process.
        """
        deadline: float | None = None
        orphanhood = _Orphanhood(self.task, self.lease, self._settings, self._clock)
        while not self._clock.wait(self.lease.ended, 0.1):
            if self.lease.draining and deadline is None:
                _, _, takes_part = self.shares.held()  # of one that has just come
                led = takes_part or bool(self.lease.chief_address)
                grace_s = self._settings.leave_grace_s + self._settings.drain_grace_s if led else 0
                if led and self._settings.shares_move:
                    grace_s += self._settings.lease_s  # something may have to be copied first
                deadline = self._clock.now() + grace_s
            if self.lease.draining and self.lease.may_leave:
                log.info("leaves: other ps have what it had")
                return ExitCode.DONE
            if deadline is not None and self._clock.now() >= deadline:
                log.warning("leaving before the job is over")
                return ExitCode.LEFT_EARLY
            if orphanhood.is_over():
                return ExitCode.LEFT_EARLY
        phase = self.lease.phase or Phase.DONE
        why = f": {self.lease.reason}" if self.lease.reason else ""
        ended = event("job.ended", phase=phase, reason=self.lease.reason)
        log.info("the job %s%s", phase.ended_how, why, extra=REPORTED_BY_LAUNCHER | ended)
        return phase.exit_code

    def _counters(self) -> PsCounters:
        counters = self.shares.counters(self._limiter.count)
        return replace(counters, usage=self._usage.read())

    def samples(self) -> Iterator[Sample]:
        """Yield the work of this ps and what it holds, for Prometheus."""
        yield from ps_samples(
            self._counters(),
            limit_bytes=self.shares.max_bytes,
            max_sessions=self._settings.max_sessions,
            chief_silent_s=self.lease.silent_s,
        )
        yield from self.shares.samples()

    def _samples(self) -> Iterator[Sample]:
        yield from task_samples(self.task, self.lease.job, draining=self.lease.draining)
        yield from self.samples()
        yield from self._host.samples()

    def stop(self, grace_s: float = 0.5) -> None:
        """Stop serving."""
        if self._metrics is not None:
            self._metrics.stop()
        self._host.drain()
        self.shares.close()
        self._host.stop(grace_s)


def _no_rows(store: Store, who: Incarnation | None) -> Sequence[Array]:  # noqa: ARG001
    """Copy nothing: no reader has named rows here."""
    return ()


class _Orphanhood:
    """The time that a ps has had no chief, logged while it lasts, and whether it should end.

    Args:
        task: The ps.
        lease: Lease of its chief.
        settings: Settings with ``orphan_timeout_s`` and ``stay_without_chief``.
        clock: Clock of the lease.
    """

    def __init__(self, task: TaskId, lease: ChiefLease, settings: Settings, clock: Clock) -> None:
        self._lease = lease
        self._limit_s = settings.orphan_timeout_s
        self._may_stay = settings.stay_without_chief
        self._clock = clock
        self._stays = False
        self._silence = Silence(clock.now(), _LONGEST_LOOK_S)
        self._waits = WaitLog(task, limit_s=self._limit_s, limit="orphan_timeout_s", clock=clock)

    def is_over(self) -> bool:
        """Return whether the ps should leave. Asked again and again."""
        silent_s, known = self._lease.silent_s, self._lease.chief_address
        now = self._clock.now()
        if silent_s <= FIRST_S:
            self._silence.heard(now - silent_s)
        silent_s = self._silence.look(now)
        if silent_s <= FIRST_S:
            self._waits.restart(self._clock.now() - silent_s)
        elif not self._stays:
            self._waits.tick(f"the chief at {known}, not heard of" if known else "a chief")
        if silent_s <= self._limit_s:
            self._stays = False
            return False
        if self._may_stay and not known:
            if not self._stays:
                log.info(
                    "no chief for %.0f s (orphan_timeout_s); staying until one comes, or somebody "
                    "ends this ps (stay_without_chief)",
                    self._limit_s,
                )
            self._stays = True
            return False
        lost = event("chief.lost", limit_s=self._limit_s)
        log.error("no chief for %.0f s (orphan_timeout_s); leaving", self._limit_s, extra=lost)
        return True
