"""Calls to the chief: membership, and the job's status."""

import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...cluster.access import Principal
from ...cluster.replication.configuration import Move, MovePhase, ShareLeader
from ...core.report import (
    CutCounts,
    Finding,
    LedgerCounts,
    ProcessUsage,
    PsCounters,
    TaskEnd,
    TaskReport,
)
from ...core.settings import Settings
from ...core.spans import Context, SpanRole, part_of
from ...core.task import Incarnation, Phase, State, TaskId
from ...core.versions import Versions, check_protocol, own_versions
from ...core.wire import codec
from ...core.wire.cut_marks import Marks, marks_from_wire
from ...core.wire.same_fields import from_message
from ...net.channel import WatchingClient
from ...proto.v1 import chief_pb2, chief_pb2_grpc


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task as the chief sees it. ``since_s``: age of the state. Unit: seconds."""

    task: TaskId
    state: State
    since_s: float
    address: str
    detail: str
    generation: int
    report: TaskReport
    counters: PsCounters | None
    pid: int
    host: str

    @property
    def usage(self) -> ProcessUsage:
        """Use of its machine by the task."""
        return self.report.usage if self.counters is None else self.counters.usage


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The job as the chief sees it. ``age_s``: since it began. Unit: seconds.

    ``security`` says how tasks show who they are; see docs/security.md. ``shares`` are those of a
    job with replicas, ``ps_replicas`` says how many each is to have, ``failovers`` how often
    another ps has come to lead one because its leader was lost, and ``handovers`` how often in
    order; ``move`` is the last move of one that was asked for. ``begins_with`` names the checkpoint
    that the job goes on from: empty if there is none, None until the chief has chosen.
    """

    phase: Phase
    reason: str
    age_s: float
    global_step: int
    total_steps: int
    tasks: tuple[TaskStatus, ...]
    last_checkpoint: str
    last_checkpoint_step: int
    versions: Versions
    security: str = ""
    shares: tuple[ShareLeader, ...] = ()
    ps_replicas: int = 1
    failovers: int = 0
    begins_with: str | None = None
    move: Move | None = None
    wanted_ps: int = 0
    handovers: int = 0
    last_failover_s: float = 0.0
    cuts: CutCounts = field(default_factory=CutCounts)
    findings: tuple[Finding, ...] = ()
    ledgers: tuple[LedgerCounts, ...] = ()


