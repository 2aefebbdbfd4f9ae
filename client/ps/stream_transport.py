"""Sessions with a ps: begun over gRPC, gone on with over a socket where there is one.

gRPC finds the ps, asks who we are, and carries everything that is not a step. A session is a stream of
messages, a step one with its payload: over a TCP connection beside gRPC's, over a Unix socket between
processes of one machine and user, or over the gRPC stream itself where neither can be reached.
"""

import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from google.protobuf.message import DecodeError

from ...core import codec
from ...core.arrays import as_bytes, total_bytes
from ...core.backoff import attempts
from ...core.definitions import ShardDefinition
from ...core.error_table import from_detail
from ...core.errors import (
    LimitExceededError,
    PeerLostError,
    RefusedError,
    WindlassError,
)
from ...core.settings import Settings
from ...core.steps import HeldShard, PushResult, SegmentAddress, StepRequest, WireLayout
from ...core.task import Incarnation, TaskId
from ...core.update_rules import UpdateRule
from ...core.versions import check_protocol, own_versions
from ...net.channel import invoke, open_channel
from ...net.frames import RESPONSE_DATA, field, read_fields
from ...proto.v1 import errors_pb2, ps_pb2, ps_pb2_grpc
from .spans import cut_spans, runs_of
from .streams import (
    Carrier,
    GrpcStream,
    SocketStream,
    is_here,
    local_connection,
    tcp_connection,
)

log = logging.getLogger(__name__)

_LAYOUT = ps_pb2.ExchangeRequest.LAYOUT_FIELD_NUMBER
_STEP = ps_pb2.ExchangeRequest.STEP_FIELD_NUMBER
_SEGMENT = ps_pb2.ExchangeRequest.SEGMENT_FIELD_NUMBER
_WELCOME = ps_pb2.ExchangeResponse.WELCOME_FIELD_NUMBER
_REPLY = ps_pb2.ExchangeResponse.STEP_FIELD_NUMBER
_FAILURE = ps_pb2.ExchangeResponse.FAILURE_FIELD_NUMBER

_DEFINE_TIMEOUT_S = 3600.0
_MOVE_TIMEOUT_S = 2.0  # to be welcomed where a session goes on; gRPC is there already
_DEFINE_BATCH = 2000  # definitions per message: about 200 bytes each, far below max_message_bytes


