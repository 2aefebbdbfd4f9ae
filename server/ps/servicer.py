"""The unary calls of a ps: messages in, :class:`Store` calls, messages out. No decisions here."""

from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from ...core import codec, error_table
from ...core.checkpoint import CheckpointReader
from ...core.checkpoint.saved_part import SavedPart
from ...core.checkpoint.storage import storage_error, write_probe
from ...core.errors import WindlassError
from ...core.task import Incarnation
from ...proto.v1 import common_pb2, ps_pb2
from .lease import ChiefLease
from .model_dir import PsModelDir
from .saving import save_shards
from .session_limiter import SessionLimiter
from .store import Store

_SERVICE = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]
SERVICE: str = _SERVICE.full_name


class ParameterServerServicer:
    """Serves one store. Thread-safe: every call has a thread of the server's pool.

    Args:
        store: The variables.
        lease: Who leads the job; told by ``Attach`` and ``EndJob``.
        generation: Of this ps; a client that finds another one knows its variables are gone.
        limiter: Counts the workers that have a session.
        model_dir: Where checkpoints are.
    """

    def __init__(
        self,
        store: Store,
        lease: ChiefLease,
        generation: int,
        limiter: SessionLimiter,
        model_dir: PsModelDir,
    ) -> None:
        self._store = store
        self._lease = lease
        self._generation = generation
        self._limiter = limiter
        self._model_dir = model_dir

    def Define(
        self, request: ps_pb2.DefineRequest, context: grpc.ServicerContext
    ) -> ps_pb2.DefineResponse:
        """Create, look up or bind. Idempotent; a repeat gives the same answer."""
        try:
            who = codec.incarnation_from_wire(getattr(request, "from"))
            self._lease.check_job(who)
            shards = [codec.shard_from_wire(message) for message in request.shards]
            if request.create:
                named = request.checkpoint
                source = self._model_dir.checkpoint(named) if named else None
                held = self._store.define(shards, who, restore_from=source)
            else:
                held = self._store.lookup(shards, who)
            if request.bind_variables:
                rule = codec.rule_from_wire(request.bind_rule)
                self._store.bind(request.bind_variables, rule, who)
        except (WindlassError, OSError) as error:
            error_table.abort(context, error)
            raise
        return ps_pb2.DefineResponse(
            held=[codec.held_to_wire(item) for item in held], held_bytes=self._store.held_bytes()
        )

    def Attach(
        self, request: ps_pb2.AttachRequest, context: grpc.ServicerContext
    ) -> ps_pb2.AttachResponse:
        """Renew the chief's lease. A second living chief is refused."""
        try:
            chief = codec.incarnation_from_wire(request.chief)
            self._lease.renew(chief, request.chief_address, request.lease_s)
        except WindlassError as error:
            error_table.abort(context, error)
            raise
        return ps_pb2.AttachResponse(
            ps_generation=self._generation,
            counters=codec.counters_to_wire(self._store.counters(self._limiter.count)),
            draining=self._lease.draining,
        )

    def GetJob(
        self,
        request: ps_pb2.GetJobRequest,
        context: grpc.ServicerContext,
    ) -> ps_pb2.GetJobResponse:
        """Where the chief is."""
        return ps_pb2.GetJobResponse(
            chief_address=self._lease.chief_address,
            phase=common_pb2.JOB_PHASE_RUNNING,
            job=self._lease.job,
            chief_silent_s=self._lease.silent_s,
            last_generation=max(self._lease.chief_generation, self._store.last_generation),
            shards=self._store.counters(0).shards,
            global_step=self._store.global_step,
        )

    def SaveShards(
        self, request: ps_pb2.SaveShardsRequest, context: grpc.ServicerContext
    ) -> ps_pb2.SaveShardsResponse:
        """Write this ps's part of a checkpoint. A repeat overwrites the same file."""
        task, place = str(self._store.task), self._model_dir.url
        try:
            if request.WhichOneof("what") == "probe":
                write_probe(self._model_dir.folder(), request.probe, task)
                return ps_pb2.SaveShardsResponse(model_dir=place)
            part = save_shards(self._store, self._model_dir.checkpoint(request.checkpoint))
        except OSError as error:
            failure = storage_error(error, f"{place}/{request.checkpoint}", task)
            error_table.abort(context, failure)
            raise
        except WindlassError as error:
            error_table.abort(context, error)
            raise
        return _saved_to_wire(part, place)

    def VerifyShards(
        self, request: ps_pb2.VerifyShardsRequest, context: grpc.ServicerContext
    ) -> ps_pb2.VerifyShardsResponse:
        """Check files of a checkpoint by their digests. Changes nothing."""
        try:
            reader = CheckpointReader(self._model_dir.checkpoint(request.checkpoint))
            reader.verify(list(request.files))
        except WindlassError as error:
            error_table.abort(context, error)
            raise
        return ps_pb2.VerifyShardsResponse()

    def EndJob(
        self,
        request: ps_pb2.EndJobRequest,
        context: grpc.ServicerContext,
    ) -> ps_pb2.EndJobResponse:
        """The job is over: this ps leaves after answering."""
        self._lease.end(codec.phase_from_wire(request.phase), request.reason)
        return ps_pb2.EndJobResponse()


def _saved_to_wire(part: SavedPart, model_dir: str) -> ps_pb2.SaveShardsResponse:
    applied = []
    for block, marks in part.applied.items():
        for task, (generation, sequence) in marks.items():
            message = ps_pb2.AppliedPush(block=block, sequence=sequence)
            who = codec.incarnation_to_wire(Incarnation(task, generation))
            getattr(message, "from").CopyFrom(who)
            applied.append(message)
    return ps_pb2.SaveShardsResponse(
        tensors=[ps_pb2.SavedTensor(**record.model_dump()) for record in part.tensors],
        shards=[
            ps_pb2.SavedShard(
                shard=codec.shard_to_wire(item.shard),
                version=item.version,
                updates=item.updates,
                block=item.block,
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


def add_to_server(servicer: ParameterServerServicer, server: grpc.Server) -> None:
    """Register the service as its contract describes it."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method.name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in _SERVICE.methods
    }
    service = grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers)
    server.add_generic_rpc_handlers((service,))
