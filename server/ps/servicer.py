"""The gRPC face of a ps: messages in, :class:`Store` calls, messages out. No decisions here."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import numpy as np

from ...core import codec, error_table
from ...core.arrays import Array
from ...core.errors import (
    FencedError,
    LimitExceededError,
    RefusedError,
    ShapeMismatchError,
    WindlassError,
)
from ...core.settings import Settings
from ...core.steps import HeldShard, LayoutEntry
from ...core.task import Incarnation, TaskId
from ...core.versions import check_protocol, own_versions
from ...proto.v1 import common_pb2, ps_pb2, ps_pb2_grpc
from .block import StepFacts
from .layout import Layout
from .lease import ChiefLease
from .payload import PayloadReader
from .saving import save_shards
from .store import Push, Store

_MAX_LAYOUTS = 4096  # per session: a program has a few; a leak must not fill the ps

Requests = Iterator[ps_pb2.ExchangeRequest]
Replies = Iterator[ps_pb2.ExchangeResponse]


class ParameterServerServicer(ps_pb2_grpc.ParameterServerServicer):
    """Serves one store. Thread-safe: every call has a thread of the server's pool.

    Args:
        store: The variables.
        lease: Who leads the job; told by ``Attach`` and ``EndJob``.
        generation: This ps's life; a client that finds another one knows its variables are gone.
        settings: For the bounds.
    """

    def __init__(
        self, store: Store, lease: ChiefLease, generation: int, settings: Settings
    ) -> None:
        self._store = store
        self._lease = lease
        self._generation = generation
        self._settings = settings
        self._seats = _Seats(store.task, settings.max_sessions)

    def Define(
        self, request: ps_pb2.DefineRequest, context: grpc.ServicerContext
    ) -> ps_pb2.DefineResponse:
        """Create, look up or bind. Idempotent; a repeat gives the same answer."""
        try:
            who = codec.incarnation_from_wire(getattr(request, "from"))
            shards = [codec.shard_from_wire(message) for message in request.shards]
            if request.create:
                held = self._store.define(shards, who, restore_from=request.restore_from)
            else:
                held = self._store.lookup(shards, who)
            if request.bind_variables:
                rule = codec.rule_from_wire(request.bind_rule)
                self._store.bind(request.bind_variables, rule, who)
        except (WindlassError, OSError) as error:
            error_table.abort(context, error)
            raise
        return ps_pb2.DefineResponse(
            held=[_held_to_wire(item) for item in held], held_bytes=self._store.held_bytes()
        )

    def Exchange(self, request_iterator: Requests, context: grpc.ServicerContext) -> Replies:
        """One worker's session: steps in order, each answered before the next is read."""
        try:
            with self._seats.taken():
                yield from self._serve(request_iterator)
        except WindlassError as error:
            error_table.abort(context, error)

    def _serve(self, requests: Requests) -> Replies:
        session: _Session | None = None
        for request in requests:
            kind = request.WhichOneof("kind")
            if kind == "hello":
                session = self._welcome(request.hello)
                yield ps_pb2.ExchangeResponse(
                    welcome=ps_pb2.Welcome(
                        ps_generation=self._generation,
                        versions=codec.versions_to_wire(own_versions()),
                        max_step_bytes=self._settings.max_step_bytes,
                        max_message_bytes=self._settings.max_message_bytes,
                    )
                )
            elif session is None:
                raise RefusedError("the first message of a session must be Hello")
            elif kind == "layout":
                session.add_layout(request.layout)
            elif kind == "step":
                yield from session.step(request.step, request.data, requests)
            else:
                raise RefusedError("a payload frame without a step")

    def _welcome(self, hello: ps_pb2.Hello) -> "_Session":
        who = codec.incarnation_from_wire(getattr(hello, "from"))
        theirs = codec.versions_from_wire(hello.versions)
        check_protocol(own_versions(), theirs, peer=str(who.task))
        if hello.expected_ps_generation not in (0, self._generation):
            raise FencedError(
                f"{self._store.task} restarted and lost its variables (generation "
                f"{self._generation}, was {hello.expected_ps_generation}); restart the job to restore its "
                "last checkpoint",
                task=self._store.task,
            )
        self._store.meet(who)
        return _Session(self._store, who, self._settings)

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
            counters=codec.counters_to_wire(self._store.counters(self._seats.count)),
            draining=self._lease.draining,
        )

    def GetJob(
        self,
        request: ps_pb2.GetJobRequest,
        context: grpc.ServicerContext,
    ) -> ps_pb2.GetJobResponse:
        """Where the chief is."""
        return ps_pb2.GetJobResponse(
            chief_address=self._lease.chief_address, phase=common_pb2.JOB_PHASE_RUNNING
        )

    def SaveShards(
        self, request: ps_pb2.SaveShardsRequest, context: grpc.ServicerContext
    ) -> ps_pb2.SaveShardsResponse:
        """Write this ps's part of a checkpoint. A repeat overwrites the same file."""
        try:
            part = save_shards(self._store, request.directory)
        except OSError as error:
            failure = RefusedError(
                f"{self._store.task} cannot write to {request.directory}: {error}. Every ps must be able "
                "to write to model_dir",
                task=self._store.task,
            )
            error_table.abort(context, failure)
            raise
        applied = []
        for block, who, sequence in part.applied:
            message = ps_pb2.AppliedPush(block=block, sequence=sequence)
            getattr(message, "from").CopyFrom(codec.incarnation_to_wire(who))
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
        )

    def EndJob(
        self,
        request: ps_pb2.EndJobRequest,
        context: grpc.ServicerContext,
    ) -> ps_pb2.EndJobResponse:
        """The job is over: this ps leaves after answering."""
        self._lease.end(codec.phase_from_wire(request.phase), request.reason)
        return ps_pb2.EndJobResponse()


