"""A connection of a client, and the calls on it.

A caller is a stranger until one of its calls is admitted; until then few bytes, frames and little
time are spent on it.
"""

import contextlib
import logging
import selectors
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .call import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    CallError,
    Origin,
    ServedCall,
    Status,
)
from .frames import Code, Fields, Http2Error
from .link import Http2Link
from .protocol import Http2Stream, Limits
from .reading import Transport, idle_links
from .shares import Caller, new_thread

log = logging.getLogger(__name__)

_STRANGER_FRAMES, _STRANGER_FRAMES_PER_S = 100, 4
_STRANGER_BYTES, _STRANGER_BYTES_PER_S = 48 * 1024, 1024
_STRANGER_REFUSALS = 2  # per connection
_FRAMES, _FRAMES_PER_S = 20_000, 5_000
_CALLS_PER_CONNECTION = 64
_MESSAGE_S = 10.0  # for a complete request to come
_UNTAKEN_BYTES = 256 * 1024  # of answers on a connection, before its calls are refused
_NO_MORE_CALLS = Status(RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded")  # gRPC's words


@dataclass(frozen=True, slots=True)
class Accepted:
    """A call that was admitted, with one of ``answer`` and ``serve``.

    Attributes:
        answer: Called with the request, in a thread of the pool; raises CallError.
        serve: Serves a call of many messages, in a thread of its own, which reads the connection
            from then on, until it calls its argument.
        metadata: The answer's.
        lets_in: Whether its caller is a stranger no longer.
        caller: Identity of the caller.
        group: Group of guests that the caller belongs to, which share a part of one processor;
            empty: it is no guest.
        most_bytes: Longest request, if that is less than the server's limit; 0: it is not.
        renews: Whether it renews a lease, and must be answered whatever others call.
    """

    answer: Callable[[bytes], bytes] | None = None
    serve: Callable[[Callable[[], None]], None] | None = None
    metadata: Fields = field(default_factory=list)
    lets_in: bool = True
    caller: Caller = None
    group: str = ""
    most_bytes: int = 0
    renews: bool = False


Method = Callable[[ServedCall], Accepted]
"""Lets a call in, or raises CallError; called as soon as its fields are there, by the thread that
reads.
"""


class ConnectionServer(Protocol):
    """The server, as a connection needs it."""

    methods: Mapping[str, Method]
    most_bytes: int

    def let_in(self, peer: "Peer", accepted: Accepted) -> bool:
        """Admit a connection of which a call of a stranger was admitted; False: there are too
        many.
        """
        ...

    def run(self, caller: Caller, work: Callable[[], None], *, renews: bool) -> bool:
        """Call ``work`` in a thread; False: too many calls are under way."""
        ...

    def worked(self, peer: "Peer", work_s: float) -> None:
        """Count the time that it took to answer a call."""
        ...

    def hold(self, caller: Caller, num_bytes: int) -> bool:
        """Count bytes of a request; False: there are too many."""
        ...

    def release(self, caller: Caller, num_bytes: int) -> None:
        """Count bytes of a request no longer."""
        ...

    def begin_tunnel(self, caller: Caller) -> bool:
        """Count a tunnel, which costs a thread; False: there are too many."""
        ...

    def end_tunnel(self, caller: Caller) -> None:
        """Count a tunnel no longer."""
        ...

    def send_soon(self, peer: "Peer") -> None:
        """Send what the socket of a connection did not take at once."""
        ...

    def take_back(self, peer: "Peer") -> None:
        """Read a connection again that a tunnel has read by itself."""
        ...


class Peer:
    """A connection, and the calls on it. See :class:`~ropewalk.net.http2.protocol.Handler`.

    Args:
        server: Serves it.
        stream: Owned from now on.
        first: Bytes that were read already.
        refusal: The answer to every call; None: they are served.

    Attributes:
        link: The connection.
        number: Number of the open file, for selectors.
        origin: Origin of the connection.
        since: Time at which the connection came, on the clock of ``time.monotonic``.
        idle_since: Time at which its last call ended.
        is_known: Whether one of its calls was admitted.
        caller: Identity of the one whose call was admitted first.
        group: Group of guests that this caller belongs to; empty: it is no guest.
        has_called: Whether it has called anything.
        renews: Whether it has renewed a lease.
        is_held: Whether it has sent too much, is not read any more, and will be closed.
        watched_by: The selector that it is registered with.
        watched_for: The events that it is registered for.
    """

    def __init__(
        self,
        server: ConnectionServer,
        stream: Transport,
        first: bytes,
        refusal: CallError | None,
    ) -> None:
        self.link = Http2Link(stream, Limits(streams=_CALLS_PER_CONNECTION), self)
        self.link.state.is_trusted = False
        self.link.state.frames_left = _STRANGER_FRAMES
        self.number = stream.readiness_fileno()
        self.origin = Origin(stream.peer_address, stream.principal)
        self.since = self.idle_since = time.monotonic()
        self.is_known = False
        self.caller: Caller = None
        self.group = ""
        self.has_called = False
        self.renews = False
        self.is_held = False
        self.watched_by: selectors.BaseSelector | None = None
        self.watched_for = 0
        self._server = server
        self._first: bytes | None = first
        self._refusal = refusal
        self._refusals = 0
        self._bytes_left = float(_STRANGER_BYTES)
        self._frames_earned = 0.0
        self._lock = threading.Lock()
        self._running = 0
        self._tunnels = 0

    def begin(self) -> None:
        """Send this side's settings; once."""
        first, self._first = self._first, None
        if first is None:
            return
        try:
            self.link.begin()
            if first:
                self.link.reading.feed(first)
        except OSError as error:
            self.link.fail(str(error))

    def trust(self, caller: Caller, group: str = "") -> None:
        """Treat it as known: one of its calls was admitted."""
        self.is_known, self.caller, self.group = True, caller, group
        self.link.state.is_trusted = True
        self.link.state.frames_left = _FRAMES

    def check_bytes(self) -> None:
        """Check that a stranger has not sent too much.

        Raises:
            Http2Error: It has.
        """
        if self.link.reading.received_bytes > self._bytes_left:
            raise Http2Error(Code.ENHANCE_YOUR_CALM, "too many bytes before a call was let in")

    def refill(self, elapsed_s: float) -> None:
        """Grant what a peer may send in this time."""
        if self.is_known:
            more = int(_FRAMES_PER_S * elapsed_s)
            self.link.state.frames_left = min(_FRAMES, self.link.state.frames_left + more)
            return
        self._bytes_left += _STRANGER_BYTES_PER_S * elapsed_s
        self._frames_earned += _STRANGER_FRAMES_PER_S * elapsed_s
        more, self._frames_earned = int(self._frames_earned), self._frames_earned % 1
        self.link.state.frames_left = min(_STRANGER_FRAMES, self.link.state.frames_left + more)

    def is_busy(self) -> bool:
        """Return whether a call is under way."""
        return bool(self.link.streams) or self._running > 0

    def end_late_requests(self, now: float) -> None:
        """Refuse calls whose request has not come in time."""
        for stream in list(self.link.streams.values()):
            waiting: Any = stream.context
            if not isinstance(waiting, _Request) or waiting.call.was_dispatched:
                continue
            if now - waiting.call.began > _MESSAGE_S:
                with contextlib.suppress(OSError):
                    self._refuse(
                        waiting,
                        Status(DEADLINE_EXCEEDED, f"no message came within {_MESSAGE_S:.0f} s"),
                    )

    # -- the link's ----------------------------------------------------------------------------

    def opened(self, stream: Http2Stream) -> None:
        """Handle the beginning of a call."""
        self.has_called = True
        call = ServedCall(self.link, stream, self.origin, self._server.most_bytes)
        if not call.is_grpc:
            self._count_refusal()
            call.refuse_http("415")
            return
        method = self._server.methods.get(call.path)
        try:
            if self._refusal is not None:
                raise self._refusal
            if method is None:
                self._count_refusal()
                call.fail_soon(Status(UNIMPLEMENTED, f"there is no method {call.path[:200]}"))
                return
            accepted = method(call)
        except CallError as error:
            self._count_refusal()
            call.fail_soon(error.status)
            return
        if accepted.lets_in and not self.is_known and not self._server.let_in(self, accepted):
            call.fail_soon(_NO_MORE_CALLS)
        elif accepted.serve is not None:
            self._serve(call, accepted.caller, accepted.serve)
        elif accepted.answer is not None:
            call.most_bytes = min(call.most_bytes, accepted.most_bytes or call.most_bytes)
            stream.context = _Request(call, accepted, accepted.answer)
            self.progressed(stream)

    def progressed(self, stream: Http2Stream) -> None:
        """Handle more bytes of a call."""
        waiting: Any = stream.context
        if not isinstance(waiting, _Request) or waiting.call.was_dispatched:
            return
        call, accepted = waiting.call, waiting.accepted
        if stream.broken:
            self._release(waiting)
            return
        try:
            request = call.request()
        except CallError as error:
            self._refuse(waiting, error.status)
            return
        if not self._hold(waiting):
            self._refuse(waiting, _NO_MORE_CALLS)
            return
        if request is None:
            return
        call.was_dispatched = True
        self.renews |= accepted.renews
        takes_nothing = self.link.answers.num_bytes > _UNTAKEN_BYTES and not accepted.renews
        if takes_nothing or not self._begin_work():
            self._refuse(waiting, _NO_MORE_CALLS)
        elif not self._server.run(
            accepted.caller, lambda: self._answer(waiting, request), renews=accepted.renews
        ):
            self._end_work()
            self._refuse(waiting, _NO_MORE_CALLS)

    def _refuse(self, waiting: "_Request", status: Status) -> None:
        self._release(waiting)
        waiting.call.fail_soon(status)

    def _hold(self, waiting: "_Request") -> bool:
        """Count what has come of a request; False: there is too much of all requests."""
        more = waiting.call.request_bytes - waiting.held
        if not self._server.hold(waiting.accepted.caller, more):
            return False
        waiting.held += more
        return True

    def _release(self, waiting: "_Request") -> None:
        held, waiting.held = waiting.held, 0
        self._server.release(waiting.accepted.caller, held)

    def _count_refusal(self) -> None:
        self._refusals += 1
        if not self.is_known and self._refusals >= _STRANGER_REFUSALS:
            self.link.state.frames_left = 0  # this one is still answered

    def _begin_work(self) -> bool:
        # A call that was reset keeps its thread until that notices.
        with self._lock:
            if self._running >= 2 * _CALLS_PER_CONNECTION:
                return False
            self._running += 1
        return True

    def _end_work(self) -> None:
        with self._lock:
            self._running -= 1
            self.idle_since = time.monotonic()

    def _answer(self, waiting: "_Request", request: bytes) -> None:
        call, metadata = waiting.call, waiting.accepted.metadata
        began = time.thread_time()
        try:
            if not call.is_waiting():
                return
            if self.link.answers.num_bytes > _UNTAKEN_BYTES and not waiting.accepted.renews:
                call.fail(_NO_MORE_CALLS, metadata)
                return
            try:
                message = waiting.answer(request)
            except CallError as error:
                call.fail(error.status, metadata)
            except Exception as error:
                log.exception("%s failed", call.path)
                call.fail(Status(INTERNAL, f"{type(error).__name__}: {error}"), metadata)
            else:
                call.answer(message, metadata)
        finally:
            self._release(waiting)
            self._end_work()
            self._server.worked(self, time.thread_time() - began)
            if self.link.is_blocked:
                self._server.send_soon(self)

    def _serve(
        self,
        call: ServedCall,
        caller: Caller,
        serve: Callable[[Callable[[], None]], None],
    ) -> None:
        """Let a tunnel read the connection from now on."""
        if not self._server.begin_tunnel(caller):
            call.fail_soon(_NO_MORE_CALLS)
            return
        call.was_dispatched = True
        with self._lock:
            self._tunnels += 1
        self.link.reading.is_driven = False

        is_left = threading.Event()

        def left() -> None:
            if not is_left.is_set():
                is_left.set()
                self._left()

        def run() -> None:
            try:
                serve(left)
            except OSError as error:
                log.debug("a tunnel broke off: %s", error)
                left()
            finally:
                self._server.end_tunnel(caller)

        def failed(_: BaseException) -> None:
            call.cancel()
            left()

        try:
            new_thread("tunnel", run, failed).start()
        except RuntimeError as error:  # no more threads
            self._server.end_tunnel(caller)
            call.fail_soon(Status(RESOURCE_EXHAUSTED, str(error)))
            left()

    def _left(self) -> None:
        """Handle the end of a tunnel; after the last one the server reads again."""
        with self._lock:
            self._tunnels -= 1
            last = not self._tunnels
        if last:
            idle_links.forget(self.link)
            self._server.take_back(self)


@dataclass(slots=True)
class _Request:
    """A call whose request is still coming, and how many bytes of it are counted."""

    call: ServedCall
    accepted: Accepted
    answer: Callable[[bytes], bytes]
    held: int = 0
