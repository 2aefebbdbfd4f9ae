"""One port for everything: connections are accepted, and sorted by their first bytes.

Ours begin with :data:`MAGIC`; gRPC's begin with HTTP/2's preface or a TLS handshake, and are handed
through to the gRPC server of this process. One thread accepts and sorts, so a connection that says
nothing costs a descriptor until it is closed, and no thread.
"""

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from .stream import SocketStream

log = logging.getLogger(__name__)

MAGIC = b"WNDL"
_HTTP2, _TLS = b"PRI ", b"\x16\x03"
_BEGINNINGS = (MAGIC, _HTTP2, _TLS)
GREETING_TIMEOUT_S = 10.0
_MAX_UNSORTED = 256
_RETRY_S = 0.1

MakeStream = Callable[[socket.socket], SocketStream]


@dataclass(slots=True)
class _Unsorted:
    make_stream: MakeStream
    until: float
    first: bytes = b""


class Listener:
    """Accepts connections on several sockets.

    Args:
        greeted: Called with a connection that begins as ours do, in a thread of its own; owns it.
        other: Called with one that begins as gRPC's do, and with its first bytes; owns it and does
            not wait. None: it is closed.
        limit: Most connections that ``greeted`` handles at once; further ones are closed.
        greeting_timeout_s: How long the first bytes may take, all of them. Unit: seconds.
    """

    def __init__(
        self,
        greeted: Callable[[SocketStream], None],
        other: Callable[[socket.socket, bytes], None] | None,
        limit: int,
        greeting_timeout_s: float = GREETING_TIMEOUT_S,
    ) -> None:
        self._greeted = greeted
        self._other = other
        self._limit = limit
        self._greeting_timeout_s = greeting_timeout_s
        self._lock = threading.Lock()
        self._open = 0
        self._selector = selectors.DefaultSelector()
        self._unsorted: dict[socket.socket, _Unsorted] = {}
        self._stopped = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="listen", daemon=True)

    def add(self, listening: socket.socket, make_stream: MakeStream) -> None:
        """Accept connections there, from :meth:`start` on.

        Args:
            listening: Owned from now on.
            make_stream: Makes a stream of a connection; raises OSError if it is not let in.
        """
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ, make_stream)

    def start(self) -> None:
        """Begin to accept."""
        self._thread.start()

    def stop(self) -> None:
        """Accept none any more. Idempotent; connections that were handed over go on."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._wake.close()
        if self._thread.ident is not None:
            self._thread.join()
        else:
            self._close_all()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                for key, _ in self._selector.select(self._next_timeout_s()):
                    self._look_at(key)
                self._drop_silent()
        finally:
            self._close_all()

    def _look_at(self, key: selectors.SelectorKey) -> None:
        try:
            if key.data is not None:
                self._accept(key.fileobj, key.data)  # type: ignore[arg-type]
            elif key.fileobj in self._unsorted:
                self._sort(key.fileobj)
        except Exception:  # whatever a connection brings, others are accepted
            log.exception("a connection could not be let in")
            self._stopped.wait(_RETRY_S)

    def _next_timeout_s(self) -> float | None:
        if not self._unsorted:
            return None
        return max(0.0, min(each.until for each in self._unsorted.values()) - time.monotonic())

    def _accept(self, listening: socket.socket, make_stream: MakeStream) -> None:
        try:
            connection, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("a connection could not be accepted: %s", error)
            self._stopped.wait(_RETRY_S)  # no descriptor is left; one may be soon
            return
        if len(self._unsorted) >= _MAX_UNSORTED:
            self._forget(next(iter(self._unsorted))).close()
        until = time.monotonic() + self._greeting_timeout_s
        try:
            self._selector.register(connection, selectors.EVENT_READ)
        except OSError:
            connection.close()
            raise
        self._unsorted[connection] = _Unsorted(make_stream, until)

    def _forget(self, connection: socket.socket) -> socket.socket:
        del self._unsorted[connection]
        self._selector.unregister(connection)
        return connection

    def _drop_silent(self) -> None:
        now = time.monotonic()
        for connection in [c for c, each in self._unsorted.items() if each.until <= now]:
            self._forget(connection).close()

    def _sort(self, connection: socket.socket) -> None:
        unsorted = self._unsorted[connection]
        try:
            # Read, not looked at: a selector says again and again that looked-at bytes are there.
            more = connection.recv(len(MAGIC) - len(unsorted.first), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        first = unsorted.first = unsorted.first + more
        if more and any(each != first and each.startswith(first) for each in _BEGINNINGS):
            return  # the rest is on its way, or the time for it runs out
        self._forget(connection)
        try:
            if first == MAGIC:
                self._hand_over(unsorted.make_stream(connection))
            elif self._other is not None and first.startswith((_HTTP2, _TLS)):
                self._other(connection, first)
            else:
                connection.close()
        except OSError as error:
            log.debug("a connection was not let in: %s", error)
            connection.close()
        except Exception:
            connection.close()
            raise

    def _hand_over(self, stream: SocketStream) -> None:
        with self._lock:
            if self._open >= self._limit:
                stream.close()
                return
            self._open += 1
        handler = threading.Thread(target=self._handle, args=(stream,), name="session", daemon=True)
        try:
            handler.start()
        except RuntimeError as error:  # no more threads
            log.warning("a connection could not be served: %s", error)
            stream.close()
            with self._lock:
                self._open -= 1

    def _handle(self, stream: SocketStream) -> None:
        try:
            self._greeted(stream)
        finally:
            with self._lock:
                self._open -= 1

    def _close_all(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._unsorted.clear()