class _Seats:
    """Counts sessions against their limit."""

    def __init__(self, task: TaskId, limit: int) -> None:
        self._task = task
        self._limit = limit
        self._lock = threading.Lock()
        self.count = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """One seat, for as long as a session lasts.

        Raises:
            LimitExceededError: None is left.
        """
        with self._lock:
            if self.count >= self._limit:
                raise LimitExceededError(
                    f"{self._task} serves {self._limit} sessions already (max_sessions); raise "
                    "WINDLASS_MAX_SESSIONS on the ps, or run fewer workers",
                    limit="max_sessions",
                )
            self.count += 1
        try:
            yield
        finally:
            with self._lock:
                self.count -= 1


class _Session:
    """One stream of one worker. Used by one thread."""

    def __init__(self, store: Store, who: Incarnation, settings: Settings) -> None:
        self._store = store
        self._who = who
        self._settings = settings
        self._layouts: dict[int, Layout | ps_pb2.Layout] = {0: Layout()}

    def add_layout(self, message: ps_pb2.Layout) -> None:
        """Keep a layout; the first step that uses it compiles it, and hears what is wrong with it."""
        if len(self._layouts) > _MAX_LAYOUTS:
            raise LimitExceededError(
                f"more than {_MAX_LAYOUTS} different sets of variables in one session; push and pull the "
                "same sets from step to step",
                limit="layouts",
            )
        self._layouts[message.layout_id] = message

    def step(self, step: ps_pb2.Step, first: bytes, requests: Requests) -> Replies:
        """Carry out one step. A refused one is answered with its error; the session goes on."""
        if step.payload_bytes > self._settings.max_step_bytes:
            # Not read to its end: the limit is there to not receive it.
            raise LimitExceededError(
                f"{self._store.task}: a step of {step.payload_bytes} bytes is over "
                f"max_step_bytes={self._settings.max_step_bytes}; raise WINDLASS_MAX_STEP_BYTES on the ps, "
                "or spread the variables over more ps",
                task=self._store.task,
                limit="max_step_bytes",
            )
        payload = PayloadReader(first, step.payload_bytes, lambda: _next_data(requests))
        self._store.count_bytes(received=step.payload_bytes)
        reply = ps_pb2.StepReply(request_id=step.request_id)
        arrays: list[Array] = []
        try:
            arrays = self._run(step, payload, reply)
        except WindlassError as error:
            payload.drain()
            self._store.count_refused()
            reply.error.CopyFrom(error_table.to_detail(error))
        buffers = [codec.as_bytes(array) for array in arrays]
        reply.payload_bytes = codec.total_bytes(buffers)
        self._store.count_bytes(sent=reply.payload_bytes)
        frames = codec.frames(buffers, self._settings.chunk_bytes)
        yield ps_pb2.ExchangeResponse(step=reply, data=next(frames, b""))
        for frame in frames:
            yield ps_pb2.ExchangeResponse(data=frame)

    def _run(
        self, step: ps_pb2.Step, payload: PayloadReader, reply: ps_pb2.StepReply
    ) -> list[Array]:
        push_layout, pull_layout = self._layout(step.push_layout), self._layout(step.pull_layout)
        push_counts, pull_counts = list(step.push_rows), list(step.pull_rows)
        self._check_size(step, push_layout, pull_layout)
        push_rows = tuple(_take_rows(payload, count) for count in push_counts)
        pull_rows = [_take_rows(payload, count) for count in pull_counts]
        self._store.check_rows(push_layout, push_rows)
        self._store.check_rows(pull_layout, pull_rows)
        if step.sequence:
            facts = StepFacts(
                self._who, step.sequence, step.global_step, step.gradient_scale or 1.0
            )
            push = Push(push_layout, push_rows, facts, step.step_increment)
            result = self._store.push(push, payload.take)
            reply.global_step = result.global_step
            reply.staleness = result.staleness
            reply.duplicate = result.duplicate
        else:
            reply.global_step = self._store.global_step
        return self._store.read(pull_layout, pull_rows) if step.pull_layout else []

    def _layout(self, layout_id: int) -> Layout:
        layout = self._layouts.get(layout_id)
        if layout is None:
            raise RefusedError(f"layout {layout_id} was not sent in this session")
        if isinstance(layout, Layout):
            return layout
        compiled = self._store.compile(
            [
                LayoutEntry(
                    item.variable, item.part, codec.operation_from_wire(item.operation), item.sparse
                )
                for item in layout.entries
            ]
        )
        self._layouts[layout_id] = compiled
        return compiled

    def _check_size(self, step: ps_pb2.Step, push: Layout, pull: Layout) -> None:
        if (len(step.push_rows), len(step.pull_rows)) != (push.num_sparse, pull.num_sparse):
            raise ShapeMismatchError(
                f"row counts for {len(step.push_rows)} pushed and {len(step.pull_rows)} pulled entries; "
                f"the layouts have {push.num_sparse} and {pull.num_sparse} sparse ones"
            )
        rows = sum(step.push_rows) + sum(step.pull_rows)
        expected = 8 * rows + push.num_bytes(step.push_rows)
        if step.payload_bytes != expected:
            raise ShapeMismatchError(
                f"{self._store.task}: {self._who.task} sent {step.payload_bytes} bytes for a push of "
                f"{expected}; it was built from another model version",
                task=self._who.task,
                expected=expected,
                found=step.payload_bytes,
            )


def _next_data(requests: Requests) -> bytes:
    request = next(requests, None)
    if request is None:
        raise RefusedError("the session ended in the middle of a step")
    return request.data


def _take_rows(payload: PayloadReader, count: int) -> Array:
    # Copied: the payload's memory is reused while the values are read.
    return np.frombuffer(payload.take(8 * count), np.int64).copy()


def _held_to_wire(item: HeldShard) -> ps_pb2.HeldShard:
    return ps_pb2.HeldShard(
        shard=codec.shard_to_wire(item.shard), initialized=item.initialized, restored=item.restored
    )
