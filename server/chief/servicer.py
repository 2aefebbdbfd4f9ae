"""The chief's gRPC service: messages become calls of :class:`~ropewalk.cluster.job.job.Job`."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ...cluster.access import READER
from ...cluster.job.job import Job
from ...cluster.job.members import Member
from ...cluster.replication.configuration import ShareLeader
from ...core.clock import Clock, SystemClock
from ...core.errors import OtherJobError
from ...core.process.events import event, own_task, record
from ...core.process.log_records import RareLog
from ...core.report import TaskEnd
from ...core.settings import Settings
from ...core.spans import context_from_wire, part_of
from ...core.task import Phase, TaskId
from ...core.versions import check_protocol, own_versions
from ...core.wire import bounds, codec
from ...core.wire.bounds import check_number, check_text, shorten
from ...core.wire.same_fields import to_message
from ...net.auth.guard import Visitor
from ...net.unary import Servicer
from ...proto.v1 import chief_pb2
from ...telemetry.task_metrics import SaveCounters
from .parts import JobPart, Leaders, Presence, calls_of, parts_of

log = logging.getLogger(__name__)

_Part = TypeVar("_Part")
WATCH_S = 0.5
"""A call that waits for a change is answered after this long. Unit: seconds."""
_DETAIL_BYTES = 1024  # of one task in the status


class LockedJob:
    """A job with its lock and a clock. Shared by the servicer and the chief's loop."""

    def __init__(
        self, job: Job, clock: Clock, replicas: int = 1, *, shares_move: bool = False
    ) -> None:
        self._job = job
        self.leaders = Leaders(replicas, shares_move=shares_move)
        self.parts: list[JobPart] = []
        self._kinds: dict[object, object] = {}
        # Reentrant: a signal handler stops the job, in a thread that may hold the lock.
        self._lock = threading.RLock()
        self.clock = clock
        self.last_checkpoint = ""
        # For a program that is not in this process: the checkpoint to begin with, or none ("").
        self.begins_with: str | None = None
        self.saves = SaveCounters()
        self.presence = Presence()

    def part(self, kind: Callable[[], _Part]) -> _Part:
        """Find what a feature keeps for this job.

        Args:
            kind: Makes it when it is asked for first.
        """
        with self._lock:
            if kind not in self._kinds:
                self._kinds[kind] = kind()
            kept: _Part = self._kinds[kind]  # type: ignore[assignment]
            return kept

    @contextmanager
    def open(self) -> Iterator[tuple[Job, float]]:
        """Lend the job and the current time, under the lock."""
        with self._lock:
            yield self._job, self.clock.now()


def new_chief(
    task: TaskId,
    expected: Iterable[tuple[TaskId, str]],
    settings: Settings,
    job_id: str | None,
    clock: Clock | None = None,
) -> tuple[LockedJob, Servicer]:
    """Make a job, and its service for a server, which may serve other things, too."""
    clock = clock or SystemClock()
    job = Job(
        expected,
        chief=task,
        lease_s=settings.lease_s,
        shortest_lease_s=settings.shortest_lease_s,
        now=clock.now(),
        name=job_id,
        max_dynamic=settings.max_sessions,
        shares_move=settings.shares_move,
    )
    locked_job = LockedJob(job, clock, settings.ps_replicas, shares_move=settings.shares_move)
    locked_job.parts = parts_of(locked_job)
    return locked_job, calls_of([ChiefServicer(locked_job, settings), *locked_job.parts])


