"""Parts of a chief beside the job: who leads shares, who is there, and what annexes bring."""

import socket
import threading
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from google.protobuf.message import Message

from ...cluster.job.members import Member
from ...cluster.liveness import Evidence
from ...cluster.replication.configuration import ShareLeader
from ...core import annexes
from ...core.errors import ConfigurationError
from ...core.process.processes import is_stopped
from ...core.task import Incarnation, TaskId
from ...net.auth.guard import CallerLine, Visitor
from ...net.unary import Servicer
from ...proto.v1 import chief_pb2
from ...telemetry.catalogue import Sample

if TYPE_CHECKING:
    from .servicer import LockedJob

# -- Leaders of the shares, for the tasks that ask the chief -----------------------------------


class Leaders:
    """The leaders that have obeyed. Thread-safe.

    Args:
        replicas: Number of ps that are to have each share.
        shares_move: Whether another ps may come to lead a share; else each leads its own for ever.

    Attributes:
        replicas: Number of ps that are to have each share.
        shares: Number of shares; 0: the chief has not begun to lead, or shares do not move.
        failovers: Number of times that another ps has come to lead a share because its leader was
            lost.
        last_failover_s: Duration of the last failover, from when the loss was known until the other
            ps led. Unit: seconds.
        handovers: Number of times that another ps has come to lead a share in order.
    """

    def __init__(self, replicas: int, *, shares_move: bool) -> None:
        self.replicas = replicas
        self.shares = 0
        self.failovers = self.handovers = 0
        self.last_failover_s = 0.0
        self._change = threading.Condition()
        self._changes = 1 if shares_move else 0
        self._leaders: dict[int, ShareLeader] = {}

    def publish(self, leader: ShareLeader, failover_s: float | None = None) -> None:
        """Tell the tasks that ask from now on, and those that wait.

        Args:
            leader: Leader of a share.
            failover_s: Time since the ps that led before was lost; None: it was not lost.
        """
        with self._change:
            before = self._leaders.get(leader.share)
            if before == leader:
                return
            if before is not None and before.leader != leader.leader:
                if failover_s is None:
                    self.handovers += 1
                else:
                    self.failovers, self.last_failover_s = self.failovers + 1, failover_s
            self._leaders[leader.share] = leader
            self._changes += 1
            self._change.notify_all()

    def watch(self, seen: int, wait_s: float) -> tuple[int, list[ShareLeader]]:
        """Wait for a change beyond ``seen``, or for ``wait_s``; returns the number of changes and
        all leaders.

        Returns:
            (number of changes until now; 0 if shares do not move, the leaders by share)
        """
        with self._change:
            if self._changes:
                self._change.wait_for(lambda: self._changes != seen, wait_s)
            return self._changes, self.now()

    def now(self) -> list[ShareLeader]:
        """List all leaders, by share."""
        leaders = dict(self._leaders)
        return [leaders[share] for share in sorted(leaders)]


# -- Whether the process of a task that is silent is there: what its machine says without it ---
# A program may keep all threads of its process from running for as long as it computes, and then
# no heartbeat is sent (ADR 0079). A worker of a job with ps listens at no port; but its system
# keeps the connection open over which its heartbeats came, until the process ends, and answers for
# it. Pings on that connection are answered by threads of gRPC that need no interpreter: not by a
# process that does not run, or a machine that cannot be reached (ADR 0117). On this machine it can
# be seen, too, whether a signal has stopped the process.


class _Connection:
    """The connection over which a task was heard last, and whether it answers pings.

    Args:
        generation: Generation of the task.
        line: The connection; None: the task is of this process.
    """

    def __init__(self, generation: int, line: CallerLine | None) -> None:
        self.generation, self.line = generation, line
        self._asked: float | None = None
        self._answered = 0
        if line is not None:
            line.ping()  # whether it answers pings at all

    def ask(self, line: CallerLine, now: float, answer_s: float) -> Evidence:
        """Ping, one at a time; returns what the answers say until now."""
        answered = line.pings_answered
        is_answered, self._answered = answered > self._answered, answered
        if not answered or is_answered or self._asked is None:
            if answered:
                self._asked = now
                line.ping()
            return Evidence.THERE
        return Evidence.UNANSWERED if now - self._asked >= answer_s else Evidence.THERE

    def heard(self) -> None:
        """Note a sign of life: what was asked before does not count any more."""
        self._asked = None


class Presence:
    """The connections over which tasks were heard last. The caller locks."""

    def __init__(self) -> None:
        self._heard: dict[TaskId, _Connection] = {}
        self._host = socket.gethostname()

    def hear(self, who: Incarnation, line: CallerLine | None) -> None:
        """Note that a task has given a sign of life.

        Args:
            who: The task.
            line: The connection that it came over; None: it is of this process.
        """
        known = self._heard.get(who.task)
        if known is None or known.line is not line or known.generation != who.generation:
            self._heard[who.task] = _Connection(who.generation, line)
        else:
            known.heard()

    def keep(self, tasks: Container[TaskId]) -> None:
        """Forget all others."""
        self._heard = {task: heard for task, heard in self._heard.items() if task in tasks}

    def evidence(self, member: Member, now: float, answer_s: float = 0.0) -> Evidence:
        """Find out what is known of the process of a silent task. Asked again and again.

        Args:
            member: The task.
            now: The current time.
            answer_s: Time that the answer to a ping may take. Unit: seconds.
        """
        heard = self._heard.get(member.task)
        if heard is None or heard.generation != member.generation:
            return Evidence.NONE
        if heard.line is None:
            return Evidence.THERE
        if not heard.line.is_open():
            return Evidence.ENDED
        if member.host == self._host and member.pid and is_stopped(member.pid):
            return Evidence.STOPPED
        return heard.ask(heard.line, now, answer_s)


# -- Parts of a chief that annexes bring: their calls, and what they add to answers and metrics --
# An annex that has a module ``chief_part`` attaches there with ``PART``, which makes its part for
# each job from its :class:`~ropewalk.server.chief.servicer.LockedJob`.

SERVICE = chief_pb2.DESCRIPTOR.services_by_name["Chief"]


class JobPart(Protocol):
    """Part of a chief; it has a method for each call that it serves, too. Thread-safe."""

    def add_to_heartbeat(self, answer: chief_pb2.HeartbeatResponse) -> None:
        """Add to the answer to a heartbeat. Must not wait."""

    def add_to_status(self, status: chief_pb2.GetStatusResponse) -> None:
        """Add to the status of the job. The job's lock is held."""

    def samples(self) -> Iterator[Sample]:
        """Yield samples for Prometheus."""


def parts_of(locked_job: "LockedJob") -> list[JobPart]:
    """Make the parts of a job that annexes bring."""
    return [module.PART(locked_job) for module in annexes.at("chief_part")]


def calls_of(implementations: Sequence[object]) -> Servicer:
    """Collect the calls of a chief from the objects that have them; what none has is refused.

    Args:
        implementations: Objects with a method for each call that they serve.
    """

    def refuse(request: Message, _: Visitor) -> Message:
        call = type(request).__name__.removesuffix("Request")
        raise ConfigurationError(
            f"this chief does not serve {call}: the annex that does was taken out of its "
            "installation; install Ropewalk there again"
        )

    return {
        method.name: next(
            (getattr(each, method.name) for each in implementations if hasattr(each, method.name)),
            refuse,
        )
        for method in SERVICE.methods
    }
