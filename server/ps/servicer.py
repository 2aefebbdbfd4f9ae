"""The gRPC face of a ps: messages in, :class:`Store` calls, messages out. No decisions here."""

import mmap
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from ...core import codec, error_table
from ...core.arrays import Array, as_bytes
from ...core.errors import (
    FencedError,
    LimitExceededError,
    RefusedError,
    SegmentError,
    ShapeMismatchError,
    WindlassError,
)
from ...core.settings import Settings
from ...core.steps import PushResult, SegmentAddress
from ...core.task import Incarnation, TaskId
from ...core.versions import check_protocol, own_versions
from ...engine.block import Block, StepFacts
from ...net.frames import REQUEST_DATA, field, read_fields
from ...net.shared_memory import FIRST_SEGMENT_BYTES, HEADER_BYTES, SharedSegment
from ...net.tickets import Tickets
from ...proto.v1 import common_pb2, ps_pb2
from .layout import Layout
from .lease import ChiefLease
from .payload import PayloadReader, SegmentReader
from .saving import save_shards
from .store import Push, Store
from .wires import GrpcWire, Piece, Wire, Writer

_SERVICE = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]
SERVICE: str = _SERVICE.full_name
_SMALL_BYTES = 64 * 1024
STREAMS_PER_SEAT = 4  # two to come near, and those a worker gave up that are still at work
_MAX_LAYOUTS = 4096  # per session: a program has a few; a leak must not fill the ps

_Message = TypeVar("_Message", bound=Message)

_HELLO = ps_pb2.ExchangeRequest.HELLO_FIELD_NUMBER
_LAYOUT = ps_pb2.ExchangeRequest.LAYOUT_FIELD_NUMBER
_STEP = ps_pb2.ExchangeRequest.STEP_FIELD_NUMBER
_SEGMENT = ps_pb2.ExchangeRequest.SEGMENT_FIELD_NUMBER
_REPLY = ps_pb2.ExchangeResponse.STEP_FIELD_NUMBER

_NOTHING = Layout()

Pieces = Iterator[Piece]
"""What a session answers, in the order it is to be sent."""


class ParameterServerServicer:
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
        self._tickets = Tickets(STREAMS_PER_SEAT * settings.max_sessions)
        # Where a session may go on: a Unix socket for workers of this machine, a TCP port for all.
        self.local_socket = ""
        self.session_port = 0

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
            held=[codec.held_to_wire(item) for item in held], held_bytes=self._store.held_bytes()
        )

    def Exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Pieces:
        """One worker's session: steps in order, each answered before the next is read."""
        try:
            yield from self.serve(GrpcWire(requests, self._settings.chunk_bytes, context.is_active))
        except WindlassError as error:
            error_table.abort(context, error)

    def serve(self, wire: Wire, *, by_ticket: bool = False) -> Pieces:
        """The answers to a session's messages, whatever carries them.

        Args:
            wire: Brings the messages.
            by_ticket: Whoever comes must show a ticket of a ``Welcome``: nobody asked who it is.

        Raises:
            WindlassError: The session is over.
        """
        # Whoever comes without being asked who it is must not take the place of those who are.
        with nullcontext() if by_ticket else self._seats.stream(), ExitStack() as seat:
            yield from self._serve(wire, seat, by_ticket=by_ticket)

    def _serve(self, wire: Wire, seat: ExitStack, *, by_ticket: bool) -> Pieces:
        session: _Session | None = None
        for message in wire.messages():
            fields = dict(read_fields(message))
            if _HELLO in fields:
                hello = _parse(ps_pb2.Hello, fields[_HELLO])
                session = self._welcome(hello, wire, seat, by_ticket=by_ticket)
                welcome = ps_pb2.Welcome(
                    ps_generation=self._generation,
                    versions=codec.versions_to_wire(own_versions()),
                    max_step_bytes=self._settings.max_step_bytes,
                    max_message_bytes=self._settings.max_message_bytes,
                    local_socket=self.local_socket,
                    session_port=self.session_port,
                    ticket=b"" if by_ticket else self._tickets.issue(),
                )
                answer = ps_pb2.ExchangeResponse(welcome=welcome).SerializeToString()
                yield from wire.writer(answer, 0).finish()
            elif session is None:
                raise RefusedError("the first message of a session must be Hello")
            elif _LAYOUT in fields:
                session.add_layout(_parse(ps_pb2.Layout, fields[_LAYOUT]))
            elif _SEGMENT in fields:
                session.offer_segment(_parse(ps_pb2.Segment, fields[_SEGMENT]))
            elif _STEP in fields:
                first = fields.get(REQUEST_DATA, memoryview(b""))
                yield from session.step(_parse(ps_pb2.Step, fields[_STEP]), first)
            else:
                raise RefusedError("a payload frame without a step")

    def _welcome(
        self, hello: ps_pb2.Hello, wire: Wire, seat: ExitStack, *, by_ticket: bool
    ) -> "_Session":
        if by_ticket and not self._tickets.redeem(hello.ticket):
            raise RefusedError(f"{self._store.task}: a session here begins with a gRPC stream")
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
        seat.close()  # of an earlier Hello
        if by_ticket:
            seat.enter_context(self._seats.stream())
        seat.enter_context(self._seats.taken(who.task))
        self._store.meet(who)
        return _Session(self._store, who, wire, self._settings)

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
    """Counts workers that have a session against their limit.

    A worker has two for a moment when it comes near, or comes back before we know that its last session is
    dead; it is not in its own way. So there may be more streams than seats.
    """

    def __init__(self, task: TaskId, limit: int) -> None:
        self._task = task
        self._limit = limit
        self._lock = threading.Lock()
        self._streams = 0
        self._sessions: Counter[TaskId] = Counter()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """A stream, whoever it is of.

        Raises:
            LimitExceededError: There are too many.
        """
        with self._lock:
            if self._streams >= STREAMS_PER_SEAT * self._limit:
                raise self._full()
            self._streams += 1
        try:
            yield
        finally:
            with self._lock:
                self._streams -= 1

    def _full(self) -> LimitExceededError:
        return LimitExceededError(
            f"{self._task} serves {self._limit} sessions already (max_sessions); raise "
            "WINDLASS_MAX_SESSIONS on the ps, or run fewer workers",
            limit="max_sessions",
        )

    @property
    def count(self) -> int:
        """Seats taken."""
        with self._lock:
            return len(self._sessions)

    @contextmanager
    def taken(self, worker: TaskId) -> Iterator[None]:
        """The worker's seat, for as long as a session of it lasts.

        Raises:
            LimitExceededError: None is left.
        """
        with self._lock:
            if worker not in self._sessions and len(self._sessions) >= self._limit:
                raise self._full()
            self._sessions[worker] += 1
        try:
            yield
        finally:
            with self._lock:
                self._sessions[worker] -= 1
                self._sessions += Counter()  # forget zeros


