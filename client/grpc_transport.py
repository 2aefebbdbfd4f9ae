"""Sessions with a ps over a stream of frames: gRPC's, or a socket of this machine.

A new unary call costs about 0.25 ms and a 64 MiB message moves at 0.36 GB/s; a message on an open
stream costs about half, and chunks of 512 KiB move at over 2 GB/s. So a session is one stream, and a step is
a header frame with the first chunk in it, then chunks. Between processes of one machine and user the same
frames go through a Unix socket, at a tenth of the cost of a message.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ..core import codec
from ..core.arrays import as_bytes, total_bytes
from ..core.backoff import attempts
from ..core.definitions import ShardDefinition
from ..core.error_table import from_detail
from ..core.errors import (
    LimitExceededError,
    PeerLostError,
    RefusedError,
    WindlassError,
)
from ..core.frames import REQUEST_DATA, RESPONSE_DATA, FrameWriter, field, read_fields
from ..core.settings import Settings
from ..core.shared_memory import SegmentAddress
from ..core.steps import HeldShard, PushResult, StepRequest, WireLayout
from ..core.task import Incarnation, TaskId
from ..core.update_rules import UpdateRule
from ..core.versions import check_protocol, own_versions
from ..proto.v1 import errors_pb2, ps_pb2, ps_pb2_grpc
from .channel import invoke, open_channel
from .spans import cut_spans, runs_of
from .streams import Carrier, GrpcStream, SocketStream

log = logging.getLogger(__name__)

_LAYOUT = ps_pb2.ExchangeRequest.LAYOUT_FIELD_NUMBER
_STEP = ps_pb2.ExchangeRequest.STEP_FIELD_NUMBER
_SEGMENT = ps_pb2.ExchangeRequest.SEGMENT_FIELD_NUMBER
_WELCOME = ps_pb2.ExchangeResponse.WELCOME_FIELD_NUMBER
_REPLY = ps_pb2.ExchangeResponse.STEP_FIELD_NUMBER
_FAILURE = ps_pb2.ExchangeResponse.FAILURE_FIELD_NUMBER

_DEFINE_TIMEOUT_S = 3600.0
_DEFINE_BATCH = 2000  # definitions per message: about 200 bytes each, far below max_message_bytes


class GrpcTransport:
    """See :class:`~windlass.client.transport.PsTransport`.

    Args:
        task: The ps.
        address: Where it is.
        who: This worker.
        settings: Deadlines and bounds.
        near: Use the ps's local socket where it can be reached.
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
        self._ps_generation = 0
        self._max_step_bytes = settings.max_step_bytes
        self._chunk_bytes = settings.chunk_bytes
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
        return stream.carrier.description if stream is not None else "grpc"

    @property
    def shares_memory(self) -> bool:
        """No."""
        return False

    def held_bytes(self) -> int:
        """Bytes of values on this ps, as of the last definition."""
        return self._held_bytes

    # -- connecting --------------------------------------------------------------------------

    def connect(self, timeout_s: float) -> None:
        """Open the session; one attempt."""
        self._raise_if_aborted()
        self._drop_stream()
        self._deadline = time.monotonic() + timeout_s
        try:
            welcome = self._greet(GrpcStream(self._channel, self._peer))
            if self._near and welcome.local_socket:
                self._come_near(welcome.local_socket)
        finally:
            self._deadline = float("inf")
        self._max_step_bytes = min(self._settings.max_step_bytes, welcome.max_step_bytes)
        # A frame is a message; leave room for its header.
        self._chunk_bytes = min(self._settings.chunk_bytes, welcome.max_message_bytes - 4096)

    def _greet(self, carrier: Carrier) -> ps_pb2.Welcome:
        """Open a session on a new stream."""
        session = self._stream = _Session(carrier)
        hello = ps_pb2.Hello(
            versions=codec.versions_to_wire(own_versions()),
            expected_ps_generation=self._ps_generation,
        )
        getattr(hello, "from").CopyFrom(codec.incarnation_to_wire(self._who))
        try:
            carrier.send(iter([ps_pb2.ExchangeRequest(hello=hello).SerializeToString()]))
            content = session.next("connect").get(_WELCOME, memoryview(b""))
            welcome = ps_pb2.Welcome.FromString(bytes(content))
        except WindlassError:
            self._drop_stream()
            raise
        check_protocol(own_versions(), codec.versions_from_wire(welcome.versions), peer=self._peer)
        self._ps_generation = welcome.ps_generation
        return welcome

    def _come_near(self, name: str) -> None:
        """Go on over the ps's local socket, or stay with gRPC where it cannot be reached."""
        far = self._stream
        try:
            carrier = SocketStream(name, self._settings.max_message_bytes, self._peer)
        except RefusedError as error:
            log.debug("%s has a local socket that cannot be used: %s", self._peer, error)
            return
        try:
            self._greet(carrier)
        except WindlassError as error:  # no seat is left beside ours, or the socket let us not in
            log.debug("%s: its local socket did not welcome us: %s", self._peer, error)
            self._raise_if_aborted()
            self._stream = far
            return
        if far is not None:
            far.carrier.close()

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
        stream.carrier.send(self._messages(stream, request))

    def _messages(self, stream: "_Session", request: StepRequest) -> Iterator[bytes]:
        for layout in (request.push, request.pull):
            # A number may have come to stand for another layout.
            if layout is not None and stream.layouts.get(layout.layout_id) is not layout:
                stream.layouts[layout.layout_id] = layout
                stream.pulls.pop(layout.layout_id, None)
                yield field(_LAYOUT, codec.layout_to_wire(layout).SerializeToString())
        step = ps_pb2.Step(
            request_id=self._request_id,
            sequence=request.sequence,
            push_layout=request.push.layout_id if request.push is not None else 0,
            pull_layout=request.pull.layout_id if request.pull is not None else 0,
            push_rows=[numbers.size for numbers in request.push_rows],
            pull_rows=[numbers.size for numbers in request.pull_rows],
            payload_bytes=request.payload_bytes,
            global_step=request.global_step,
            step_increment=request.step_increment,
            gradient_scale=request.gradient_scale,
            payload_in_segment=request.segment is not None,
            direct_bytes=request.direct_bytes,
            known_request=stream.known_request(request),
            early_reply=stream.carrier.sends_in_background and not request.segment,
        )
        if request.segment is not None:
            if stream.segment != request.segment:
                stream.segment = request.segment
                offer = codec.segment_to_wire(request.segment)
                yield field(_SEGMENT, offer.SerializeToString())
            yield field(_STEP, step.SerializeToString())
            return
        writer = FrameWriter(
            field(_STEP, step.SerializeToString()), REQUEST_DATA, self._chunk_bytes
        )
        for numbers in (*request.push_rows, *request.pull_rows):
            yield from writer.add(as_bytes(numbers))
        for piece in request.values:
            yield from writer.add(piece.buffer())
        yield from writer.finish()

    def _receive(
        self,
        stream: "_Session",
        request: StepRequest,
        into: Sequence[memoryview],
        previous: Sequence[memoryview] | None,
    ) -> PushResult:
        try:
            fields = stream.next("step")
            reply = ps_pb2.StepReply.FromString(bytes(fields.get(_REPLY, b"")))
            if reply.request_id != self._request_id:
                raise RefusedError(
                    f"{self._peer} answered request {reply.request_id}, not {self._request_id}"
                )
            if reply.HasField("error"):
                raise from_detail(reply.error)
            first = fields.get(RESPONSE_DATA, memoryview(b""))
            into = self._changed_parts(request, reply, into, previous)
            payload_bytes = reply.payload_bytes
            _scatter(stream, first, payload_bytes, into, self._peer)
            if reply.outcome_follows:
                last = stream.next("step").get(_REPLY, memoryview(b""))
                reply = ps_pb2.StepReply.FromString(bytes(last))
            stream.pulled(request, self._request_id)
        except PeerLostError:
            self._drop_stream()
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


def _scatter(
    stream: _Session, first: memoryview, total: int, into: Sequence[memoryview], peer: str
) -> None:
    """Copy a payload's frames to where its parts belong."""
    room = total_bytes(into)
    if room != total:
        raise RefusedError(f"{peer} sent {total} bytes for a pull of {room}", peer=peer)
    frame = first
    for target in into:
        filled = 0
        while filled < len(target):
            if not frame:
                frame = stream.next("step").get(RESPONSE_DATA, memoryview(b""))
            piece = frame[: len(target) - filled]
            target[filled : filled + len(piece)] = piece
            filled += len(piece)
            frame = frame[len(piece) :]
