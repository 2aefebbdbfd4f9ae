"""The port of a task: connections are accepted, and sorted by their first bytes.

One thread accepts, sorts, and takes connections through TLS (:mod:`~ropewalk.net.arrival`): ours
get a thread when their greeting has come, gRPC's go to the server of calls. A connection that sends
nothing, or does not complete its greeting, costs a descriptor until it is closed, and no thread.
All of them together cost a share of the thread's time: beyond it, new connections wait in the
system's queue.
"""

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..core.errors import RopewalkError, UnauthenticatedError
from ..core.process.log_records import RareLog
from ..core.process.threads import new_thread, nobody_waits
from .arrival import Arrival, Caller, MakeStream, Sorted
from .auth.tls_handshake import TlsServer
from .auth.tls_stream import TlsStream
from .http2.server import Http2Server
from .http2.shares import WorkBudget
from .stream import Buffer, SocketStream
from .this_machine import has_spare, most_silent_connections
from .unary import call_error

log = logging.getLogger(__name__)

GREETING_TIMEOUT_S = 10.0
_MAX_UNSORTED = 256
_MAX_HANDSHAKES = 64  # of TLS: OpenSSL has 100 KB and more for each
_LEAST_STAY_S = 0.1  # for a handshake, before another one takes its place
_RETRY_S = 0.1
_FULL_S = 0.02  # until the next check for room for calls
_SHARE, _BURST_S = 0.2, 0.5
_LINGER_S = 1.0
_LINGER_BYTES = 64 * 1024


@dataclass(slots=True)
class _Unsorted:
    caller: Caller
    began: float
    until: float
    is_leaving: bool = False  # it was refused
    read: int = 0  # bytes since it was refused


