"""Serving gRPC's calls: one thread reads all connections, and methods answer in threads of a pool.

A caller is a stranger until one of its calls is admitted. Strangers get no thread, few bytes and
frames, and a share of the reading thread's time; a connection that asks for more, or reads nothing,
is kept for a moment and closed. (If it were closed at once, the stranger would come back at once.)
The connections of known callers are read first, so a lease is renewed whatever strangers send.
"""

import contextlib
import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from ...core.errors import RopewalkError
from ...core.process.threads import new_thread, nobody_waits
from ..stream import READ_BYTES, SocketStream
from ..tls.stream import TlsStream
from ..work_budget import WorkBudget
from .frames import Http2Error
from .idle import idle_links
from .peer import Method, Peer

log = logging.getLogger(__name__)

_STRANGERS = 64
_LEAST_STAY_S = 0.1  # for a stranger, before another one takes its place
_FIRST_CALL_S = 10.0
_STRANGER_READ_BYTES = 4096
_STRANGERS_SHARE, _STRANGERS_BURST_S = 0.1, 0.3
_READS = 16  # from one connection in a row
_SWEEP_S = 0.5
_SWEEP_STRANGERS_S = 0.05
_LEAVING_S = 5.0  # for a client to learn that it should disconnect


class Http2Server:
    """Serves methods on the connections that it accepts.

    Args:
        methods: By path.
        executor: Runs them.
        most_calls: Most calls at once, including those that wait for a thread.
        limit: Most connections of known callers.
        most_bytes: Longest request.
        idle_s: A connection without a call ends after so long; the client connects anew.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        executor: Executor,
        *,
        most_calls: int,
        limit: int,
        most_bytes: int,
        idle_s: float,
    ) -> None:
        self.methods = methods
        self.most_bytes = most_bytes
        self._executor = executor
        self._most_calls = most_calls
        self._limit = limit
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._calls = 0
        self._peers: set[Peer] = set()
        self._strangers: dict[Peer, None] = {}  # the oldest first
        self._arriving: deque[Peer] = deque()
        self._again: set[Peer] = set()  # may have more that was read already
        self._selector = selectors.DefaultSelector()
        self._strange = selectors.DefaultSelector()
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._budget = WorkBudget(_STRANGERS_SHARE, _STRANGERS_BURST_S)
        self._swept = 0.0
        self._stopped = threading.Event()
        self._is_ending = False
        self._idle = threading.Condition(self._lock)
        self._thread = new_thread("http2", self._run, failed=nobody_waits)

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def has_room(self) -> bool:
        """Whether one more stranger can be served."""
        with self._lock:
            if len(self._strangers) < _STRANGERS:
                return True
            oldest = next(iter(self._strangers))
        return time.monotonic() - oldest.since >= _LEAST_STAY_S

    def accept(
        self,
        stream: SocketStream | TlsStream,
        first: bytes,
        refusal: RopewalkError | None = None,
    ) -> None:
        """Serve a connection, which is owned from now on.

        Args:
            stream: Connected; TLS, if the port uses it, has begun.
            first: Bytes that were read already.
            refusal: The answer to every call; None: they are served.
        """
        self._arrive(Peer(self, stream, first, refusal))

    def stop(self, grace_s: float) -> None:
        """Take no more calls, wait ``grace_s`` for running ones, and end every connection.

        Idempotent.
        """
        with self._lock:
            if self._is_ending:
                return
            self._is_ending = True
            peers = list(self._peers)
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.link.go_away()
        with self._idle:
            self._idle.wait_for(lambda: not self._calls, grace_s)
        with self._lock:
            self._stopped.set()
        self._wake_up()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            peers = list(self._peers)
            for number in (self._wake, self._woken):
                os.close(number)
        for peer in peers:
            peer.link.close()
        self._selector.close()
        self._strange.close()

    # -- called by peers, in any thread --------------------------------------------------------

    def let_in(self, peer: Peer) -> bool:
        """A call of a stranger was admitted; False: there are too many connections."""
        with self._lock:
            if len(self._peers) - len(self._strangers) >= self._limit:
                return False
            self._strangers.pop(peer, None)
        peer.trust()
        return True

    def run(self, work: Callable[[], None]) -> bool:
        """Call ``work`` in a thread; False: too many calls are under way."""
        with self._lock:
            if self._calls >= self._most_calls or self._stopped.is_set():
                return False
            self._calls += 1
        try:
            self._executor.submit(self._work, work)
        except RuntimeError:  # no more threads, or the pool has ended
            self._worked()
            return False
        return True

    def _work(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            log.debug("an answer is not heard: %s", error)
        except Exception:
            log.exception("a call could not be answered")
        finally:
            self._worked()

    def _worked(self) -> None:
        with self._idle:
            self._calls -= 1
            self._idle.notify_all()

    def take_back(self, peer: Peer) -> None:
        """Read a connection again that a tunnel has read by itself."""
        self._arrive(peer)

    def _arrive(self, peer: Peer) -> None:
        with self._lock:
            refused = self._stopped.is_set()
            if not refused:
                self._arriving.append(peer)
                if peer not in self._peers:
                    self._peers.add(peer)
                    self._strangers[peer] = None
                self._wake_up()
        if refused:
            peer.link.close()

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it will wake up
            os.write(self._wake, b"x")

    # -- the thread that reads -----------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._turn()
            except Exception:  # whatever one connection brings, others are served
                log.exception("a turn of serving calls failed")
                self._stopped.wait(_SWEEP_STRANGERS_S)

    def _turn(self) -> None:
        now = time.monotonic()
        pause_s = self._budget.wait_s(now) if self._strangers else 0.0
        self._listen_to_strangers(pause_s <= 0)
        period_s = _SWEEP_STRANGERS_S if self._strangers else _SWEEP_S
        timeout_s = 0.0 if self._again else min(period_s, pause_s or period_s)
        ready = {key.data for key, _ in self._selector.select(timeout_s)}
        if None in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
            self._let_arrive()
        again, self._again = self._again, set()
        for peer in (ready | again) - {None, self}:
            self._read(peer)
        if self in ready:
            began = time.thread_time()
            for key, _ in self._strange.select(0):
                self._read(key.data)
                time.sleep(0)  # threads that serve steps wait for the interpreter otherwise
            self._budget.spend(time.thread_time() - began)
        now = time.monotonic()
        if now - self._swept >= period_s:
            self._sweep(now, now - self._swept if self._swept else 0.0)
            self._swept = now

    def _listen_to_strangers(self, listen: bool) -> None:
        number = self._strange.fileno()
        registered = number in self._selector.get_map()
        if listen and not registered:
            self._selector.register(number, selectors.EVENT_READ, self)
        elif not listen and registered:
            self._selector.unregister(number)

    def _let_arrive(self) -> None:
        began = time.thread_time()
        while self._arriving:
            peer = self._arriving.popleft()
            if not peer.is_known:
                self._make_room()
            peer.begin()
            if peer.link.broken:
                self.drop(peer)
                continue
            peer.link.reading.is_driven = True
            peer.link.wake()
            self._watch(peer)
            self._again.add(peer)
        self._budget.spend(time.thread_time() - began)

    def _make_room(self) -> None:
        with self._lock:
            if len(self._strangers) <= _STRANGERS:
                return
            oldest = next(iter(self._strangers))
        self.drop(oldest)

    def _watch(self, peer: Peer) -> None:
        selector = self._selector if peer.is_known else self._strange
        with contextlib.suppress(OSError, ValueError, KeyError):  # gone, or registered already
            selector.register(peer.number, selectors.EVENT_READ, peer)
            peer.watched_by = selector

    def _unwatch(self, peer: Peer) -> None:
        selector, peer.watched_by = peer.watched_by, None
        if selector is not None:
            with contextlib.suppress(OSError, ValueError, KeyError):
                selector.unregister(peer.number)

    def _read(self, peer: Peer) -> None:
        if peer not in self._peers or peer.is_held:
            return
        was_known = peer.is_known
        try:
            for _ in range(_READS):
                if not peer.link.reading.receive_now(
                    READ_BYTES if peer.is_known else _STRANGER_READ_BYTES
                ):
                    break
                if not peer.is_known:
                    peer.check_bytes()
                if not peer.link.reading.is_driven:
                    break
            else:
                self._again.add(peer)
        except Http2Error as error:
            log.debug("a connection from %s ends: %s", peer.origin.address, error)
            self._hold(peer)
        except OSError:
            self.drop(peer)
        except Exception:
            log.exception("a connection from %s could not be read", peer.origin.address)
            self.drop(peer)
        if not peer.link.reading.is_driven:  # a tunnel reads it now
            self._unwatch(peer)
            self._again.discard(peer)
            idle_links.watch(peer.link)
        elif peer.is_known != was_known and peer.watched_by is not None:
            self._unwatch(peer)
            self._watch(peer)

    def _hold(self, peer: Peer) -> None:
        """Stop reading a connection, and close it after a moment."""
        peer.is_held = True
        self._unwatch(peer)
        if peer.is_known or time.monotonic() - peer.since >= _LEAST_STAY_S:
            self.drop(peer)

    def drop(self, peer: Peer) -> None:
        """Close a connection."""
        self._unwatch(peer)
        with self._lock:
            self._peers.discard(peer)
            self._strangers.pop(peer, None)
        self._again.discard(peer)
        peer.link.close()

    def _sweep(self, now: float, elapsed_s: float) -> None:
        """Apply the time limits of every connection."""
        with self._lock:
            peers = list(self._peers)
        for peer in peers:
            if peer.link.broken or (peer.is_held and now - peer.since >= _LEAST_STAY_S):
                self.drop(peer)
            elif peer.link.reading.is_driven:
                peer.refill(elapsed_s)
                peer.end_late_requests(now)
                self._end_idle(peer, now)

    def _end_idle(self, peer: Peer, now: float) -> None:
        if peer.is_busy():
            peer.idle_since = now
            return
        limit_s = self._idle_s if peer.has_called else min(_FIRST_CALL_S, self._idle_s)
        idle_s = now - peer.idle_since
        if idle_s >= limit_s:
            with contextlib.suppress(OSError):
                peer.link.go_away()
        if idle_s >= limit_s + (_LEAVING_S if peer.is_known else 0):
            self.drop(peer)