class ChiefClient(WatchingClient):
    """Unary calls to the chief. Thread-safe.

    Args:
        address: Address of the chief.
        settings: Credentials of the caller, and limits.
        who: The caller.

    Attributes:
        sampled_step: Place of the last sampled step, which the next heartbeat is joined to; None:
            there was none since the last heartbeat.
    """

    def __init__(self, address: str, settings: Settings, who: Principal) -> None:
        super().__init__(address, f"the chief ({address})", settings, who)
        self._stub = chief_pb2_grpc.ChiefStub(self._channel)
        self.sampled_step: Context | None = None

    def register(
        self, task: TaskId, address: str, *, timeout_s: float, serves: bool = False
    ) -> tuple[Incarnation, float, Phase, str, bool]:
        """Join the job.

        Args:
            task: The task that joins.
            address: Address at which the task serves; empty if it does not.
            timeout_s: Longest time to wait for the answer. Unit: seconds.
            serves: Whether the task has no program of its own, and ends with the job.

        Returns:
            (this task's incarnation, seconds between heartbeats, phase of the job, its reason,
            whether after its first step it waits for those of others)

        Raises:
            PeerLostError: No answer yet, or another process may still have the task's place.
            OtherJobError: The chief leads another job, or another process is at work in the place.
            ProtocolMismatchError: The chief speaks another protocol.
        """
        request = chief_pb2.RegisterRequest(
            task=codec.task_to_wire(task),
            address=address,
            versions=codec.versions_to_wire(own_versions()),
            pid=os.getpid(),
            host=socket.gethostname(),
            job=self._settings.job_id,
            serves=serves,
        )
        response = self._call(self._stub.Register, request, "register", timeout_s)
        check_protocol(own_versions(), codec.versions_from_wire(response.versions), peer=self.peer)
        return (
            Incarnation(task, response.generation, response.job),
            response.heartbeat_s,
            codec.PHASES.from_wire(response.phase),
            response.reason,
            response.held,
        )

    def heartbeat(
        self,
        who: Incarnation,
        report: TaskReport,
        *,
        knows: Phase = Phase.RUNNING,
        timeout_s: float,
        on_answer: Callable[[chief_pb2.HeartbeatResponse], None] = lambda answer: None,  # noqa: ARG005
        on_held: Callable[[bool], None] = lambda held: None,  # noqa: ARG005
    ) -> tuple[Phase, str]:
        """Renew the lease; returns (phase of the job, its reason).

        Args:
            who: Incarnation of the calling task.
            report: Progress of the calling task.
            knows: The phase it was told last.
            timeout_s: Longest time to wait for the answer. Unit: seconds.
            on_answer: Called with the answer, for what annexes read there.
            on_held: Called with whether this task waits for the first steps of others.

        Raises:
            FencedError: A newer incarnation of this task has registered.
            PeerLostError: No answer.
        """
        step, self.sampled_step = self.sampled_step, None
        with part_of(step, "heartbeat", who.task.short, SpanRole.CLIENT) as trace:
            request = chief_pb2.HeartbeatRequest(
                report=codec.report_to_wire(report), knows=codec.PHASES.to_wire(knows), trace=trace
            )
            codec.set_sender(request, who)
            response = self._call(self._stub.Heartbeat, request, "heartbeat", timeout_s)
        on_answer(response)
        on_held(response.held)
        return codec.PHASES.from_wire(response.phase), response.reason

    def finish(
        self, who: Incarnation, end: TaskEnd, report: TaskReport, *, timeout_s: float
    ) -> tuple[Phase, str]:
        """Report the end of this task's work; returns (phase of the job, its reason).

        Raises:
            FencedError: A newer incarnation of this task has registered.
            PeerLostError: No answer.
        """
        request = chief_pb2.FinishRequest(
            outcome=codec.OUTCOMES.to_wire(end.outcome),
            message=end.message,
            report=codec.report_to_wire(report),
            exit_code=end.exit_code,
        )
        codec.set_sender(request, who)
        response = self._call(self._stub.Finish, request, "finish", timeout_s)
        return codec.PHASES.from_wire(response.phase), response.reason

    def arrive(
        self, who: Incarnation, call: int, *, timeout_s: float
    ) -> tuple[list[TaskId], list[TaskId]]:
        """Announce that this task is at its barrier number ``call``; returns (tasks that are
        missing, those of them that have finished).

        Raises:
            FencedError: A newer incarnation of this task has registered.
            PeerLostError: No answer.
        """
        request = chief_pb2.ArriveRequest(call=call)
        codec.set_sender(request, who)
        response = self._call(self._stub.Arrive, request, "barrier", timeout_s)
        missing = [codec.task_from_wire(task) for task in response.missing]
        return missing, [codec.task_from_wire(task) for task in response.finished]

    def join_ps(self, task: TaskId, address: str, *, timeout_s: float) -> None:
        """Offer a ps that the cluster did not have. A repeat changes nothing.

        Raises:
            PeerLostError: No answer, or the chief does not lead yet.
            RefusedError: The job cannot have it.
            ConfigurationError: Its shares do not move.
            StorageError: The ps does not find the model directory.
        """
        request = chief_pb2.JoinPsRequest(
            task=codec.task_to_wire(task),
            address=address,
            job=self._settings.job_id,
            versions=codec.versions_to_wire(own_versions()),
        )
        self._call(self._stub.JoinPs, request, "join", timeout_s)

    def scale_ps(self, count: int, *, timeout_s: float) -> None:
        """Say how many ps the job is to have; its launcher starts and stops them.

        Raises:
            PeerLostError: No answer.
            RefusedError: It cannot have so many, or so few.
            ConfigurationError: Its shares do not move.
        """
        request = chief_pb2.ScalePsRequest(count=count)
        self._call(self._stub.ScalePs, request, "scale", timeout_s)

    def watch_leaders(self, seen: int, *, timeout_s: float) -> tuple[int, int, list[ShareLeader]]:
        """Wait until leaders of shares change, for half a second at most; returns (changes, shares,
        leaders).

        Args:
            seen: Number of changes in the last answer; 0: answer at once.
            timeout_s: Unit: seconds.

        Returns:
            (number of changes until now; 0 if shares do not move, number of shares; 0 as long as
            the chief does not know, the leaders)

        Raises:
            PeerLostError: No answer.
        """
        request = chief_pb2.WatchLeadersRequest(seen=seen)
        response = self._watch(self._stub.WatchLeaders, request, timeout_s)
        leaders = [_leader_from_wire(leader) for leader in response.leaders]
        return response.changes, response.shares, leaders

    def join_cut(self, who: Incarnation, number: int, *, timeout_s: float) -> tuple[bool, float]:
        """Take part in a cut.

        Returns:
            (whether to mark now, after how many seconds to ask again; 0: the cut is over)

        Raises:
            PeerLostError: No answer.
        """
        request = chief_pb2.JoinCutRequest(cut=number)
        codec.set_sender(request, who)
        response = self._call(self._stub.JoinCut, request, "join a cut", timeout_s)
        return response.marks, response.again_s

    def take_cut(
        self, who: Incarnation, *, timeout_s: float, rows_only: bool = False
    ) -> tuple[int, int, Marks]:
        """Have a cut taken, whose values are then read from the ps.

        Args:
            who: Reads them.
            timeout_s: Unit: seconds.
            rows_only: Whether the cut holds only rows that a reader has named, and no other values.

        Returns:
            (its number, its global step, the mark of each worker)

        Raises:
            CutVoidError: It could not be taken.
            PeerLostError: No answer.
        """
        request = chief_pb2.TakeCutRequest(rows_only=rows_only)
        codec.set_sender(request, who)
        response = self._call(self._stub.TakeCut, request, "take a cut", timeout_s)
        return response.cut, response.global_step, marks_from_wire(response.marks)

    def release_cut(self, who: Incarnation, number: int, *, timeout_s: float) -> None:
        """Have the ps keep nothing of a cut any more. Idempotent.

        Raises:
            PeerLostError: No answer.
        """
        request = chief_pb2.ReleaseCutRequest(cut=number)
        codec.set_sender(request, who)
        self._call(self._stub.ReleaseCut, request, "end a cut", timeout_s)

    def ask_tasks(
        self, kind: str, argument: str, tasks: Iterable[TaskId], *, timeout_s: float
    ) -> tuple[int, list[TaskId]]:
        """Ask tasks of the job; returns (number of the question, tasks that are asked).

        Args:
            kind: Kind of the question.
            argument: A detail of the kind.
            tasks: Tasks to ask; none: all that are there.
            timeout_s: Unit: seconds.

        Raises:
            RefusedError: There is no such kind, or too much is asked at once.
            PeerLostError: No answer.
        """
        named = [codec.task_to_wire(task) for task in tasks]
        request = chief_pb2.AskTasksRequest(kind=kind, argument=argument, tasks=named)
        response = self._call(self._stub.AskTasks, request, "ask tasks", timeout_s)
        return response.number, [codec.task_from_wire(task) for task in response.tasks]

    def answers(
        self, number: int, seen: Iterable[TaskId], *, timeout_s: float
    ) -> tuple[list[tuple[TaskId, bytes, str]], list[TaskId]]:
        """Get answers of tasks to a question.

        Args:
            number: Number of the question.
            seen: Tasks whose answers are known.
            timeout_s: Unit: seconds.

        Returns:
            (each task with its answer, or why it has none; tasks that have not answered)

        Raises:
            RefusedError: The question is over.
            PeerLostError: No answer.
        """
        known = [codec.task_to_wire(task) for task in seen]
        request = chief_pb2.GetAnswersRequest(number=number, seen=known)
        response = self._call(self._stub.GetAnswers, request, "ask for answers", timeout_s)
        answers = [
            (codec.task_from_wire(each.task), each.answer, each.error) for each in response.answers
        ]
        return answers, [codec.task_from_wire(task) for task in response.missing]

    def answer_question(
        self, who: Incarnation, number: int, answer: bytes, error: str, *, timeout_s: float
    ) -> None:
        """Answer a question to this task; ``error`` says why not. Idempotent.

        Raises:
            PeerLostError: No answer.
        """
        request = chief_pb2.AnswerQuestionRequest(number=number, answer=answer, error=error)
        codec.set_sender(request, who)
        self._call(self._stub.AnswerQuestion, request, "answer a question", timeout_s)

    def lease_range(
        self, who: Incarnation, request: chief_pb2.LeaseRangeRequest, *, timeout_s: float
    ) -> chief_pb2.LeaseRangeResponse:
        """Ask for a range of examples, and say which ones are trained; see the annex ledger.

        Raises:
            RefusedError: Another task has another plan for this data.
            FencedError: A newer incarnation of this task has registered.
            PeerLostError: No answer.
        """
        codec.set_sender(request, who)
        response: chief_pb2.LeaseRangeResponse = self._call(
            self._stub.LeaseRange, request, "lease examples", timeout_s
        )
        return response

    def move_share(self, share: int, to: TaskId, *, timeout_s: float) -> Move:
        """Have another ps lead a share; returns before it does (:meth:`status` says when).

        Raises:
            ConfigurationError: The job has no replicas.
            NotFoundError: There is no such share, or no such ps.
            RefusedError: The ps leads it already, was asked to leave or is lost, or another move is
                under way.
            PeerLostError: No answer.
        """
        request = chief_pb2.MoveShareRequest(share=share, to=codec.task_to_wire(to))
        response = self._call(self._stub.MoveShare, request, "move", timeout_s)
        return _move_from_wire(response.move)

    def status(self, *, timeout_s: float, wait_for_ready: bool = False) -> JobStatus:
        """Return the state of the job.

        Raises:
            PeerLostError: No answer.
        """
        message = self._call(
            self._stub.GetStatus,
            chief_pb2.GetStatusRequest(),
            "status",
            timeout_s,
            wait_for_ready=wait_for_ready,
        )
        return from_message(
            JobStatus,
            message,
            phase=codec.PHASES.from_wire(message.phase),
            age_s=message.since_s,
            tasks=tuple(_task_status(item) for item in message.tasks),
            versions=codec.versions_from_wire(message.versions),
            shares=tuple(_leader_from_wire(leader) for leader in message.shares),
            begins_with=message.begins_with if message.HasField("begins_with") else None,
            move=_move_from_wire(message.move) if message.HasField("move") else None,
            cuts=_cuts_from_wire(message.cuts),
            findings=tuple(
                from_message(Finding, finding, numbers=dict(finding.numbers))
                for finding in message.findings
            ),
            ledgers=tuple(from_message(LedgerCounts, ledger) for ledger in message.ledgers),
        )


def _leader_from_wire(message: chief_pb2.ShareLeader) -> ShareLeader:
    leads = codec.task_from_wire(message.leader)
    followers = tuple(codec.task_from_wire(task) for task in message.followers)
    return from_message(ShareLeader, message, leader=leads, followers=followers)


def _cuts_from_wire(message: chief_pb2.CutCounts) -> CutCounts:
    return CutCounts(message.taken, message.void, message.last_s, message.last_void)


def _move_from_wire(message: chief_pb2.ShareMove) -> Move:
    phase = chief_pb2.MovePhase.Name(message.phase).removeprefix("MOVE_PHASE_")
    source, to = codec.task_from_wire(message.source), codec.task_from_wire(message.to)
    return from_message(Move, message, source=source, to=to, phase=MovePhase[phase])


def _task_status(message: chief_pb2.TaskStatus) -> TaskStatus:
    has_counters = message.HasField("counters")
    return from_message(
        TaskStatus,
        message,
        task=codec.task_from_wire(message.task),
        state=codec.STATES.from_wire(message.state),
        report=codec.report_from_wire(message.report),
        counters=codec.counters_from_wire(message.counters) if has_counters else None,
    )
