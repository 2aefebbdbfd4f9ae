"""An open session with a ps in another process: the state of its connection, and its steps."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core.arrays.dtypes import Array, as_bytes, total_bytes
from ...core.arrays.gather_buffer import copy_into
from ...core.errors import PeerLostError, RefusedError, RopewalkError, SegmentError
from ...core.process.waiting import WaitLog, wait_for_counter
from ...core.task import TaskId
from ...core.wire import codec
from ...core.wire.steps import (
    HEADER_BYTES,
    NO_TARGET,
    SMALL_BYTES,
    PullTarget,
    PushResult,
    StepReply,
    StepRequest,
    WireLayout,
)
from ...net.connection import Connection
from ...net.connection_choice import ConnectionChoice, ConnectionKind
from ...net.dial import Reached, receive_message, report_choice
from ...net.shared_memory import APPLIED, WRITTEN, SharedSegment, answer_start
from ...net.stream import LONGEST_WAIT_S, NEVER
from ...proto.v1 import session_pb2
from .direct_pull import DirectPull, DirectRows
from .pull_plans import changed_parts
from .shared_payloads import (
    OVERLAPPED_BYTES,
    SharedPayloads,
    values_in_segment,
    write_gathered,
    write_plain,
)
from .step import Exchange

log = logging.getLogger(__name__)

# Below, handing a payload to another thread costs more than it saves.
_BACKGROUND_BYTES = 1024 * 1024


@dataclass(slots=True)
class _Turn:
    """A step under way.

    Attributes:
        sent: The step as it is sent.
        parts: The payload, if it travels; None: it is in a segment.
        direct: Reads what is pulled from the ps's memory; None: it comes with the answer.
        overlapped: Whether the ps applies what we write while we write and read.
        is_deferred: Whether it is sent when the values have been read.
    """

    sent: StepRequest
    parts: list[memoryview] | None = None
    direct: DirectPull | DirectRows | None = None
    overlapped: bool = False
    is_deferred: bool = False


class OpenSession:
    """Steps over one connection, until it breaks. Used by one thread, but for :meth:`cancel`.

    Args:
        reached: The connection.
        who: Task id of this worker.
        request_timeout_s: Deadline of a step.

    Attributes:
        choice: Kind of the connection, and why it is not a faster one.
        unanswered: The step that was sent last, to be repeated if the connection breaks: with
            values that nobody changes.
    """

    def __init__(
        self,
        reached: Reached,
        who: TaskId,
        request_timeout_s: float,
    ) -> None:
        self._connection: Connection = reached.connection
        self._peer = reached.connection.peer
        self._timeout_s = request_timeout_s
        self.choice: ConnectionChoice = reached.choice
        self._shared: SharedPayloads | None = None
        self._confirms_reads = reached.welcome.confirms_reads  # others follow the ps
        if reached.choice.kind is ConnectionKind.SHARED_MEMORY:
            self._shared = SharedPayloads(self._connection, keeps_pushes=self._confirms_reads)
        self._max_step_bytes = reached.welcome.max_step_bytes
        self._layouts: dict[int, WireLayout] = {}
        self._pulls: dict[int, int] = {}  # pull layout → the request that brought it last
        self._request_id = 0
        self.unanswered: StepRequest | None = None
        self._who = who
        self._waits: WaitLog | None = None  # made when a step has waited for a second
        self._waits_lock = threading.Lock()  # a payload may be sent by another thread
        self._connection.stream.on_silence = self._still_waiting

    @property
    def shares_memory(self) -> bool:
        """Whether large payloads do not travel."""
        return self._shared is not None

    def cancel(self) -> None:
        """Make a running and every later call fail. From any thread."""
        self._connection.cancel()

    def close(self) -> None:
        """End the session."""
        # Who keeps the stream does not keep this session, and the memory that it shares.
        self._connection.stream.on_silence = lambda: None
        self._connection.close()
        if self._shared is not None:
            self._shared.close()

    # -- steps -------------------------------------------------------------------------------

    def step(self, request: StepRequest, target: PullTarget, request_id: int) -> Exchange:
        """Carry out a step; see :data:`~ropewalk.client.ps.step.Exchange`.

        Raises:
            PeerLostError: The connection broke, in whatever turn: the last one tells.
            RefusedError: The ps refused.
        """
        self._connection.deadline = time.monotonic() + self._timeout_s
        self._request_id = request_id
        self.unanswered = request
        turn = _Turn(request)
        try:
            try:
                self._prepare(turn)
            except OSError as error:  # shows as the answer is read
                log.debug("a step to %s could not be prepared: %s", self._peer, error)
                self._connection.cancel()
            yield
            try:
                self._send(turn)
            except OSError as error:
                log.debug("a step to %s could not be sent: %s", self._peer, error)
                self.unanswered = self.unanswered.kept()
            yield
            if turn.direct is None:
                return self._receive_step(turn, target)
            return self._receive_direct(turn, turn.direct, target)
        except OSError as error:
            reason = error.strerror or str(error)
            raise PeerLostError(
                f"step: the connection to {self._peer} broke: {reason}", peer=self._peer
            ) from error
        finally:
            self._connection.deadline = NEVER
            if self._waits is not None:
                self._waits.done()
                self._waits = None

    # -- sending -----------------------------------------------------------------------------

    def _prepare(self, turn: "_Turn") -> None:
        """Gather what takes memory to gather. Nothing of the step is sent."""
        request = turn.sent
        if request.pull is not None:
            turn.direct = self._plan_direct(request.pull, request.pull_rows)
        if turn.direct is not None:
            turn.sent = request.read_directly(turn.direct.num_bytes)
            turn.is_deferred = self._confirms_reads and request.push is None
        if not self._has_room(turn.sent):
            turn.sent = replace(turn.sent, answer_bytes=0)
        segment = self._segment(turn)
        if segment is None:
            turn.parts = _gather(turn.sent)
            return
        turn.overlapped = turn.sent.payload_bytes >= OVERLAPPED_BYTES
        write_gathered(turn.sent, segment, all_of_it=not turn.overlapped)

    def _send(self, turn: "_Turn") -> None:
        if turn.is_deferred:
            return
        if turn.parts is None:
            self._send_segment(turn)
        else:
            self._send_parts(turn.sent, turn.parts)

    def _has_room(self, request: StepRequest) -> bool:
        """Return whether a segment that the ps takes has room for the payload and the answer."""
        end = answer_start(request.payload_bytes) + request.answer_bytes
        return end - HEADER_BYTES <= self._max_step_bytes

    def _segment(self, turn: "_Turn") -> SharedSegment | None:
        """Find a segment for a large payload or answer, which the ps has; None: both travel."""
        size, answer_bytes = turn.sent.payload_bytes, turn.sent.answer_bytes
        if self._shared is None or max(size, answer_bytes) <= SMALL_BYTES:
            return None
        try:
            segment, offer = self._shared.prepare(size, answer_bytes)
        except OSError as error:
            self._give_up_memory(f"no segment of {size} bytes: {error.strerror}")
            self._keep(turn)
            return None
        segment.counters[WRITTEN] = segment.counters[APPLIED] = 0
        if offer is not None:
            message = session_pb2.ClientMessage(segment=offer)
            self._connection.send_with_descriptor(message.SerializeToString(), segment.descriptor)
        return segment

    def _keep(self, turn: "_Turn") -> None:
        """Put the step's values into memory of their own, if the caller may change them."""
        if turn.sent.detached and self.unanswered is not None:
            self.unanswered = self.unanswered.kept()
            turn.sent = turn.sent.with_values(self.unanswered.values)

    def _send_segment(self, turn: "_Turn") -> None:
        shared = self._shared
        if shared is None or shared.segment is None:
            raise ConnectionError("the step was not prepared")
        try:
            self._connection.send(self._messages(shared.placed(turn.sent), early_reply=False))
            write_plain(turn.sent, shared.segment)
        except BaseException:
            self._connection.cancel()  # the ps waits for the rest
            raise
        if turn.sent.detached and self.unanswered is not None:
            values = values_in_segment(turn.sent, shared.segment)
            turn.sent = turn.sent.with_values(values)
            self.unanswered = self.unanswered.with_values(values)

    def _send_parts(self, request: StepRequest, parts: Sequence[memoryview]) -> None:
        """Send a step with its payload behind it."""
        size = request.payload_bytes
        large = size > _BACKGROUND_BYTES
        # On a network both directions are used at once. On one machine that gains nothing, but
        # steps to several ps must not wait for each other.
        early = large and not self._connection.stream.is_local
        messages = self._messages(request, early_reply=early)
        if large:
            self._connection.send_in_background(messages, parts, size)
        else:
            self._connection.send(messages, parts, size)

    def _messages(self, request: StepRequest, *, early_reply: bool) -> list[bytes]:
        messages: list[bytes] = []
        for layout in (request.push, request.pull):
            # A number may have come to stand for another layout.
            if layout is not None and self._layouts.get(layout.layout_id) is not layout:
                self._layouts[layout.layout_id] = layout
                self._pulls.pop(layout.layout_id, None)
                message = session_pb2.ClientMessage(layout=codec.layout_to_wire(layout))
                messages.append(message.SerializeToString())
        known_request = 0
        if request.pull is not None and request.has_previous:
            known_request = self._pulls.get(request.pull.layout_id, 0)
        step = codec.step_to_wire(request, self._request_id, known_request, early_reply=early_reply)
        return [*messages, session_pb2.ClientMessage(step=step).SerializeToString()]

    def _plan_direct(
        self, layout: WireLayout, rows: Sequence[Array]
    ) -> DirectPull | DirectRows | None:
        if self._shared is None:
            return None
        try:
            if rows:
                return self._shared.direct_rows(layout, rows)
            return self._shared.direct_pull(layout)
        except RefusedError as error:
            self._give_up_memory(error.message)
            return None

    # -- beside steps ------------------------------------------------------------------------

    def ask(
        self, message: session_pb2.ClientMessage, payload: Array | None, most_bytes: int
    ) -> tuple[session_pb2.ServerMessage, memoryview]:
        """Send a message while no step is under way; returns the answer and its payload.

        Args:
            message: The message.
            payload: Payload that is sent behind the message.
            most_bytes: Most bytes of the answer's payload that are taken.

        Raises:
            OSError: The connection broke.
            RopewalkError: The ps has ended the session.
        """
        self._connection.deadline = time.monotonic() + self._timeout_s
        try:
            parts = [] if payload is None else [as_bytes(payload)]
            self._connection.send([message.SerializeToString()], parts, total_bytes(parts))
            answer = receive_message(self._connection)
            size = self._connection.unread_bytes
            if size > most_bytes:
                raise RefusedError(
                    f"{self._peer} announces {size} bytes in an answer to a reader, more than "
                    f"max_step_bytes={most_bytes}; raise ROPEWALK_MAX_STEP_BYTES here",
                    peer=self._peer,
                )
            values = memoryview(bytearray(size))
            self._connection.read_into(values)
            return answer, values
        except BaseException:
            self._connection.cancel()  # the rest of an answer may be on its way
            raise
        finally:
            self._connection.deadline = NEVER

    # -- receiving ---------------------------------------------------------------------------

    def _still_waiting(self) -> None:
        """Log that nothing has moved for a second or longer."""
        deadline = self._connection.deadline
        if deadline == NEVER:
            return  # it only waits to be sent, and nobody for the answer yet
        with self._waits_lock:
            if self._waits is None:
                self._waits = WaitLog(
                    self._who,
                    limit_s=self._timeout_s,
                    limit="request_timeout_s",
                    began=deadline - self._timeout_s,
                )
            self._waits.tick(self._peer, "it has not answered this step yet")

    def _receive_direct(
        self, turn: "_Turn", direct: DirectPull | DirectRows, target: PullTarget
    ) -> PushResult:
        """Receive a step's answer, and read values from the ps's memory, while it applies the push
        if it does.
        """
        reading = direct.begin(target)
        bounds = direct.ready(turn.sent) if turn.overlapped or not turn.sent.push else None
        was_read, is_open = False, self._connection.is_silent
        if bounds is not None:
            was_read = reading.go_on(lambda index: self._is_applied(bounds[index]), is_open)
        if turn.is_deferred:
            was_read = reading.go_on(is_open=is_open)
            self._send_parts(turn.sent, ())
        result = self._receive_step(turn, NO_TARGET)
        if reading.go_on(is_open=is_open):
            if self._confirms_reads and not (turn.is_deferred and was_read):
                self._confirm()
            return replace(result, pulled_bytes=reading.finish())
        # A block that is always being written is asked for in the step's own way.
        pull = StepRequest(pull=direct.layout, pull_rows=direct.rows)
        self._send_parts(pull, _gather(pull))
        again = self._read_reply(pull, PullTarget(target.into))
        return replace(result, global_step=again.global_step, pulled_bytes=again.pulled_bytes)

    def _confirm(self) -> None:
        """Ask whether what was read is there to stay.

        A ps that others follow answers when they have all that it had.
        """
        self._send_parts(StepRequest(), ())
        self._read_reply(StepRequest(), NO_TARGET)

    def _is_applied(self, payload_bytes: int) -> bool:
        """Wait until so much of the push is applied; False if the answer came first."""
        if not payload_bytes:
            return True
        shared = self._shared
        if shared is None or shared.segment is None:
            return False

        def goes_on() -> bool:
            now, deadline = time.monotonic(), self._connection.deadline
            if now > deadline - self._timeout_s + LONGEST_WAIT_S:
                self._still_waiting()
            return self._connection.is_silent() and now < deadline

        return wait_for_counter(shared.segment.counters, APPLIED, payload_bytes, goes_on)

    def _receive_step(self, turn: "_Turn", target: PullTarget) -> PushResult:
        try:
            return self._read_reply(turn.sent, target)
        except SegmentError as error:
            # Nothing of the step was applied; from now on payloads travel.
            self._give_up_memory(error.message)
            self._send_parts(turn.sent, _gather(turn.sent))
            return self._read_reply(turn.sent, target)
        except RopewalkError:
            # The ps may be reading the push yet: what comes next must not be written over it.
            if self._shared is not None:
                self._shared.drop_segments()
            raise

    def _read_reply(self, request: StepRequest, target: PullTarget) -> PushResult:
        reply = self._next_reply()
        if reply.error is not None:
            raise reply.error
        try:
            into = changed_parts(request, reply, target, self._peer)
            if total_bytes(into) != reply.payload_bytes:
                raise RefusedError(
                    f"{self._peer} sent {reply.payload_bytes} bytes for a pull of "
                    f"{total_bytes(into)}",
                    peer=self._peer,
                )
            if reply.values_in_segment:
                self._copy_answer(request, into)
            else:
                for part in into:
                    self._connection.read_into(part)
            payload_bytes = reply.payload_bytes
            if reply.outcome_follows:
                reply = self._next_reply()
        except RopewalkError:
            self._connection.cancel()  # where the next answer begins is not known
            raise
        if request.pull is not None:
            self._pulls[request.pull.layout_id] = self._request_id
        return PushResult(reply.global_step, reply.staleness, reply.duplicate, payload_bytes)

    def _copy_answer(self, request: StepRequest, into: Sequence[memoryview]) -> None:
        """Copy values out of our segment, where the ps has left them behind the step's payload."""
        segment = self._shared.segment if self._shared is not None else None
        start = answer_start(request.payload_bytes)
        if segment is None or not request.answer_bytes:
            raise RefusedError(
                f"{self._peer} left values in a segment that has no room for them", peer=self._peer
            )
        for part in into:
            copy_into(np.frombuffer(part, np.uint8), segment.memory[start : start + len(part)])
            start += len(part)

    def _next_reply(self) -> StepReply:
        reply = codec.reply_from_wire(receive_message(self._connection).step)
        if reply.request_id != self._request_id:
            self._connection.cancel()
            raise RefusedError(
                f"{self._peer} answered request {reply.request_id}, not {self._request_id}",
                peer=self._peer,
            )
        return reply

    def _give_up_memory(self, why: str) -> None:
        """Send payloads over the socket from now on."""
        if self._shared is not None:
            self._shared = None
            self.choice = ConnectionChoice(ConnectionKind.UNIX, why, is_degraded=True)
            report_choice(self._peer, self.choice)


def _gather(request: StepRequest) -> list[memoryview]:
    """Gather a step's payload, with memory for all that needs it."""
    rows = [as_bytes(numbers) for numbers in (*request.push_rows, *request.pull_rows)]
    return [*rows, *(part.buffer() for part in request.values)]
