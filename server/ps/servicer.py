"""The unary calls of a ps: messages in, calls of its shares, messages out. No decisions here."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from google.protobuf.message import Message

from ...cluster.spec import CHIEF
from ...core.checkpoint import CheckpointReader
from ...core.checkpoint.folder import Folder
from ...core.checkpoint.manifest import SavedPart
from ...core.checkpoint.storage import storage_error, write_probe
from ...core.errors import MovedError
from ...core.report import PsCounters
from ...core.spans import context_from_wire, part_of
from ...core.task import Incarnation, Phase, TaskId
from ...core.wire import codec
from ...core.wire.bounds import MAX_NAMES, check_count
from ...net.auth.guard import Visitor
from ...net.unary import Servicer
from ...proto.v1 import common_pb2, ps_pb2
from .lease import ChiefLease
from .parts import ServedShares
from .saving import PsModelDir, give_way, save_shards
from .store import Store

Save = Callable[[Store, Folder, ps_pb2.SaveShardsRequest], SavedPart]
"""Writes a store's part of the checkpoint that is asked for to its folder."""

SERVICE = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]


def calls_of(task: TaskId, *implementations: object) -> Servicer:
    """Collect the calls of a ps from the objects that have them; what none has is refused.

    Args:
        task: The ps, for messages.
        implementations: Objects with a method for each call that they serve.
    """

    def refuse(request: Message, _: Visitor) -> Message:
        call = type(request).__name__.removesuffix("Request")
        raise MovedError(
            f"{task} does not serve {call}: it has its own share alone, and shares do not move "
            "(ps_shares, ps_replicas); say the same of them on the chief and all ps",
            task=task,
        )

    return {
        method.name: next(
            (getattr(each, method.name) for each in implementations if hasattr(each, method.name)),
            refuse,
        )
        for method in SERVICE.methods
    }


class ParameterServerServicer:
    """Serves the shares of a ps. Thread-safe: every call has a thread of the server's pool.

    Args:
        task: Task of the ps.
        shares: The variables.
        lease: Lease of the job's chief; updated by ``Attach`` and ``EndJob``.
        generation: Generation of this ps; if it changes, a client knows its variables are gone.
        counters: Reads the counters of this ps.
        model_dir: Directory of the checkpoints.
        save: Writes a part of a checkpoint.
    """

    def __init__(
        self,
        task: TaskId,
        shares: ServedShares,
        lease: ChiefLease,
        generation: int,
        counters: Callable[[], PsCounters],
        model_dir: PsModelDir,
        save: Save = lambda store, folder, _: save_shards(store, folder),
    ) -> None:
        self._task = task
        self._shares = shares
        self._lease = lease
        self._generation = generation
        self._counters = counters
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="save", initializer=give_way)
        self._model_dir = model_dir
        self._save = save

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
        store.confirm()
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
            counters=codec.counters_to_wire(self._counters()),
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
            with part_of(context_from_wire(request.trace), "checkpoint", self._task.short):
                part = self._saver.submit(self._save, store, folder, request).result()
        except OSError as error:
            raise storage_error(error, f"{place}/{request.checkpoint}", task) from error
        return _saved_to_wire(part, place)

    def VerifyShards(
        self, request: ps_pb2.VerifyShardsRequest, _: Visitor
    ) -> ps_pb2.VerifyShardsResponse:
        """Check files of a checkpoint by their digests. Changes nothing."""
        reader = CheckpointReader(self._model_dir.checkpoint(request.checkpoint))
        reader.verify(list(request.files))
        return ps_pb2.VerifyShardsResponse()

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
