"""The unary calls of a ps: messages in, calls of its shares, messages out. No decisions here."""

from concurrent.futures import ThreadPoolExecutor

from ...cluster.replication.configuration import CopyTo, GiveUpShare, HandOver, Lead
from ...cluster.replication.reports import ShareState
from ...cluster.roles import CHIEF
from ...core.checkpoint import CheckpointReader
from ...core.checkpoint.saved_part import SavedPart
from ...core.checkpoint.storage import storage_error, write_probe
from ...core.errors import CutVoidError
from ...core.states import Phase
from ...core.task import Incarnation, TaskId
from ...core.wire import codec
from ...core.wire.bounds import (
    MAX_LEASE_S,
    MAX_NAME_BYTES,
    MAX_NAMES,
    check_count,
    check_number,
    check_text,
)
from ...core.wire.cut_marks import CutMark, elements_to_wire, marks_to_wire
from ...core.wire.same_fields import to_message
from ...net.auth.guard import Visitor
from ...proto.v1 import common_pb2, ps_pb2
from .bases import SaveOrder
from .lease import ChiefLease
from .model_dir import PsModelDir
from .replication.records import HandedOver
from .replication.shares import PsShares
from .saving import give_way, save_shards
from .session_limiter import SessionLimiter
from .store import Store

WATCH_S = 0.5
"""A call that waits for a change is answered after this long. Unit: seconds."""

SERVICE = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]