class ChiefServicer:
    """Serves one job. Thread-safe."""

    def __init__(self, locked_job: LockedJob, settings: Settings) -> None:
        self._locked_job = locked_job
        self._settings = settings
        self._refusals = RareLog(log)

    def Register(
        self, request: chief_pb2.RegisterRequest, visitor: Visitor
    ) -> chief_pb2.RegisterResponse:
        """Register a new incarnation of a task. Not idempotent: a repeat fences the first."""
        task = codec.task_from_wire(request.task)
        check_text(request.address, bounds.MAX_NAME_BYTES, "its address", task)
        check_text(request.host, bounds.MAX_NAME_BYTES, "its host", task)
        check_text(request.job, bounds.MAX_JOB_ID_BYTES, "the id of its job", task)
        check_number(request.pid, bounds.MAX_PID, "its process id", task)
        theirs = codec.versions_from_wire(request.versions)
        check_protocol(own_versions(), theirs, peer=str(task))
        try:
            with self._locked_job.open() as (job, now):
                who = job.register(
                    task,
                    now=now,
                    address=request.address,
                    host=request.host,
                    pid=request.pid,
                    job=request.job,
                    is_gone=_has_ended(job.members.get(task)),
                    serves=request.serves,
                )
                self._locked_job.presence.hear(who, visitor.line)
                phase, reason, held = job.phase, job.reason, job.is_held(who, now)
        except OtherJobError as error:
            self._refusals.warning(
                "refused: %s", error, about="caller.refused", caller=task.short, why=error
            )
            raise
        joined = event("task.joined", of=task.short, generation=who.generation, host=request.host)
        log.debug("%s joined", who, extra=joined)
        return chief_pb2.RegisterResponse(
            generation=who.generation,
            heartbeat_s=self._settings.heartbeat_s,
            phase=codec.PHASES.to_wire(phase),
            versions=codec.versions_to_wire(own_versions()),
            reason=reason,
            job=who.job,
            held=held,
        )

    def Heartbeat(
        self, request: chief_pb2.HeartbeatRequest, visitor: Visitor
    ) -> chief_pb2.HeartbeatResponse:
        """Renew a lease. Idempotent."""
        with part_of(context_from_wire(request.trace), "heartbeat", own_task()):
            return self._heartbeat(request, visitor)

    def _heartbeat(
        self, request: chief_pb2.HeartbeatRequest, visitor: Visitor
    ) -> chief_pb2.HeartbeatResponse:
        who = codec.sender_of(request)
        report = codec.report_from_wire(request.report, who.task)
        knows = codec.PHASES.from_wire(request.knows) if request.knows else Phase.RUNNING
        with self._locked_job.open() as (job, now):
            phase = job.heartbeat(who, report, now=now, knows=knows)
            self._locked_job.presence.hear(who, visitor.line)
            reason, held = job.reason, job.is_held(who, now)
        answer = chief_pb2.HeartbeatResponse(
            phase=codec.PHASES.to_wire(phase), reason=reason, held=held
        )
        for part in self._locked_job.parts:
            part.add_to_heartbeat(answer)
        return answer

    def Finish(self, request: chief_pb2.FinishRequest, _: Visitor) -> chief_pb2.FinishResponse:
        """End a task's part. Idempotent: the first outcome stays."""
        who = codec.sender_of(request)
        outcome = codec.OUTCOMES.from_wire(request.outcome)
        report = codec.report_from_wire(request.report, who.task)
        message = shorten(request.message, bounds.MAX_TEXT_BYTES)
        end = TaskEnd(outcome, message, request.exit_code)
        with self._locked_job.open() as (job, now):
            phase = job.finish(who, end, report, now=now)
            reason = job.reason
        record("task.finished", of=who.task.short, outcome=outcome, message=message)
        return chief_pb2.FinishResponse(phase=codec.PHASES.to_wire(phase), reason=reason)

    def Arrive(self, request: chief_pb2.ArriveRequest, _: Visitor) -> chief_pb2.ArriveResponse:
        """Note that a task is at a barrier. Idempotent per call."""
        who = codec.sender_of(request)
        with self._locked_job.open() as (job, now):
            missing, finished = job.arrive(who, request.call, now=now)
        return chief_pb2.ArriveResponse(
            missing=[codec.task_to_wire(task) for task in missing],
            finished=[codec.task_to_wire(task) for task in finished],
        )

    def StopJob(self, request: chief_pb2.StopJobRequest, _: Visitor) -> chief_pb2.StopJobResponse:
        """Ask the job to stop. Idempotent."""
        with self._locked_job.open() as (job, _now):
            job.stop(shorten(request.reason, bounds.MAX_TEXT_BYTES) or "asked to stop")
            phase = job.phase
        return chief_pb2.StopJobResponse(phase=codec.PHASES.to_wire(phase))

    def GetStatus(
        self, request: chief_pb2.GetStatusRequest, visitor: Visitor
    ) -> chief_pb2.GetStatusResponse:
        """Return the state of the job and of every task, as many of them as fit a message."""
        leaders = self._locked_job.leaders
        with self._locked_job.open() as (job, now):
            status = chief_pb2.GetStatusResponse(
                phase=codec.PHASES.to_wire(job.phase),
                reason=job.reason,
                since_s=now - job.began,
                global_step=job.members.global_step,
                total_steps=job.members.total_steps,
                last_checkpoint=self._locked_job.last_checkpoint,
                last_checkpoint_step=job.saved_step,
                versions=codec.versions_to_wire(own_versions()),
                security=visitor.mode,
                shares=[_leader_to_wire(leader) for leader in leaders.now()],
                ps_replicas=leaders.replicas,
                failovers=leaders.failovers,
                begins_with=self._locked_job.begins_with,
                handovers=leaders.handovers,
                last_failover_s=leaders.last_failover_s,
            )
            for part in self._locked_job.parts:
                part.add_to_status(status)
            room = self._settings.max_message_bytes // 2
            share = room // max(1, len(job.members))
            for member in job.members.values():
                task = _task_status(member, now)
                if task.ByteSize() > share:  # one that reports much keeps no other out
                    task.report.ClearField("metrics")
                    task.report.ClearField("transports")
                room -= task.ByteSize()
                if room < 0:
                    break
                status.tasks.append(task)
        return status

    def WatchLeaders(
        self, request: chief_pb2.WatchLeadersRequest, visitor: Visitor
    ) -> chief_pb2.WatchLeadersResponse:
        """Return the leader of each share, after a change or a while; for a reader at once.

        A call that waits has a thread, of which there are as many as tasks; readers are none.
        """
        who = visitor.principal
        wait_s = 0.0 if who is not None and who.role == READER else WATCH_S
        published = self._locked_job.leaders
        changes, leaders = published.watch(request.seen, wait_s)
        return chief_pb2.WatchLeadersResponse(
            changes=changes,
            shares=published.shares,
            leaders=[_leader_to_wire(leader) for leader in leaders],
        )


def _leader_to_wire(leader: ShareLeader) -> chief_pb2.ShareLeader:
    followers = [codec.task_to_wire(task) for task in leader.followers]
    leads = codec.task_to_wire(leader.leader)
    return to_message(chief_pb2.ShareLeader, leader, leader=leads, followers=followers)


def _has_ended(member: Member | None) -> bool:
    """Return whether the process of a task is known to have ended: it ran on this machine."""
    if member is None or not member.pid or member.host != socket.gethostname():
        return False
    try:
        os.kill(member.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _task_status(member: Member, now: float) -> chief_pb2.TaskStatus:
    message = chief_pb2.TaskStatus(
        task=codec.task_to_wire(member.task),
        state=codec.STATES.to_wire(member.state),
        since_s=now - member.since,
        address=member.address,
        detail=shorten(member.detail, _DETAIL_BYTES),
        generation=member.generation,
        report=codec.report_to_wire(member.report),
        pid=member.pid,
        host=member.host,
    )
    if member.counters is not None:
        message.counters.CopyFrom(codec.counters_to_wire(member.counters))
    return message
