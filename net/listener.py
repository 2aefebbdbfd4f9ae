"""One port for everything: connections are accepted, and sorted by their first bytes.

One thread accepts and sorts (:mod:`~windlass.net.arrival`): ours get a thread when their greeting
has come, gRPC's are handed through to the gRPC server of this process. A connection that says
nothing, or does not come to the end of its greeting, costs a descriptor until it is closed, and no
thread.
"""

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..core.rare_log import RareLog
from .arrival import MAGIC, Arrival
from .descriptors import has_spare, most_silent_connections
from .stream import SocketStream

__all__ = ["GREETING_TIMEOUT_S", "MAGIC", "Listener"]

log = logging.getLogger(__name__)

GREETING_TIMEOUT_S = 10.0
_MAX_UNSORTED = 256
_RETRY_S = 0.1

MakeStream = Callable[[socket.socket], SocketStream]


@dataclass(slots=True)
class _Unsorted:
    make_stream: MakeStream
    until: float
    arrival: Arrival


class Listener:
    """Accepts connections on several sockets.

    Args:
        greeted: Called with a connection of ours and its greeting, as it came, in a thread of its
            own; owns it.
        other: Called with one that begins as gRPC's do, and with its first bytes; owns it and does
            not wait. None: it is closed.
        limit: Most connections that ``greeted`` handles at once; further ones are closed.
        greeting_timeout_s: How long the greeting may take, all of it. Unit: seconds.
        routed: Called with a connection that is to be forwarded, and with its ticket; owns it and
            does not wait. None: it is closed.
        make_arrival: Makes what tells by a connection's first bytes what it is.

    Attributes:
        refused: Connections that were closed since there were too many, or no room for them.
    """

    def __init__(
        self,
        greeted: Callable[[SocketStream, bytes], None],
        other: Callable[[socket.socket, bytes], None] | None,
        limit: int,
        greeting_timeout_s: float = GREETING_TIMEOUT_S,
        routed: Callable[[socket.socket, bytes], None] | None = None,
        make_arrival: Callable[[], Arrival] = Arrival,
    ) -> None:
        self.refused = 0
        self._make_arrival = make_arrival
        self._greeted = greeted
        self._other = other
        self._routed = routed
        self._limit = limit
        self._greeting_timeout_s = greeting_timeout_s
        self._lock = threading.Lock()
        self._open = 0
        self._max_unsorted = most_silent_connections(_MAX_UNSORTED)
        self._refused = RareLog(log)
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

    @property
    def served(self) -> int:
        """Connections that ``greeted`` handles now."""
        return self._open

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
        if not has_room or len(self._unsorted) >= self._max_unsorted:
            # The one that has said nothing for longest makes room.
            self.refused += 1
            self._forget(next(iter(self._unsorted))).close()
        until = time.monotonic() + self._greeting_timeout_s
        try:
            self._selector.register(connection, selectors.EVENT_READ)
        except OSError:
            connection.close()
            raise
        self._unsorted[connection] = _Unsorted(make_stream, until, self._make_arrival())

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
        arrival = unsorted.arrival
        try:
            # Read, not looked at: a selector says again and again that looked-at bytes are there.
            while wanted := arrival.wanted():
                more = connection.recv(wanted, socket.MSG_DONTWAIT)
                if not more:
                    break
                arrival.first += more
        except BlockingIOError:
            return  # the rest is on its way, or the time for it runs out
        except OSError as error:
            log.debug("a connection broke off: %s", error)
        self._forget(connection)
        try:
            if arrival.wanted():  # it ended
                connection.close()
            elif arrival.is_ours:
                self._hand_over(unsorted.make_stream(connection), arrival.greeting)
            elif self._other is not None and arrival.is_grpc:
                self._other(connection, arrival.first)
            elif self._routed is not None and arrival.ticket:
                self._routed(connection, arrival.ticket)
            else:
                connection.close()
        except OSError as error:
            self.refused += 1
            self._refused.warning("a connection was not let in: %s", error)
            connection.close()
        except Exception:
            connection.close()
            raise

    def _hand_over(self, stream: SocketStream, greeting: bytes) -> None:
        with self._lock:
            full = self._open >= self._limit
            self._open += not full
        if full:
            self.refused += 1
            self._refused.warning("a connection was refused: %d are open already", self._limit)
            stream.close()
            return
        handler = threading.Thread(
            target=self._handle, args=(stream, greeting), name="session", daemon=True
        )
        try:
            handler.start()
        except RuntimeError as error:  # no more threads
            log.warning("a connection could not be served: %s", error)
            stream.close()
            with self._lock:
                self._open -= 1

    def _handle(self, stream: SocketStream, greeting: bytes) -> None:
        try:
            self._greeted(stream, greeting)
        finally:
            with self._lock:
                self._open -= 1

    def _close_all(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._unsorted.clear()
