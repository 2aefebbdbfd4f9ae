"""The chief's unary calls to a ps: renewing its lease, saving, ending the job."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from ...cluster.access import Principal
from ...cluster.replication.configuration import (
    CopyTo,
    FollowerState,
    GiveUpShare,
    HandOver,
    Lead,
    PsReport,
    ReplicaRole,
    ShareState,
)
from ...core.checkpoint.manifest import FileRecord, SavedPart, SavedShard, TensorRecord
from ...core.errors import CutVoidError
from ...core.report import PsCounters
from ...core.settings import Settings
from ...core.spans import current
from ...core.task import Incarnation, Phase, TaskId
from ...core.wire import codec
from ...core.wire.cut_marks import Marks, marks_from_wire
from ...core.wire.same_fields import from_message
from ...net.channel import WatchingClient
from ...net.sockets import is_refused
from ...proto.v1 import ps_pb2, ps_pb2_grpc


@dataclass(frozen=True, slots=True)
class PsAnswer:
    """A ps's answer to the renewal of the chief's lease."""

    generation: int
    counters: PsCounters
    draining: bool


@dataclass(frozen=True, slots=True)
class JobOnPs:
    """The job that a ps serves.

    Attributes:
        job: Id of the job; empty: none yet.
        chief_address: Address of the chief; empty: no chief yet.
        silent_s: Time since the chief was last heard of. Unit: seconds.
        last_generation: Generation of the last chief that led it.
        shards: Number of shards held there.
        global_step: Global step as far as this ps knows.
        gives_way: Whether worker 0 leads it, and a chief that comes leads instead.
        has_shares: Whether this process leads or follows shares of it.
    """

    job: str
    chief_address: str
    silent_s: float
    last_generation: int = 0
    shards: int = 0
    global_step: int = 0
    gives_way: bool = False
    has_shares: bool = False


@dataclass(frozen=True, slots=True)
class CutOrder:
    """An order to begin a cut.

    Attributes:
        number: Number of the cut.
        workers: Workers whose marks are waited for.
        hold_s: Longest time that pushes wait. Unit: seconds.
        with_slots: Whether slots are wanted, or values alone.
        may_be_base: Whether the ps note what changes from then on, for deltas.
        reader: Task that alone may read the values; None: they are for a checkpoint.
        rows_only: Whether only the rows are wanted that the reader has named.
    """

    number: int
    workers: frozenset[Incarnation]
    hold_s: float
    with_slots: bool
    may_be_base: bool = False
    reader: Incarnation | None = None
    rows_only: bool = False


class PsControl(WatchingClient):
    """Unary calls to one ps. Thread-safe.

    Args:
        task: The ps.
        address: Address of the ps.
        settings: Credentials of the caller, and bounds.
        who: The caller.
    """

    def __init__(self, task: TaskId, address: str, settings: Settings, who: Principal) -> None:
        super().__init__(address, f"{task} ({address})", settings, who)
        self.task = task
        self._stub = ps_pb2_grpc.ParameterServerStub(self._channel)

    def attach(
        self,
        chief: Incarnation,
        chief_address: str,
        *,
        lease_s: float,
        timeout_s: float,
        may_leave: bool = False,
        replicated_process: int = 0,
        is_last: bool = False,
    ) -> PsAnswer:
        """Renew the chief's lease.

        Args:
            chief: The chief.
            chief_address: Address at which the chief serves.
            lease_s: Unit: seconds.
            timeout_s: Unit: seconds.
            may_leave: Other ps have all that this one has, if it was asked to leave.
            replicated_process: Process of this ps, if each share has its replicas; else 0.
            is_last: Whether this is the last try: a ps that listens is waited for, also if it was
                refused before, which a channel notices a little later.

        Raises:
            PeerLostError: No answer.
            FencedError: The ps serves another chief.
        """
        waits = is_last and self.is_there(timeout_s)
        request = ps_pb2.AttachRequest(
            chief=codec.incarnation_to_wire(chief),
            chief_address=chief_address,
            lease_s=lease_s,
            may_leave=may_leave,
            replicated_process=replicated_process,
        )
        attach = self._stub.Attach
        response = self._call(attach, request, "attach", timeout_s, wait_for_ready=waits)
        counters = codec.counters_from_wire(response.counters)
        return PsAnswer(response.ps_generation, counters, response.draining)

    def find_job(self, *, timeout_s: float) -> JobOnPs:
        """Ask which job this ps serves.

        Raises:
            PeerLostError: No answer.
        """
        request = ps_pb2.GetJobRequest()
        response = self._call(self._stub.GetJob, request, "ask for the chief", timeout_s)
        return from_message(JobOnPs, response, silent_s=response.chief_silent_s)

    def try_model_dir(self, probe: str, *, timeout_s: float) -> str:
        """Have this ps leave a small file in its model directory; the directory, for people.

        Args:
            probe: Hexadecimal digits in the file's name; see ``storage.probe_name``.
            timeout_s: Unit: seconds.

        Raises:
            ConfigurationError: It was given no model directory.
            StorageError: It cannot write there.
            PeerLostError: No answer.
        """
        request = ps_pb2.SaveShardsRequest(probe=probe)
        # The ps may have begun to listen only now, which the channel notices a little later.
        response = self._call(
            self._stub.SaveShards, request, "try to write", timeout_s, wait_for_ready=True
        )
        return response.model_dir

    def ask(self, kind: str, argument: str, *, timeout_s: float) -> bytes:
        """Ask this ps something; returns its answer.

        Raises:
            ConfigurationError: It does not know such a question.
            PeerLostError: No answer.
        """
        request = ps_pb2.AskRequest(kind=kind, argument=argument)
        answer: bytes = self._call(self._stub.Ask, request, "ask", timeout_s).answer
        return answer

    def verify_shards(self, checkpoint: str, files: Sequence[str], *, timeout_s: float) -> None:
        """Have this ps check files of a checkpoint in its model directory.

        Raises:
            CheckpointError: One is damaged.
            PeerLostError: No answer.
        """
        self._call(
            self._stub.VerifyShards,
            ps_pb2.VerifyShardsRequest(checkpoint=checkpoint, files=files),
            "verify a checkpoint",
            timeout_s,
        )

    def save_shards(
        self,
        checkpoint: str,
        *,
        timeout_s: float,
        share: int | None = None,
        cut: int = 0,
        base: str = "",
        may_be_base: bool = False,
        process: int = 0,
    ) -> SavedPart:
        """Have this ps write its part of a checkpoint, below its own model directory.

        Args:
            checkpoint: Name of the checkpoint.
            share: Number of a share that it leads; None: its own.
            cut: Number of the cut whose values are saved; 0: those of now.
            base: Name of the whole checkpoint since which changes are saved, where the ps knows
                them; empty: everything is.
            may_be_base: Whether deltas of this checkpoint may follow.
            process: The process of this ps that has the variables; 0: any that leads the share.
            timeout_s: Unit: seconds.

        Raises:
            ConfigurationError: It was given no model directory.
            StorageError: It cannot write there.
            MovedError: It does not lead the share.
            CutVoidError: The values of the cut were not kept.
            FencedError: It is another process.
            PeerLostError: No answer.
        """
        response = self._call(
            self._stub.SaveShards,
            ps_pb2.SaveShardsRequest(
                checkpoint=checkpoint,
                share=self.task.index if share is None else share,
                cut=cut,
                base=base,
                may_be_base=may_be_base,
                expected_ps_generation=process,
                trace=current(),
            ),
            "save",
            timeout_s,
        )
        applied: dict[int, dict[TaskId, tuple[int, int]]] = {}
        for push in response.applied:
            who = codec.sender_of(push)
            applied.setdefault(push.block, {})[who.task] = (who.generation, push.sequence)
        return SavedPart(
            tuple(TensorRecord(**_fields(item)) for item in response.tensors),
            tuple(
                SavedShard(
                    codec.shard_from_wire(item.shard),
                    item.version,
                    item.updates,
                    item.block,
                    item.since_base,
                )
                for item in response.shards
            ),
            applied,
            response.global_step,
            {item.name: FileRecord(**_fields(item)) for item in response.files},
            response.pushes,
        )

    # -- cuts ----------------------------------------------------------------------------------

    def begin_cut(
        self, chief: Incarnation, share: int, order: CutOrder, *, timeout_s: float
    ) -> None:
        """Order this ps to hold the pushes that are not in a cut.

        Raises:
            MovedError: It does not lead the share.
            FencedError: It knows of a later cut.
            PeerLostError: No answer.
        """
        request = ps_pb2.BeginCutRequest(
            chief=codec.incarnation_to_wire(chief),
            share=share,
            cut=order.number,
            workers=[codec.incarnation_to_wire(who) for who in order.workers],
            hold_s=order.hold_s,
            with_slots=order.with_slots,
            may_be_base=order.may_be_base,
            rows_only=order.rows_only,
        )
        if order.reader is not None:
            request.reader.CopyFrom(codec.incarnation_to_wire(order.reader))
        self._call(self._stub.BeginCut, request, "cut", timeout_s)

    def finish_cut(
        self, chief: Incarnation, share: int, number: int, *, timeout_s: float
    ) -> tuple[int, Marks]:
        """Wait until this ps has the marks of all workers.

        Returns:
            (global step as far as this ps knows, the marks)

        Raises:
            CutVoidError: A mark is missing.
            MovedError: It does not lead the share.
            PeerLostError: No answer.
        """
        request = ps_pb2.FinishCutRequest(
            chief=codec.incarnation_to_wire(chief), share=share, cut=number
        )
        response = self._call(self._stub.FinishCut, request, "cut", timeout_s)
        if response.void_because:
            raise CutVoidError(response.void_because, number=number, task=self.task)
        return response.global_step, marks_from_wire(response.marks)

    def end_cut(self, chief: Incarnation, share: int, number: int, *, timeout_s: float) -> None:
        """Let all pushes go on, and keep nothing of a cut. Idempotent.

        Raises:
            MovedError: It does not lead the share.
            PeerLostError: No answer.
        """
        request = ps_pb2.EndCutRequest(
            chief=codec.incarnation_to_wire(chief), share=share, cut=number
        )
        self._call(self._stub.EndCut, request, "cut", timeout_s)

    # -- shares --------------------------------------------------------------------------------

    def lead_share(self, chief: Incarnation, order: Lead, *, timeout_s: float) -> None:
        """Order this ps to lead a share. Idempotent by epoch.

        Raises:
            FencedError: It has not everything of it, or knows of a later epoch.
            PeerLostError: No answer.
        """
        followers = [codec.task_to_wire(task) for task in order.followers]
        request = ps_pb2.LeadShareRequest(
            share=order.share,
            epoch=order.epoch,
            followers=followers,
            chief=codec.incarnation_to_wire(chief),
            leader_ended=order.leader_ended,
        )
        self._call(self._stub.LeadShare, request, "lead", timeout_s)

    def hand_over_share(
        self, chief: Incarnation, order: HandOver, successor_address: str, *, timeout_s: float
    ) -> None:
        """Order this ps to hand a share over. When it has answered, it answers nothing else of the
        share, and its successor leads if that could be told so.

        Args:
            chief: Chief that orders it.
            order: The order.
            successor_address: Address of the ps that is to lead.
            timeout_s: Unit: seconds.

        Raises:
            FencedError: It has heard of that epoch, or of a later one.
            PeerLostError: No answer.
        """
        request = ps_pb2.HandOverShareRequest(
            share=order.share,
            epoch=order.epoch,
            chief=codec.incarnation_to_wire(chief),
            successor=codec.task_to_wire(order.successor),
            successor_address=successor_address,
            address=self.address,
        )
        self._call(self._stub.HandOverShare, request, "hand over", timeout_s)

    def give_up_share(self, chief: Incarnation, order: GiveUpShare, *, timeout_s: float) -> None:
        """Order this ps to give up a share. Idempotent; when it has answered, it answers nothing
        else of the share.

        Raises:
            FencedError: It has been copied to again in that epoch.
            PeerLostError: No answer.
        """
        request = ps_pb2.GiveUpShareRequest(
            share=order.share, epoch=order.epoch, chief=codec.incarnation_to_wire(chief)
        )
        self._call(self._stub.GiveUpShare, request, "give up", timeout_s)

    def copy_share(
        self, chief: Incarnation, order: CopyTo, address: str, *, timeout_s: float
    ) -> None:
        """Order this ps to copy a share to another one. Idempotent; returns before it is copied.

        Args:
            chief: The chief that gives the order.
            order: The order.
            address: Address of the follower.
            timeout_s: Unit: seconds.

        Raises:
            FencedError: This ps does not lead the share in that epoch.
            PeerLostError: No answer.
        """
        request = ps_pb2.CopyShareRequest(
            share=order.share,
            epoch=order.epoch,
            follower=codec.task_to_wire(order.follower),
            address=address,
            chief=codec.incarnation_to_wire(chief),
        )
        self._call(self._stub.CopyShare, request, "copy", timeout_s)

    def watch_shares(
        self, chief: Incarnation, seen: int, *, timeout_s: float
    ) -> tuple[int, PsReport]:
        """Wait until the roles of this ps in its shares change, for half a second at most.

        Args:
            chief: The chief that asks.
            seen: Number of changes in the last answer; 0: answer at once.
            timeout_s: Unit: seconds.

        Returns:
            (number of changes until now, the report)

        Raises:
            PeerLostError: No answer: the process has ended, or stands still, or the watch is over.
        """
        request = ps_pb2.WatchSharesRequest(seen=seen, chief=codec.incarnation_to_wire(chief))
        response = self._watch(self._stub.WatchShares, request, timeout_s)
        states = tuple(_state_from_wire(each) for each in response.shares)
        return response.changes, PsReport(response.ps_generation, response.draining, states)

    def has_ended(self, timeout_s: float) -> bool:
        """Return whether the ps's machine says that no process listens at its address any more."""
        return is_refused(self.address, timeout_s)

    def end_job(
        self, phase: Phase, reason: str, *, timeout_s: float, began_again: bool = False
    ) -> None:
        """Tell this ps that the job is over.

        Args:
            phase: Phase in which the job has ended.
            reason: Why.
            timeout_s: Unit: seconds.
            began_again: The job has failed since the process before this one ended. One that has
                nothing of it yet may wait for the next chief.

        Raises:
            PeerLostError: No answer.
        """
        request = ps_pb2.EndJobRequest(
            phase=codec.PHASES.to_wire(phase), reason=reason, began_again=began_again
        )
        # A channel that was refused notices a little later that the ps listens now.
        waits = self.is_there(timeout_s)
        self._call(self._stub.EndJob, request, "end the job", timeout_s, wait_for_ready=waits)


def _state_from_wire(message: ps_pb2.ShareState) -> ShareState:
    role = ps_pb2.ReplicaRole.Name(message.role).removeprefix("REPLICA_ROLE_")
    followers = tuple(
        from_message(FollowerState, each, task=codec.task_from_wire(each.task))
        for each in message.followers
    )
    return from_message(ShareState, message, role=ReplicaRole[role], followers=followers)


def _fields(message: Message) -> dict[str, Any]:
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