class ParameterServerServicer:
    """Serves the shares of a ps. Thread-safe: every call has a thread of the server's pool.

    Args:
        task: Task of the ps.
        shares: The variables.
        lease: Lease of the job's chief; updated by ``Attach`` and ``EndJob``.
        generation: Generation of this ps; if it changes, a client knows its variables are gone.
        limiter: Counts the workers that have a session.
        model_dir: Directory of the checkpoints.
    """

    def __init__(
        self,
        task: TaskId,
        shares: PsShares,
        lease: ChiefLease,
        generation: int,
        limiter: SessionLimiter,
        model_dir: PsModelDir,
    ) -> None:
        self._task = task
        self._shares = shares
        self._lease = lease
        self._generation = generation
        self._limiter = limiter
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="save", initializer=give_way)
        self._model_dir = model_dir

    def Define(self, request: ps_pb2.DefineRequest, visitor: Visitor) -> ps_pb2.DefineResponse:
        """Create, look up or bind. Idempotent; a repeat gives the same answer."""
        who = codec.sender_of(request)
        self._lease.check_job(who)
        with self._shares.at(request.share).serving() as store:
            return self._define(request, store, who, visitor)

    def _define(
        self, request: ps_pb2.DefineRequest, store: Store, who: Incarnation, visitor: Visitor
    ) -> ps_pb2.DefineResponse:
        table = store.table
        visitor.check("define CREATE" if request.create else "define LOOKUP")
        shards = [codec.shard_from_wire(message) for message in request.shards]
        if request.create:
            named = request.checkpoint
            source = self._model_dir.checkpoint(named) if named else None
            held = table.define(shards, who, restore_from=source, still_wanted=visitor.is_waiting)
        else:
            check_count(request.names, MAX_NAMES, "names", who.task)
            held = table.lookup(shards, who) + table.named(request.names)
        if request.bind_variables:
            visitor.check("define BIND")
            rule = codec.rule_from_wire(request.bind_rule)
            table.bind(request.bind_variables, rule, who)
        store.records.confirm()
        return ps_pb2.DefineResponse(
            held=[codec.held_to_wire(item) for item in held], held_bytes=table.held_bytes()
        )

    def Attach(self, request: ps_pb2.AttachRequest, _: Visitor) -> ps_pb2.AttachResponse:
        """Renew the chief's lease. A second living chief is refused."""
        chief = codec.incarnation_from_wire(request.chief)
        self._lease.renew(chief, request.chief_address, request.lease_s)
        self._lease.may_leave = request.may_leave
        # Said of another process of this ps, it may be no longer so.
        self._lease.is_replicated |= request.replicated_process == self._generation
        return ps_pb2.AttachResponse(
            ps_generation=self._generation,
            counters=codec.counters_to_wire(self._shares.counters(self._limiter.count)),
            draining=self._lease.draining,
        )

    def GetJob(
        self,
        request: ps_pb2.GetJobRequest,
        _: Visitor,
    ) -> ps_pb2.GetJobResponse:
        """Return the address of the chief, and what this ps holds."""
        leader = self._lease.leader
        shards, global_step, takes_part = self._shares.held()
        return ps_pb2.GetJobResponse(
            chief_address=self._lease.chief_address,
            phase=common_pb2.JOB_PHASE_RUNNING,
            job=self._lease.job,
            chief_silent_s=self._lease.silent_s,
            last_generation=self._lease.chief_generation,
            shards=shards,
            global_step=global_step,
            has_shares=takes_part,
            gives_way=leader is not None and leader.type != CHIEF,
        )

    def SaveShards(
        self, request: ps_pb2.SaveShardsRequest, _: Visitor
    ) -> ps_pb2.SaveShardsResponse:
        """Write this ps's part of a checkpoint, one at a time. A repeat overwrites the same
        file.
        """
        task, place = str(self._task), self._model_dir.url
        try:
            if request.WhichOneof("what") == "probe":
                write_probe(self._model_dir.folder(), request.probe, task)
                return ps_pb2.SaveShardsResponse(model_dir=place)
            store = self._shares.led(request.share)
            store.check_contents(request.expected_ps_generation)
            folder = self._model_dir.checkpoint(request.checkpoint)
            image = store.cuts.kept(request.cut, None) if request.cut else None
            order = SaveOrder(request.checkpoint, request.base, request.may_be_base)
            part = self._saver.submit(save_shards, store, folder, image=image, order=order).result()
        except OSError as error:
            raise storage_error(error, f"{place}/{request.checkpoint}", task) from error
        return _saved_to_wire(part, place)

    # -- cuts ----------------------------------------------------------------------------------

    def BeginCut(self, request: ps_pb2.BeginCutRequest, _: Visitor) -> ps_pb2.BeginCutResponse:
        """Hold pushes that are not in a cut. A repeat changes nothing."""
        self._lease.check_chief(codec.incarnation_from_wire(request.chief))
        check_number(request.hold_s, MAX_LEASE_S, "hold_s", self._task)
        workers = {codec.incarnation_from_wire(each) for each in request.workers}
        cuts = self._shares.led(request.share).cuts
        reader = codec.incarnation_from_wire(request.reader) if request.HasField("reader") else None
        cuts.begin(
            request.cut,
            workers,
            request.hold_s,
            with_slots=request.with_slots,
            may_be_base=request.may_be_base,
            reader=reader,
            rows_only=request.rows_only,
        )
        return ps_pb2.BeginCutResponse()

    def MarkCut(self, request: ps_pb2.MarkCutRequest, _: Visitor) -> ps_pb2.MarkCutResponse:
        """Take a worker's mark. A repeat changes nothing."""
        who = codec.sender_of(request)
        self._lease.check_job(who)
        cuts = self._shares.led(request.share).cuts
        cuts.mark(request.cut, who, CutMark(request.sequence, request.pushes))
        return ps_pb2.MarkCutResponse()

    def FinishCut(self, request: ps_pb2.FinishCutRequest, _: Visitor) -> ps_pb2.FinishCutResponse:
        """Wait until all workers have marked, or the cut is void. May be repeated."""
        self._lease.check_chief(codec.incarnation_from_wire(request.chief))
        try:
            moment = self._shares.led(request.share).cuts.finish(request.cut)
        except CutVoidError as error:
            return ps_pb2.FinishCutResponse(void_because=error.message)
        return ps_pb2.FinishCutResponse(
            global_step=moment.global_step,
            marks=marks_to_wire(moment.marks),
        )

    def ReadCut(self, request: ps_pb2.ReadCutRequest, _: Visitor) -> ps_pb2.ReadCutResponse:
        """Read a piece of the values of a cut that was taken for the caller. Each is read once, in
        order.
        """
        who = codec.sender_of(request)
        self._lease.check_job(who)
        image = self._shares.led(request.share).cuts.kept(request.cut, who)
        values = [elements_to_wire(each) for each in image.read(request.piece)]
        return ps_pb2.ReadCutResponse(values=values)

    def EndCut(self, request: ps_pb2.EndCutRequest, _: Visitor) -> ps_pb2.EndCutResponse:
        """Let pushes go on, and keep nothing of a cut. Idempotent."""
        self._lease.check_chief(codec.incarnation_from_wire(request.chief))
        self._shares.led(request.share).cuts.end(request.cut)
        return ps_pb2.EndCutResponse()

    # -- the chief -----------------------------------------------------------------------------

    def VerifyShards(
        self, request: ps_pb2.VerifyShardsRequest, _: Visitor
    ) -> ps_pb2.VerifyShardsResponse:
        """Check files of a checkpoint by their digests. Changes nothing."""
        reader = CheckpointReader(self._model_dir.checkpoint(request.checkpoint))
        reader.verify(list(request.files))
        return ps_pb2.VerifyShardsResponse()

    def LeadShare(self, request: ps_pb2.LeadShareRequest, _: Visitor) -> ps_pb2.LeadShareResponse:
        """Lead a share, or learn who follows. Idempotent by epoch."""
        self._lease.check_chief(codec.incarnation_from_wire(request.chief))
        followers = tuple(codec.task_from_wire(task) for task in request.followers)
        order = Lead(request.share, request.epoch, self._task, followers, request.leader_ended)
        self._shares.at(request.share).lead(order)
        return ps_pb2.LeadShareResponse()

    def HandOverShare(
        self, request: ps_pb2.HandOverShareRequest, _: Visitor
    ) -> ps_pb2.HandOverShareResponse:
        """Have another ps lead a share, and answer nothing else of it any more."""
        chief = codec.incarnation_from_wire(request.chief)
        self._lease.check_chief(chief)
        successor = codec.task_from_wire(request.successor)
        for address in (request.successor_address, request.address):
            check_text(address, MAX_NAME_BYTES, "an address", self._task)
        order = HandOver(request.share, request.epoch, self._task, successor)
        said = HandedOver(request.epoch, chief, request.address)
        self._shares.at(request.share).hand_over(order, request.successor_address, said)
        return ps_pb2.HandOverShareResponse()

    def GiveUpShare(
        self, request: ps_pb2.GiveUpShareRequest, _: Visitor
    ) -> ps_pb2.GiveUpShareResponse:
        """Give up a share, and answer nothing else of it any more. Idempotent by epoch."""
        self._lease.check_chief(codec.incarnation_from_wire(request.chief))
        order = GiveUpShare(request.share, request.epoch, self._task)
        self._shares.at(request.share).give_up(order)
        return ps_pb2.GiveUpShareResponse()

    def CopyShare(self, request: ps_pb2.CopyShareRequest, _: Visitor) -> ps_pb2.CopyShareResponse:
        """Begin to copy a share to another ps. Idempotent."""
        self._lease.check_chief(codec.incarnation_from_wire(request.chief))
        follower = codec.task_from_wire(request.follower)
        check_text(request.address, MAX_NAME_BYTES, "the address of a follower", follower)
        order = CopyTo(request.share, request.epoch, self._task, follower)
        self._shares.copy(order, request.address)
        return ps_pb2.CopyShareResponse()

    def WatchShares(
        self, request: ps_pb2.WatchSharesRequest, _: Visitor
    ) -> ps_pb2.WatchSharesResponse:
        """Return the roles of this ps in its shares, after a change or a while."""
        self._lease.check_chief(codec.incarnation_from_wire(request.chief))
        changes, report = self._shares.watch(request.seen, WATCH_S)
        return ps_pb2.WatchSharesResponse(
            changes=changes,
            ps_generation=report.process,
            draining=report.draining,
            shares=[_state_to_wire(state) for state in report.shares],
        )

    def EndJob(
        self,
        request: ps_pb2.EndJobRequest,
        _: Visitor,
    ) -> ps_pb2.EndJobResponse:
        """End the job: this ps leaves after answering."""
        phase = codec.PHASES.from_wire(request.phase)
        if request.began_again and phase is Phase.FAILED and not self._shares.held()[0]:
            self._lease.forget()
        else:
            self._lease.end(phase, request.reason)
        return ps_pb2.EndJobResponse()