class _Session:
    """One stream of one worker. Used by one thread."""

    def __init__(self, store: Store, who: Incarnation, wire: Wire, settings: Settings) -> None:
        self._store = store
        self._who = who
        self._wire = wire
        self._settings = settings
        self._layouts: dict[int, Layout | ps_pb2.Layout] = {0: _NOTHING}
        # Pull layout → the request that brought it last, and the versions of what it brought.
        self._pulled: dict[int, tuple[int, Array]] = {}
        self._offered: SegmentAddress | None = None
        self._opened: SharedSegment | None = None

    def add_layout(self, message: ps_pb2.Layout) -> None:
        """Keep a layout; the first step that uses it compiles it, and hears what is wrong with it."""
        if len(self._layouts) > _MAX_LAYOUTS and message.layout_id not in self._layouts:
            raise LimitExceededError(
                f"more than {_MAX_LAYOUTS} different sets of variables in one session; push and pull the "
                "same sets from step to step",
                limit="layouts",
            )
        if not message.layout_id:
            raise RefusedError("layout 0 stands for none")
        self._layouts[message.layout_id] = message
        self._pulled.pop(message.layout_id, None)

    def offer_segment(self, message: ps_pb2.Segment) -> None:
        """Remember where payloads may be; the first step that has its payload there opens it."""
        self._offered = codec.segment_from_wire(message)
        self._opened = None

    def _segment(self) -> SharedSegment:
        if self._opened is None:
            if self._offered is None:
                raise SegmentError("no segment was offered in this session")
            if not self._settings.shared_memory:
                raise SegmentError("shared_memory is off at the ps")
            # A worker's first segment is larger than it may need.
            most = max(self._settings.max_step_bytes, FIRST_SEGMENT_BYTES)
            limit = most + 2 * HEADER_BYTES + mmap.PAGESIZE
            if self._offered.num_bytes > limit:
                raise SegmentError(
                    f"a segment of {self._offered.num_bytes} bytes is over max_step_bytes"
                )
            try:
                self._opened = SharedSegment.open(self._offered)
            except RefusedError as error:
                raise SegmentError(error.message) from error
        return self._opened

    def step(self, step: ps_pb2.Step, first: memoryview) -> Pieces:
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
        self._store.count_bytes(received=step.payload_bytes)
        reply = ps_pb2.StepReply(request_id=step.request_id)
        pull, pull_rows = _NOTHING, list[Array]()
        payload: PayloadReader | None = None
        early: Pieces | None = None
        try:
            if step.payload_in_segment:
                payload = SegmentReader(self._segment(), step.payload_bytes, self._wire.is_open)
            else:
                payload = self._wire.payload(first, step.payload_bytes)
            push, pull, pull_rows = self._check(step, payload)
            if push is None:
                reply.global_step = self._store.global_step
            elif _may_overlap(step, push, pull):
                early = self._overlapped(step, push, pull, payload)
                head = next(early)
            else:
                _put_result(reply, self._store.push(push, payload.take, payload.applied))
        except WindlassError as error:
            if payload is not None:
                if payload.torn:
                    raise
                payload.drain()
            self._store.count_refused()
            reply.error.CopyFrom(error_table.to_detail(error))
            pull, pull_rows, early = _NOTHING, [], None
        if early is not None:
            yield head
            yield from early
            return
        if step.direct_bytes:
            self._store.count_pull(step.direct_bytes)
        yield from self._answer(step, reply, pull, pull_rows)

    def _answer(
        self, step: ps_pb2.Step, reply: ps_pb2.StepReply, pull: Layout, pull_rows: list[Array]
    ) -> Pieces:
        """The reply and what is pulled."""
        versions: Array | None = None
        # Of a small pull it costs more to find out what changed than to send it.
        if pull.dense_bytes > _SMALL_BYTES and not pull_rows:
            pull, versions = self._only_changed(step, pull, reply)
        reply.payload_bytes = pull.num_bytes([rows.size for rows in pull_rows])
        self._store.count_bytes(sent=reply.payload_bytes)
        writer = self._writer(reply)
        if pull.segments:
            seen = np.empty(pull.num_entries, np.int64) if versions is not None else None
            # Values are copied under the lock of a block, and sent without it.
            pieces = self._store.visit(
                pull, pull_rows, lambda value: list(writer.add(as_bytes(value))), seen
            )
            for piece in pieces:
                yield from piece
            if versions is not None and seen is not None:
                versions[_bits(reply.changed, versions.size)] = seen
        yield from writer.finish()
        if reply.payload_bytes or reply.changed:
            self._store.count_pull(0)

    def _overlapped(
        self, step: ps_pb2.Step, push: Push, pull: Layout, payload: PayloadReader
    ) -> Pieces:
        """Send each shard as soon as its push is applied, while the others still arrive.

        Raises:
            WindlassError: Before the first frame, the step is refused; later, the session is over.
        """
        run = self._store.applying(push, payload.take)
        applied, result = _advance(run)  # a push that may not be applied shows here
        reply = ps_pb2.StepReply(
            request_id=step.request_id, payload_bytes=pull.dense_bytes, outcome_follows=True
        )
        self._store.count_bytes(sent=pull.dense_bytes)
        writer = self._writer(reply)
        versions = np.empty(pull.num_entries, np.int64)
        done = {id(applied)}
        entry = 0
        for segment in pull.segments:
            while result is None and id(segment.block) not in done:
                applied, result = _advance(run)
                done.add(id(applied))
            stop = entry + segment.where.last - segment.where.first
            for piece in self._store.visit(
                Layout((segment,), (0,)),
                (),
                lambda value: list(writer.add(as_bytes(value))),
                versions[entry:stop],
            ):
                yield from piece
            entry = stop
        yield from writer.finish()
        self._store.count_pull(0)
        while result is None:
            applied, result = _advance(run)
        self._pulled[step.pull_layout] = (step.request_id, versions)
        outcome = ps_pb2.StepReply(request_id=step.request_id)
        _put_result(outcome, result)
        yield from self._writer(outcome).finish()

    def _writer(self, reply: ps_pb2.StepReply) -> Writer:
        return self._wire.writer(field(_REPLY, reply.SerializeToString()), reply.payload_bytes)

    def _only_changed(
        self, step: ps_pb2.Step, pull: Layout, reply: ps_pb2.StepReply
    ) -> tuple[Layout, Array]:
        """Leave out of a pull what the worker has already.

        Returns:
            The rest, and the versions that are to be remembered; those of the rest follow when it is read.
        """
        request, known = self._pulled.get(step.pull_layout, (0, np.empty(0, np.int64)))
        if step.known_request and step.known_request == request:
            # A version read before its values may be older than they are: they are sent once more, no harm.
            changed = pull.versions() != known
            if not changed.all():
                reply.changed = np.packbits(changed, bitorder="little").tobytes()
                pull = pull.only(changed)
        else:
            known = np.zeros(pull.num_entries, np.int64)
        self._pulled[step.pull_layout] = (step.request_id, known)
        return pull, known

    def _check(
        self, step: ps_pb2.Step, payload: PayloadReader
    ) -> tuple[Push | None, Layout, list[Array]]:
        """Check the step whole, before any of it is applied.

        Returns:
            What is to be pushed, if anything; what is to be pulled, with row numbers.
        """
        push_layout, pull_layout = self._layout(step.push_layout), self._layout(step.pull_layout)
        push_counts, pull_counts = list(step.push_rows), list(step.pull_rows)
        self._check_size(step, push_layout, pull_layout)
        asked = pull_layout.num_bytes(pull_counts)
        if asked > self._settings.max_step_bytes:
            raise LimitExceededError(
                f"{self._store.task}: a pull of {asked} bytes is over "
                f"max_step_bytes={self._settings.max_step_bytes}; ask for fewer rows at a time, or raise "
                "WINDLASS_MAX_STEP_BYTES on the ps",
                task=self._store.task,
                limit="max_step_bytes",
            )
        push_rows = tuple(_take_rows(payload, count) for count in push_counts)
        pull_rows = [_take_rows(payload, count) for count in pull_counts]
        self._store.check_rows(push_layout, push_rows)
        self._store.check_rows(pull_layout, pull_rows)
        if not step.sequence:
            return None, pull_layout, pull_rows
        facts = StepFacts(self._who, step.sequence, step.global_step, step.gradient_scale or 1.0)
        return Push(push_layout, push_rows, facts, step.step_increment), pull_layout, pull_rows

    def _layout(self, layout_id: int) -> Layout:
        layout = self._layouts.get(layout_id)
        if layout is None:
            raise RefusedError(f"layout {layout_id} was not sent in this session")
        if isinstance(layout, Layout):
            return layout
        compiled = self._store.compile(codec.layout_from_wire(layout))
        self._layouts[layout_id] = compiled
        return compiled

    def _check_size(self, step: ps_pb2.Step, push: Layout, pull: Layout) -> None:
        if (len(step.push_rows), len(step.pull_rows)) != (len(push.numbered), len(pull.numbered)):
            raise ShapeMismatchError(
                f"row counts for {len(step.push_rows)} pushed and {len(step.pull_rows)} pulled entries; "
                f"the layouts have {len(push.numbered)} and {len(pull.numbered)} that need them"
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


def _may_overlap(step: ps_pb2.Step, push: Push, pull: Layout) -> bool:
    """Whether a step is large, and pulls only what it pushes: then there is nothing to leave out."""
    if not step.early_reply or pull.numbered or pull.dense_bytes <= _SMALL_BYTES:
        return False
    pushed = {id(segment.block) for segment in push.layout.segments}
    return pushed.issuperset(id(segment.block) for segment in pull.segments)


def _advance(
    run: Generator[Block, None, PushResult],
) -> tuple[Block | None, PushResult | None]:
    """The next block that was applied, or the result."""
    try:
        return next(run), None
    except StopIteration as end:
        return None, end.value


def _put_result(reply: ps_pb2.StepReply, result: PushResult) -> None:
    reply.global_step = result.global_step
    reply.staleness = result.staleness
    reply.duplicate = result.duplicate


def _bits(packed: bytes, count: int) -> Array | slice:
    """Which entries a reply has; no bitmap stands for all."""
    if not packed:
        return slice(None)
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=count, bitorder="little")
    return bits.astype(np.bool_)


def _parse(kind: type[_Message], content: memoryview) -> _Message:
    try:
        return kind.FromString(bytes(content))
    except DecodeError as error:
        raise RefusedError(f"a {kind.__name__} cannot be read: {error}") from error


def _take_rows(payload: PayloadReader, count: int) -> Array:
    # Copied: the payload's memory is reused while the values are read.
    return np.frombuffer(payload.take(8 * count), np.int64).copy()


def add_to_server(servicer: ParameterServerServicer, server: grpc.Server) -> None:
    """Register the service as its contract describes it; frames of ``Exchange`` pass as they are."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in _SERVICE.methods:
        behaviour = getattr(servicer, method.name)
        if method.client_streaming:
            handlers[method.name] = grpc.stream_stream_rpc_method_handler(behaviour)
        else:
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                behaviour,
                request_deserializer=GetMessageClass(method.input_type).FromString,
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
    service = grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers)
    server.add_generic_rpc_handlers((service,))