class StreamTransport:
    """See :class:`~windlass.client.ps.transport.PsTransport`.

    Args:
        task: The ps.
        address: Where it is.
        who: This worker.
        settings: Deadlines and bounds.
        near: Use the ps's local socket where it can be reached.

    What carries a session is in :attr:`description`, with the reason if it is gRPC for want of a better one.
    """

    def __init__(
        self,
        task: TaskId,
        address: str,
        who: Incarnation,
        settings: Settings,
        *,
        near: bool = False,
    ) -> None:
        self._task = task
        self._address = address
        self._who = who
        self._settings = settings
        self._peer = f"{task} ({address})"
        self._channel = open_channel(address, settings)
        self._stub = ps_pb2_grpc.ParameterServerStub(self._channel)
        self._near = near
        self._stream: _Session | None = None
        self._why_grpc = ""
        self._ps_generation = 0
        self._times_connected = 0
        self._max_step_bytes = settings.max_step_bytes
        self._held_bytes = 0
        self._request_id = 0
        self._request: StepRequest | None = None
        self._aborted: WindlassError | None = None
        self._closing = threading.Event()
        self._deadline = float("inf")

    @property
    def task(self) -> TaskId:
        """The ps."""
        return self._task

    @property
    def description(self) -> str:
        """How bytes travel."""
        stream = self._stream
        carrier = stream.carrier.description if stream is not None else "grpc"
        return f"grpc ({self._why_grpc})" if self._why_grpc and carrier == "grpc" else carrier

    @property
    def shares_memory(self) -> bool:
        """No."""
        return False

    @property
    def times_connected(self) -> int:
        """How often a session was opened, or tried to be: what went before may be at work at the ps yet."""
        return self._times_connected

    def held_bytes(self) -> int:
        """Bytes of values on this ps, as of the last definition."""
        return self._held_bytes

    # -- connecting --------------------------------------------------------------------------

    def connect(self, timeout_s: float) -> None:
        """Open the session; one attempt."""
        self._raise_if_aborted()
        if self._closing.is_set():
            raise PeerLostError(f"the session with {self._peer} was closed", peer=self._peer)
        self._times_connected += 1
        self._drop_stream()
        self._deadline = time.monotonic() + timeout_s
        try:
            stream = GrpcStream(self._channel, self._peer, self._settings.chunk_bytes)
            welcome = self._greet(stream)
            # A frame is a message; leave room for its header.
            stream.chunk_bytes = min(stream.chunk_bytes, welcome.max_message_bytes - 4096)
            # What is here must not be cancelled because something better does not answer.
            self._deadline = float("inf")
            if not self._comes_near(welcome):
                self._goes_direct(welcome)
        finally:
            self._deadline = float("inf")
        self._max_step_bytes = min(self._settings.max_step_bytes, welcome.max_step_bytes)

    def _greet(self, carrier: Carrier, ticket: bytes = b"") -> ps_pb2.Welcome:
        """Open a session on a new stream."""
        session = self._stream = _Session(carrier)
        hello = ps_pb2.Hello(
            versions=codec.versions_to_wire(own_versions()),
            expected_ps_generation=self._ps_generation,
            ticket=ticket,
        )
        getattr(hello, "from").CopyFrom(codec.incarnation_to_wire(self._who))
        try:
            carrier.send([ps_pb2.ExchangeRequest(hello=hello).SerializeToString()])
            content = session.next("connect").get(_WELCOME, memoryview(b""))
            welcome = _parse_welcome(content)
            theirs = codec.versions_from_wire(welcome.versions)
            check_protocol(own_versions(), theirs, peer=self._peer)
        except WindlassError:
            self._drop_stream()
            raise
        self._ps_generation = welcome.ps_generation
        return welcome

    def _comes_near(self, welcome: ps_pb2.Welcome) -> bool:
        """Go on over the ps's local socket, if it can be reached."""
        if not (self._near and welcome.local_socket):
            return False
        try:
            connection = local_connection(welcome.local_socket)
        except RefusedError as error:
            log.debug("%s has a local socket that cannot be used: %s", self._peer, error)
            return False
        return not self._moved(self._carried_by(connection, "unix socket", duplex=False))

    def _goes_direct(self, welcome: ps_pb2.Welcome) -> None:
        """Go on over a TCP connection of our own, or stay with gRPC where the port cannot be reached."""
        if not self._settings.tcp_sessions:
            self._why_grpc = "tcp_sessions is off"
            return
        if not welcome.session_port:
            self._why_grpc = "tcp_sessions is off at the ps"
            return
        host = self._address.rpartition(":")[0]
        try:
            connection = tcp_connection(host, welcome.session_port)
        except RefusedError as error:
            self._why_grpc = error.message
        else:
            carrier = self._carried_by(connection, "tcp", duplex=not is_here(connection))
            self._why_grpc = self._moved(carrier, welcome.ticket)
        if self._why_grpc:
            log.info("%s: the session stays with gRPC: %s", self._peer, self._why_grpc)

    def _carried_by(
        self, connection: socket.socket, description: str, *, duplex: bool
    ) -> SocketStream:
        limit = self._settings.max_message_bytes
        return SocketStream(connection, description, limit, self._peer, duplex=duplex)

    def _moved(self, carrier: Carrier, ticket: bytes = b"") -> str:
        """Greet anew over another carrier; returns why it is not used if it is not."""
        before = self._stream
        self._deadline = time.monotonic() + _MOVE_TIMEOUT_S
        try:
            self._greet(carrier, ticket)
        except WindlassError as error:  # no seat is left beside ours, or it let us not in
            log.debug("%s: not welcomed over %s: %s", self._peer, carrier.description, error)
            self._raise_if_aborted()
            self._stream = before
            return error.message
        finally:
            self._deadline = float("inf")
        if before is not None:
            before.carrier.close()
        return ""

    def expire(self, now: float) -> None:
        """Cancel a call that is past its deadline. From the session's watchdog thread."""
        if now > self._deadline:
            self._deadline = float("inf")
            stream = self._stream
            if stream is not None:
                stream.carrier.cancel()

    def abort(self, error: WindlassError) -> None:
        """Make a running and every later call raise ``error``."""
        self._aborted = error
        self._closing.set()
        stream = self._stream
        if stream is not None:
            stream.carrier.cancel()

    def close(self) -> None:
        """End the session."""
        self._closing.set()
        self._drop_stream()
        self._channel.close()

    def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.carrier.close()

    # -- definitions -------------------------------------------------------------------------

    def define(
        self, shards: Sequence[ShardDefinition], *, create: bool, restore_from: str = ""
    ) -> list[HeldShard]:
        """Create shards, or look them up."""
        held = []
        for start in range(0, len(shards), _DEFINE_BATCH):
            request = ps_pb2.DefineRequest(
                create=create,
                shards=[codec.shard_to_wire(s) for s in shards[start : start + _DEFINE_BATCH]],
                restore_from=restore_from,
            )
            response = self._define(request, "define variables")
            held += [codec.held_from_wire(item) for item in response.held]
        return held

    def bind(self, variables: Sequence[str], rule: UpdateRule) -> None:
        """Bind an update rule."""
        for start in range(0, len(variables), _DEFINE_BATCH):
            request = ps_pb2.DefineRequest(
                bind_variables=variables[start : start + _DEFINE_BATCH],
                bind_rule=codec.rule_to_wire(rule),
            )
            self._define(request, "bind an update rule")

    def _define(self, request: ps_pb2.DefineRequest, doing: str) -> ps_pb2.DefineResponse:
        getattr(request, "from").CopyFrom(codec.incarnation_to_wire(self._who))
        for attempt in attempts(
            timeout_s=self._settings.reconnect_timeout_s, stop=self._closing, max_s=1.0
        ):
            with attempt:
                self._raise_if_aborted()
                response = invoke(
                    self._stub.Define,
                    request,
                    peer=self._peer,
                    doing=doing,
                    # Filling or restoring a table takes as long as it takes; a ps that is gone is
                    # noticed by its connection, and by the chief.
                    timeout_s=_DEFINE_TIMEOUT_S,
                )
        self._held_bytes = response.held_bytes
        return response

    # -- steps -------------------------------------------------------------------------------

    def is_silent(self) -> bool:
        """Whether no answer has come to the step begun last. False if that cannot be known."""
        stream = self._stream  # `close` may take it away
        return stream is not None and stream.carrier.is_silent()

    def break_off(self) -> None:
        """Break the session; the next call opens another."""
        stream = self._stream
        if stream is not None:
            stream.carrier.cancel()

    def allows(self, payload_bytes: int) -> bool:
        """Whether a step of this size may be sent."""
        return payload_bytes <= self._max_step_bytes

    def send(self, request: StepRequest) -> None:
        """Begin a step."""
        self._raise_if_aborted()
        size = request.payload_bytes
        if not self.allows(size):
            raise LimitExceededError(
                f"a step of {size} bytes to {self._peer} is over max_step_bytes={self._max_step_bytes}; "
                "raise WINDLASS_MAX_STEP_BYTES on both sides, or spread the variables over more ps",
                limit="max_step_bytes",
                value=size,
                task=self._task,
            )
        if request.detached:
            request = replace(request, values=[piece.detached() for piece in request.values])
        self._request_id += 1
        self._request = request
        if self._stream is not None:
            self._transmit(self._stream, request)

    def receive(
        self, into: Sequence[memoryview], previous: Sequence[memoryview] | None = None
    ) -> PushResult:
        """Finish the step begun last."""
        request, self._request = self._request, None
        if request is None:
            raise RuntimeError("receive without send")
        if self._stream is not None:
            try:
                return self._receive(self._stream, request, into, previous)
            except PeerLostError as error:
                self._raise_if_aborted()
                log.warning("%s; reconnecting", error)
        for attempt in attempts(
            timeout_s=self._settings.reconnect_timeout_s, stop=self._closing, max_s=1.0
        ):
            with attempt:
                self._raise_if_aborted()
                result = self._again(request, into)
        return result

    def _again(self, request: StepRequest, into: Sequence[memoryview]) -> PushResult:
        """Connect anew and repeat a step; the ps knows if it was applied."""
        self.connect(self._settings.reconnect_timeout_s)
        stream = self._stream
        if stream is None:
            raise PeerLostError(f"step: the session with {self._peer} was closed", peer=self._peer)
        self._transmit(stream, request)
        return self._receive(stream, request, into, None)

    def _transmit(self, stream: "_Session", request: StepRequest) -> None:
        self._deadline = time.monotonic() + self._settings.request_timeout_s
        size = request.payload_bytes
        in_message = 0 if request.segment is not None else size
        early_reply = stream.carrier.sends_in_background(in_message)
        messages = self._messages(stream, request, size, early_reply)
        parts = _parts(request) if request.segment is None else ()
        stream.carrier.send(messages, in_message, parts)

    def _messages(
        self, stream: "_Session", request: StepRequest, size: int, early_reply: bool
    ) -> list[bytes]:
        messages: list[bytes] = []
        for layout in (request.push, request.pull):
            # A number may have come to stand for another layout.
            if layout is not None and stream.layouts.get(layout.layout_id) is not layout:
                stream.layouts[layout.layout_id] = layout
                stream.pulls.pop(layout.layout_id, None)
                messages.append(field(_LAYOUT, codec.layout_to_wire(layout).SerializeToString()))
        if request.segment is not None and stream.segment != request.segment:
            stream.segment = request.segment
            offer = codec.segment_to_wire(request.segment)
            messages.append(field(_SEGMENT, offer.SerializeToString()))
        step = ps_pb2.Step(
            request_id=self._request_id,
            sequence=request.sequence,
            push_layout=request.push.layout_id if request.push is not None else 0,
            pull_layout=request.pull.layout_id if request.pull is not None else 0,
            push_rows=[numbers.size for numbers in request.push_rows],
            pull_rows=[numbers.size for numbers in request.pull_rows],
            payload_bytes=size,
            global_step=request.global_step,
            step_increment=request.step_increment,
            gradient_scale=request.gradient_scale,
            payload_in_segment=request.segment is not None,
            direct_bytes=request.direct_bytes,
            known_request=stream.known_request(request),
            early_reply=early_reply and request.segment is None,
        )
        return [*messages, field(_STEP, step.SerializeToString())]

    def _receive(
        self,
        stream: "_Session",
        request: StepRequest,
        into: Sequence[memoryview],
        previous: Sequence[memoryview] | None,
    ) -> PushResult:
        refused: WindlassError | None = None
        try:
            fields = stream.next("step")
            reply = ps_pb2.StepReply.FromString(bytes(fields.get(_REPLY, b"")))
            if reply.request_id != self._request_id:
                raise RefusedError(
                    f"{self._peer} answered request {reply.request_id}, not {self._request_id}"
                )
            if reply.HasField("error"):
                refused = from_detail(reply.error)
                raise refused
            first = fields.get(RESPONSE_DATA, memoryview(b""))
            into = self._changed_parts(request, reply, into, previous)
            payload_bytes = reply.payload_bytes
            if total_bytes(into) != payload_bytes:
                raise RefusedError(
                    f"{self._peer} sent {payload_bytes} bytes for a pull of {total_bytes(into)}",
                    peer=self._peer,
                )
            stream.carrier.fill(first, into, "step")
            if reply.outcome_follows:
                last = stream.next("step").get(_REPLY, memoryview(b""))
                reply = ps_pb2.StepReply.FromString(bytes(last))
            stream.pulled(request, self._request_id)
        except PeerLostError:
            self._drop_stream()
            raise
        except WindlassError as error:
            if error is not refused:
                stream.carrier.cancel()  # nobody knows where the next answer begins
            raise
        finally:
            self._deadline = float("inf")
        return PushResult(reply.global_step, reply.staleness, reply.duplicate, payload_bytes)

    def _changed_parts(
        self,
        request: StepRequest,
        reply: ps_pb2.StepReply,
        into: Sequence[memoryview],
        previous: Sequence[memoryview] | None,
    ) -> Sequence[memoryview]:
        """Where the payload goes, if it has some of the pull's entries only; the others are filled in."""
        if not reply.changed or request.pull is None or previous is None:
            return into
        sizes = request.pull.sizes
        if len(reply.changed) != -(-sizes.size // 8):
            raise RefusedError(f"{self._peer} says what changed of another pull", peer=self._peer)
        changed = np.unpackbits(
            np.frombuffer(reply.changed, np.uint8), count=sizes.size, bitorder="little"
        ).astype(np.bool_)
        parts: list[memoryview] = []
        for moved, start, stop in runs_of(changed, sizes):
            for own, old in zip(
                cut_spans(into, start, stop), cut_spans(previous, start, stop), strict=True
            ):
                if moved:
                    parts.append(own)
                elif previous is not into:
                    own[:] = old
        return parts

    def _raise_if_aborted(self) -> None:
        if self._aborted is not None:
            raise self._aborted


class _Session:
    """One open stream and what was said in it."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.layouts: dict[int, WireLayout] = {}
        self.segment: SegmentAddress | None = None
        self.pulls: dict[int, int] = {}  # pull layout → the request that brought it last

    def next(self, doing: str) -> dict[int, memoryview]:
        """The fields of the next frame."""
        fields = dict(read_fields(self.carrier.next(doing)))
        if _FAILURE in fields:
            raise from_detail(errors_pb2.ErrorDetail.FromString(bytes(fields[_FAILURE])))
        return fields

    def known_request(self, request: StepRequest) -> int:
        """The request whose values are still at hand for this pull; 0: none."""
        if request.pull is None or not request.has_previous:
            return 0
        return self.pulls.get(request.pull.layout_id, 0)

    def pulled(self, request: StepRequest, request_id: int) -> None:
        """A pull was answered."""
        if request.pull is not None:
            self.pulls[request.pull.layout_id] = request_id


def _parse_welcome(content: memoryview) -> ps_pb2.Welcome:
    try:
        return ps_pb2.Welcome.FromString(bytes(content))
    except DecodeError as error:
        raise RefusedError(f"a Welcome cannot be read: {error}") from error


def _parts(request: StepRequest) -> Iterator[memoryview]:
    for numbers in (*request.push_rows, *request.pull_rows):
        yield as_bytes(numbers)
    for piece in request.values:
        yield piece.buffer()