def _state_to_wire(state: ShareState) -> ps_pb2.ShareState:
    role = getattr(ps_pb2, f"REPLICA_ROLE_{state.role.name}")
    followers = [
        to_message(ps_pb2.FollowerState, each, task=codec.task_to_wire(each.task))
        for each in state.followers
    ]
    return to_message(ps_pb2.ShareState, state, role=role, followers=followers)


def _saved_to_wire(part: SavedPart, model_dir: str) -> ps_pb2.SaveShardsResponse:
    applied = []
    for block, marks in part.applied.items():
        for task, (generation, sequence) in marks.items():
            message = ps_pb2.AppliedPush(block=block, sequence=sequence)
            codec.set_sender(message, Incarnation(task, generation))
            applied.append(message)
    return ps_pb2.SaveShardsResponse(
        tensors=[ps_pb2.SavedTensor(**record.model_dump()) for record in part.tensors],
        shards=[
            ps_pb2.SavedShard(
                shard=codec.shard_to_wire(item.shard),
                version=item.version,
                updates=item.updates,
                block=item.block,
                since_base=item.since_base,
            )
            for item in part.shards
        ],
        applied=applied,
        global_step=part.global_step,
        files=[
            ps_pb2.SavedFile(name=name, **record.model_dump())
            for name, record in part.files.items()
        ],
        model_dir=model_dir,
        pushes=part.pushes,
    )
