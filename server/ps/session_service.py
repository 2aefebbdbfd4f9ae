"""Sessions of other processes: messages in, calls of a :class:`Session`, answers out."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ...cluster.access import READER, Principal, check_access
from ...core.arrays.buffers import Lease, MemoryPool
from ...core.arrays.dtypes import Array
from ...core.arrays.gather_buffer import copy_into
from ...core.errors import RefusedError, SegmentError
from ...core.settings import Settings
from ...core.task import Incarnation
from ...core.wire import codec
from ...core.wire.steps import MOST_SEGMENTS, LayoutEntry, StepReply
from ...engine.rows import gather_rows
from ...net.auth.guard import Visitor, one_caller
from ...net.connection import Connection, FrameWriter, Lender
from ...net.dial import parse
from ...net.endpoint import Greeting
from ...net.shared_memory import SharedSegment, answer_start
from ...net.stream import READ_BYTES
from ...proto.v1 import session_pb2
from .limits import SessionLimiter, SessionRoom, StepRoom
from .parts import ServedShares
from .payload import ConnectionPayload, Payload, SegmentPayload, most_segment_bytes
from .session import Answer, Session
from .store import Store

# -- Answers to workers in other processes: values behind the answer, or in the worker's segment --
# Both are answers as :class:`~ropewalk.server.ps.session.Answer` describes them.


class ConnectionAnswer:
    """Sends values behind the answer.

    Args:
        connection: Carries the answer.
        lend: Memory for large parts.
    """

    def __init__(self, connection: Connection, lend: Lender) -> None:
        self._connection = connection
        self._lend = lend
        self._room: Array | None = None
        self._writer: FrameWriter

    def begin(self, reply: StepReply) -> None:
        """Begin the frame."""
        self._writer = self._connection.frame(_message(reply), reply.payload_bytes, self._lend)

    def room(self, num_bytes: int) -> Array | None:
        """Lent memory, but for small parts: they are joined, and it is used again for the next."""
        self._room = self._lend(num_bytes)[:num_bytes] if num_bytes >= READ_BYTES else None
        return self._room

    def copy(self, values: Array, rows: Array | None = None) -> bytes | memoryview:
        """Copy values to lent memory, where they are not there already."""
        room, self._room = self._room, None
        if rows is None:
            if room is not None and _is_in(values, room):
                return room.data
            return self._writer.copy(values)
        num_bytes = rows.size * values.shape[1] * values.itemsize
        out = self._lend(num_bytes)[:num_bytes].view(values.dtype)
        gather_rows(values, rows, out.reshape(rows.size, values.shape[1]))
        # Small parts are joined, and the memory is used again for the next one.
        return out.tobytes() if num_bytes < READ_BYTES else out.view(np.uint8).data

    def write(self, part: bytes | memoryview) -> None:
        """Send a part."""
        self._writer.write(part)

    def finish(self) -> None:
        """Send what is left."""
        self._writer.finish()


class SegmentAnswer:
    """Leaves values in the worker's segment, and then says so.

    Args:
        connection: Carries the answer.
        room: Part of the segment, uint8. Nothing is read from it: the worker may write there.
    """

    def __init__(self, connection: Connection, room: Array) -> None:
        self._connection = connection
        self._left = room
        self._reply = StepReply(0)

    def begin(self, reply: StepReply) -> None:
        """Keep the reply: the worker reads the segment once it has it.

        Raises:
            RefusedError: The worker made less room than it asks for. The session is over.
        """
        if reply.payload_bytes > self._left.size:
            raise RefusedError(
                f"values of {reply.payload_bytes} bytes in a room of {self._left.size}"
            )
        self._reply = reply
        reply.values_in_segment = bool(reply.payload_bytes)

    def room(self, num_bytes: int) -> Array | None:
        """Return the memory where the next part goes."""
        return self._left[:num_bytes]

    def copy(self, values: Array, rows: Array | None = None) -> None:
        """Copy values to where they go, where they are not there already."""
        if rows is not None:
            values = gather_rows(values, rows)
        part, self._left = self._left[: values.nbytes], self._left[values.nbytes :]
        if not _is_in(values, part):
            copy_into(part, values.reshape(-1).view(np.uint8))

    def write(self, part: object) -> None:
        """Do nothing: the part is in the segment already."""

    def finish(self) -> None:
        """Send the reply."""
        self._connection.send([_message(self._reply)])


def _is_in(values: Array, room: Array) -> bool:
    """Return whether values were read into the memory that was there for them."""
    return values.ctypes.data == room.ctypes.data


def _message(reply: StepReply) -> bytes:
    return session_pb2.ServerMessage(step=codec.reply_to_wire(reply)).SerializeToString()


HandleMessage = Callable[[session_pb2.ClientMessage, str | None, Lender], bool]
"""Carries out a message of a session, if it knows its kind; returns whether it does."""

ServeReader = Callable[
    [Connection, Store, Incarnation, Callable[[str], None]], AbstractContextManager[HandleMessage]
]
"""Serves a reader beside its steps; the last argument refuses an operation."""

READER_SHARE = 4
"""Readers have places of their own beside those of workers, a quarter as many."""


class SessionService:
    """Welcomes workers, and serves each until its connection ends. Thread-safe.

    Args:
        shares: The variables.
        settings: Settings of this ps, for the bounds.
        limiter: Counts the workers.
        check_job: Refuses a worker of another job.
        serve_reader: Serves readers; None: they are refused.

    Attributes:
        most_readers: Readers that may have a session, beside the workers.
    """

    def __init__(
        self,
        shares: ServedShares,
        settings: Settings,
        limiter: SessionLimiter,
        check_job: Callable[[Incarnation], None] = lambda who: None,  # noqa: ARG005
        serve_reader: ServeReader | None = None,
    ) -> None:
        self._check_job = check_job
        self._serve_reader_beside = serve_reader
        self._shares = shares
        self._settings = settings
        self._limiter = limiter
        self.most_readers = max(1, settings.max_sessions // READER_SHARE)
        allowed = f"max_sessions={settings.max_sessions} allows {self.most_readers}"
        self._readers = SessionLimiter(
            limiter.task, self.most_readers, limiter.per_worker, "readers", allowed
        )
        self._pool = MemoryPool()
        self._room = StepRoom(limiter.task, settings)

    def serve(self, greeting: Greeting) -> bool:
        """Serve a greeted connection to its end.

        Raises:
            RopewalkError: The session is over.
            OSError: The connection broke.
        """
        connection, hello = greeting.connection, greeting.hello
        who = codec.sender_of(hello)
        self._check_job(who)
        share = self._shares.at(hello.share)
        reads = who.task.type == READER
        limiter = self._readers if reads else self._limiter
        caller = one_caller(greeting.visitor.principal) or (READER if reads else who.task.short)
        with (
            share.serving(connection.cancel) as store,
            limiter.session(who.task),
            self._room.session(caller, lambda: not connection.has_hung_up) as room,
        ):
            store.check_contents(hello.expected_ps_generation)
            if not reads:  # it pushes nothing that would have to be remembered
                store.register_incarnation(who)
            greeting.welcome(
                ps_generation=store.contents,
                max_step_bytes=self._settings.max_step_bytes,
                confirms_reads=self._settings.shares_move,
            )
            if reads:
                self._serve_reader(connection, store, who, greeting.visitor, room)
            else:
                session = Session(store, who, greeting.visitor.check, room)
                self._serve(connection, _Messages(connection, session, store, self._settings))
        return False

    def _serve_reader(
        self,
        connection: Connection,
        store: Store,
        who: Incarnation,
        visitor: Visitor,
        room: SessionRoom,
    ) -> None:
        def check(operation: str) -> None:
            visitor.check(operation)
            # Also where nobody has to show who they are: a reader's session reads.
            check_access(Principal(READER), operation, server=store.task)

        if self._serve_reader_beside is None:
            raise RefusedError(
                f"{store.task} serves no readers: the annex embedding was taken out of its "
                "installation",
                task=store.task,
            )
        # One that stops half-way, or does not read, would have memory and its place for ever.
        connection.frame_s = self._settings.request_timeout_s
        with self._serve_reader_beside(connection, store, who, check) as handle:
            session = Session(store, who, check, room)
            messages = _Messages(connection, session, store, self._settings, handle)
            self._serve(connection, messages)

    def _serve(self, connection: Connection, messages: "_Messages") -> None:
        while (data := connection.receive()) is not None:
            with Lease(self._pool) as lease:
                messages.handle(parse(session_pb2.ClientMessage, data), lease.lend)


class _Messages:
    """Carries out the messages of one connection, in order."""

    def __init__(
        self,
        connection: Connection,
        session: Session,
        store: Store,
        settings: Settings,
        handle_more: HandleMessage = lambda *_: False,
    ) -> None:
        self._handle_more = handle_more
        self._connection = connection
        self._session = session
        self._store = store
        self._settings = settings
        self._segments: dict[int, SharedSegment] = {}
        self._why_no_segment = "no segment was handed over in this session"

    def handle(self, message: session_pb2.ClientMessage, lend: Lender) -> None:
        kind = message.WhichOneof("kind")
        if kind == "step":
            self._step(message.step, lend)
        elif kind == "layout":
            # As bytes: the message takes a dozen times as much memory until it is compiled.
            data = message.layout.SerializeToString()

            def entries() -> Sequence[LayoutEntry]:
                return codec.layout_from_wire(session_pb2.Layout.FromString(data))

            self._session.add_layout(message.layout.layout_id, entries, len(data))
        elif kind == "segment":
            self._take_segment(message.segment)
        elif kind == "find_memory":
            self._find_memory(message.find_memory)
        elif kind == "map_slab":
            self._hand_over_slab(message.map_slab.number)
        elif not self._handle_more(message, kind, lend):
            raise RefusedError(
                f"a session goes on with steps, not with {kind or 'an empty message'}"
            )

    def _step(self, step: session_pb2.Step, lend: Lender) -> None:
        total = 0 if step.payload_in_segment else step.payload_bytes
        if self._connection.unread_bytes != total:
            raise RefusedError(
                f"{self._connection.unread_bytes} bytes follow a step that announces {total}"
            )

        segment = self._segments.get(step.segment)

        def open_payload() -> Payload:
            if not step.payload_in_segment:
                return ConnectionPayload(self._connection, lend)
            if segment is None:
                raise SegmentError(self._why_no_segment)
            return SegmentPayload(segment, step.payload_bytes, self._connection.is_silent)

        codec.check_step(step, self._connection.peer)
        self._session.step(step, open_payload, self._answer(step, segment, lend))

    def _answer(
        self, step: session_pb2.Step, segment: SharedSegment | None, lend: Lender
    ) -> Answer[Any]:
        """Choose where the values of an answer go: to the worker's segment if it has room for
        them.
        """
        if segment is not None and step.payload_in_segment and step.answer_room:
            start = answer_start(step.payload_bytes)
            room = segment.memory[start : start + step.answer_room]
            if room.size == step.answer_room:
                return SegmentAnswer(self._connection, room)
        return ConnectionAnswer(self._connection, lend)

    def _take_segment(self, message: session_pb2.Segment) -> None:
        """Map a segment of the worker. If that fails, the steps that need it say why.

        Raises:
            RefusedError: It has a number that no segment of a worker has.
        """
        if message.number >= MOST_SEGMENTS:
            raise RefusedError(
                f"a segment of a worker has a number below {MOST_SEGMENTS}, not {message.number}"
            )
        descriptor = self._connection.stream.take_descriptor()
        self._segments.pop(message.number, None)
        most = most_segment_bytes(self._settings.max_step_bytes)
        try:
            segment = SharedSegment.receive(descriptor, message.num_bytes, most=most)
            if not self._settings.shares_move:  # else it is handed on to followers
                segment.close()  # the mapping stays
            self._segments[message.number] = segment
        except RefusedError as error:
            self._why_no_segment = error.message

    def _find_memory(self, asked: session_pb2.FindMemory) -> None:
        regions = [self._store.table.region((each.variable, each.part)) for each in asked.shards]
        found = session_pb2.FoundMemory(regions=map(codec.region_to_wire, regions))
        answer = session_pb2.ServerMessage(found_memory=found)
        self._connection.send([answer.SerializeToString()])

    def _hand_over_slab(self, number: int) -> None:
        slab = self._store.table.slab(number)
        answer = session_pb2.ServerMessage(
            slab=session_pb2.Segment(number=number, num_bytes=slab.num_bytes)
        )
        self._connection.send_with_descriptor(answer.SerializeToString(), slab.descriptor)