class Listener:
    """Accepts connections on several sockets.

    Args:
        greeted: Called with a connection of ours and its unparsed greeting, in a thread of its own;
            owns it.
        calls: Serves connections that begin as gRPC's do. None: they are closed.
        limit: Most connections that ``greeted`` handles at once; further ones are closed.
        greeting_timeout_s: Longest time that a complete greeting may take. Unit: seconds.
        routed: Called with a connection that is to be forwarded, and with its ticket; owns it and
            does not wait. None: it is closed.
        make_arrival: Makes the sorter of a connection's first bytes.
        refusal: Makes the answer to a connection of ours that is refused before its greeting is
            read.

    Attributes:
        refused: Number of connections that were closed, since there were too many or there was no
            room.
        tls: The TLS that connections over TCP have to go through; None: they are plain.
    """

    def __init__(
        self,
        greeted: Callable[[SocketStream | TlsStream, bytes], None],
        calls: Http2Server | None,
        limit: int,
        greeting_timeout_s: float = GREETING_TIMEOUT_S,
        routed: Callable[[socket.socket, bytes], None] | None = None,
        make_arrival: Callable[[], Arrival] = Arrival,
        refusal: Callable[[RopewalkError], Buffer] = lambda _: b"",
    ) -> None:
        self.refused = 0
        self.tls: TlsServer | None = None
        self._make_arrival = make_arrival
        self._greeted = greeted
        self._calls = calls
        self._routed = routed
        self._refusal = refusal
        self._limit = limit
        self._greeting_timeout_s = greeting_timeout_s
        self._lock = threading.Lock()
        self._open = 0
        self._max_unsorted = most_silent_connections(_MAX_UNSORTED)
        self._refused = RareLog(log)
        self._budget = WorkBudget(_SHARE, _BURST_S)
        self._selector = selectors.DefaultSelector()
        self._listening: dict[socket.socket, MakeStream] = {}
        self._is_paused = False
        self._unsorted: dict[socket.socket, _Unsorted] = {}
        self._stopped = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = new_thread("listen", self._run, failed=nobody_waits)

    def add(self, listening: socket.socket, make_stream: MakeStream) -> None:
        """Accept connections there, from :meth:`start` on.

        Args:
            listening: Owned from now on.
            make_stream: Makes a stream of a connection; raises OSError if it is not let in.
        """
        listening.setblocking(False)
        self._listening[listening] = make_stream
        self._selector.register(listening, selectors.EVENT_READ, make_stream)

    def start(self) -> None:
        """Begin to accept."""
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting. Idempotent; connections that were handed over continue."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._wake.close()
        if self._thread.ident is not None:
            self._thread.join()
        else:
            self._close_all()

    @property
    def served(self) -> int:
        """Connections that ``greeted`` handles now."""
        return self._open

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    self._turn()
                except Exception:  # the port must stay open
                    log.exception("a turn of accepting connections failed")
                    self._stopped.wait(_RETRY_S)
        finally:
            self._close_all()

    def _turn(self) -> None:
        self._pace()
        ready = self._selector.select(self._next_timeout_s())
        began = time.thread_time()
        for key, _ in ready:
            self._look_at(key)
            time.sleep(0)  # threads that serve steps wait for the interpreter otherwise
        self._drop_silent()
        self._budget.spend(time.thread_time() - began)

    def _pace(self) -> None:
        """Keep to the share of time, and accept over TCP only while there is room for calls."""
        if self._unsorted and (wait_s := self._budget.wait_s(time.monotonic())):
            self._stopped.wait(min(wait_s, _RETRY_S))
        full = (self._calls is not None and not self._calls.has_room()) or self._is_busy()
        if full == self._is_paused:
            return
        self._is_paused = full
        for listening, make_stream in self._listening.items():
            if listening.family == socket.AF_UNIX:
                continue
            if full:
                self._selector.unregister(listening)
            else:
                self._selector.register(listening, selectors.EVENT_READ, make_stream)

    def _is_busy(self) -> bool:
        """Return whether there are as many handshakes as allowed, all of them recent."""
        if self.tls is None or len(self._unsorted) < _MAX_HANDSHAKES:
            return False
        return time.monotonic() - next(iter(self._unsorted.values())).began < _LEAST_STAY_S

    def _look_at(self, key: selectors.SelectorKey) -> None:
        try:
            if key.data is not None:
                self._accept(key.fileobj, key.data)  # type: ignore[arg-type]
            elif key.fileobj in self._unsorted:
                self._sort(key.fileobj)
        except Exception:  # one connection's failure does not concern the others
            log.exception("a connection could not be let in")
            self._stopped.wait(_RETRY_S)

    def _next_timeout_s(self) -> float | None:
        if not self._unsorted:
            return _FULL_S if self._is_paused else None
        soonest = min(unsorted.until for unsorted in self._unsorted.values())
        left_s = max(0.0, soonest - time.monotonic())
        return min(left_s, _FULL_S) if self._is_paused else left_s

    def _accept(self, listening: socket.socket, make_stream: MakeStream) -> None:
        try:
            connection, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._refused.warning("a connection could not be accepted: %s", error)
            self._stopped.wait(_RETRY_S)  # no descriptor is left; one may be soon
            return
        has_room = has_spare(connection.fileno())
        if not has_room:
            self._refused.warning(
                "%d files are open, and the rest is for checkpoints and logs: connections are "
                "refused; raise the limit of open files (ulimit -n)",
                connection.fileno(),
            )
        if not has_room and not self._unsorted:
            self.refused += 1
            connection.close()
            return
        most = self._max_unsorted if self.tls is None else min(_MAX_HANDSHAKES, self._max_unsorted)
        if not has_room or len(self._unsorted) >= most:
            # The connection that has been silent for longest makes room.
            self.refused += 1
            self._close(next(iter(self._unsorted)))
        now = time.monotonic()
        try:
            self._selector.register(connection, selectors.EVENT_READ)
        except OSError:
            connection.close()
            raise
        caller = Caller(connection, make_stream, self._make_arrival(), self.tls)
        self._unsorted[connection] = _Unsorted(caller, now, now + self._greeting_timeout_s)
        self._sort(connection)  # most have sent their first bytes already

    def _forget(self, connection: socket.socket) -> Caller:
        unsorted = self._unsorted.pop(connection)
        self._selector.unregister(connection)
        return unsorted.caller

    def _close(self, connection: socket.socket) -> None:
        self._forget(connection).close()

    def _drop_silent(self) -> None:
        now = time.monotonic()
        for connection in [c for c, unsorted in self._unsorted.items() if unsorted.until <= now]:
            self._close(connection)

    def _sort(self, connection: socket.socket) -> None:
        unsorted = self._unsorted[connection]
        if unsorted.is_leaving:
            self._see_out(connection, unsorted)
            return
        try:
            sorted_connection = unsorted.caller.step()
        except UnauthenticatedError:
            self._begin_leaving(unsorted)
            return
        except EOFError:
            self._close(connection)
            return
        except OSError as error:
            self.refused += 1
            self._refused.warning("a connection was not let in: %s", error)
            self._close(connection)
            return
        except Exception:
            self._close(connection)
            raise
        if sorted_connection is not None:
            self._hand_on(connection, unsorted, sorted_connection)

    def _hand_on(self, connection: socket.socket, unsorted: _Unsorted, arrived: Sorted) -> None:
        stream, arrival = arrived.stream, arrived.arrival
        if arrival.is_ours and arrived.refusal is not None:
            with contextlib.suppress(OSError):  # the peer is gone already
                stream.send_now([self._refusal(arrived.refusal)])
            self._begin_leaving(unsorted)
            return
        caller = self._forget(connection)
        try:
            if arrival.is_ours:
                self._hand_over(stream, arrival.greeting)
            elif self._calls is not None and arrival.is_grpc:
                first = b"" if isinstance(stream, TlsStream) else arrival.first
                refusal = call_error(arrived.refusal) if arrived.refusal else None
                self._calls.accept(stream, first, refusal)
            elif self._routed is not None and arrival.ticket:
                self._routed(connection, arrival.ticket)
            else:
                caller.close()
        except OSError as error:
            self.refused += 1
            self._refused.warning("a connection was not let in: %s", error)
            caller.close()
        except Exception:
            caller.close()
            raise

    def _begin_leaving(self, unsorted: _Unsorted) -> None:
        """Let a refused peer read why.

        A socket that is closed with unread bytes resets the connection, and then the peer may not
        receive what was sent to it: so its bytes are read, for a moment.
        """
        unsorted.is_leaving = True
        unsorted.until = time.monotonic() + _LINGER_S
        with contextlib.suppress(OSError):
            unsorted.caller.connection.shutdown(socket.SHUT_WR)

    def _see_out(self, connection: socket.socket, unsorted: _Unsorted) -> None:
        try:
            more = connection.recv(_LINGER_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        unsorted.read += len(more)
        if not more or unsorted.read > _LINGER_BYTES:
            self._close(connection)

    def _hand_over(self, stream: SocketStream | TlsStream, greeting: bytes) -> None:
        with self._lock:
            full = self._open >= self._limit
            self._open += not full
        if full:
            self.refused += 1
            self._refused.warning("a connection was refused: %d are open already", self._limit)
            stream.close()
            return
        handle = partial(self._handle, stream, greeting)
        handler = new_thread("session", handle, failed=nobody_waits)
        try:
            handler.start()
        except RuntimeError as error:  # no more threads
            log.warning("a connection could not be served: %s", error)
            stream.close()
            with self._lock:
                self._open -= 1

    def _handle(self, stream: SocketStream | TlsStream, greeting: bytes) -> None:
        try:
            self._greeted(stream, greeting)
        except Exception:
            log.exception("a connection could not be served")
            stream.close()
        finally:
            with self._lock:
                self._open -= 1

    def _close_all(self) -> None:
        for unsorted in self._unsorted.values():
            unsorted.caller.close()
        for listening in self._listening:
            listening.close()
        self._selector.close()
        self._woken.close()
        self._unsorted.clear()
