"""Serving gRPC's calls: one thread reads all connections, and methods answer in threads of a pool.

A caller is a stranger until one of its calls is admitted. Strangers get no thread, few bytes and
frames, and a share of the reading thread's time; a connection that asks for more, or reads nothing,
is kept for a moment and closed. (If it were closed at once, the stranger would come back at once.)
A caller that was admitted gets half of the connections, threads, tunnels and memory at most, and
one that is a guest shares a part of the processor with its group. The connections of all others are
read first, and calls that renew leases have threads of their own, so a lease is renewed whatever
others send, and whether they read or not.
"""

import contextlib
import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from .call import CallError
from .frames import Http2Error
from .peer import Accepted, Method, Peer
from .reading import READ_BYTES, Transport, idle_links
from .shares import Caller, CallPool, Places, Ration, new_thread

log = logging.getLogger(__name__)

_STRANGERS = 64
_LEAST_STAY_S = 0.1  # for a stranger, before another one takes its place
_FIRST_CALL_S = 10.0
_STRANGER_READ_BYTES = 4096
_STRANGERS_SHARE, _STRANGERS_BURST_S = 0.1, 0.3
_GUESTS_SHARE, _GUESTS_BURST_S = 0.2, 1.0
_READS = 16  # from one connection in a row
_MESSAGES = 8  # of the longest: what requests, and answers that wait, may take in all
_UNTAKEN_S = 1.0  # nothing of its answers was taken for so long
_SWEEP_S = 0.5
_SWEEP_STRANGERS_S = 0.05
_TAKEN_PERIOD_S = 0.01
_RENEWING_S = 300.0  # as long as tasks wait for one that is late
_LEAVING_S = 5.0  # for a client to learn that it should disconnect


class Http2Server:
    """Serves methods on the connections that it accepts.

    Args:
        methods: Methods by path.
        pool: Answers calls.
        leases: Answers calls that renew a lease; None: ``pool`` does.
        limit: Most connections of known callers.
        tunnels: Most tunnels.
        most_bytes: Longest request.
        idle_s: A connection without a call ends after so long; the client connects anew.
        groups: Groups of guests, each with a part of the processor.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        pool: CallPool,
        leases: CallPool | None = None,
        *,
        limit: int,
        tunnels: int = 0,
        most_bytes: int,
        idle_s: float,
        groups: Iterable[str] = (),
    ) -> None:
        self.methods = methods
        self.most_bytes = most_bytes
        self._pool = pool
        self._leases = leases or pool
        self._known = Places(limit)
        self._tunnels = Places(tunnels)
        self._request_bytes = Places(_MESSAGES * most_bytes)
        self._untaken_bytes = _MESSAGES * most_bytes
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._peers: set[Peer] = set()
        self._strangers: dict[Peer, None] = {}  # the oldest first
        self._arriving: deque[Peer] = deque()
        self._blocked: deque[Peer] = deque()  # have more to send than the socket took
        self._again: set[Peer] = set()  # may have more that was read already
        self._selector = selectors.DefaultSelector()
        self._strangers_ration: Ration[Peer] = Ration(_STRANGERS_SHARE, _STRANGERS_BURST_S)
        self._guests: dict[str, Ration[Peer]] = {
            group: Ration(_GUESTS_SHARE, _GUESTS_BURST_S) for group in groups
        }
        self._rations = [self._strangers_ration, *self._guests.values()]
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._swept = 0.0
        self._stopped = threading.Event()
        self._is_ending = False
        self._thread = new_thread("http2", self._run)

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def has_room(self) -> bool:
        """Return whether a further stranger can be served."""
        with self._lock:
            if len(self._strangers) < _STRANGERS:
                return True
            oldest = next(iter(self._strangers))
        return time.monotonic() - oldest.since >= _LEAST_STAY_S

    def accept(
        self,
        stream: Transport,
        first: bytes,
        refusal: CallError | None = None,
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
        deadline = time.monotonic() + grace_s
        for pool in (self._pool, self._leases):
            pool.close(deadline - time.monotonic())
        self._await_answers_taken(peers, deadline)
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
        for ration in self._rations:
            ration.selector.close()

    def _await_answers_taken(self, peers: list[Peer], deadline: float) -> None:
        pause = threading.Event()
        links = [peer.link for peer in peers]
        while (
            any(link.answers or link.is_blocked for link in links) and time.monotonic() < deadline
        ):
            pause.wait(_TAKEN_PERIOD_S)

    # -- called by peers, in any thread --------------------------------------------------------

    def let_in(self, peer: Peer, accepted: Accepted) -> bool:
        """Admit a connection of which a call of a stranger was admitted; False: there are too
        many.
        """
        with self._lock:
            if not self._known.take(accepted.caller):
                return False
            self._strangers.pop(peer, None)
            peer.trust(accepted.caller, accepted.group)
        return True

    def run(self, caller: Caller, work: Callable[[], None], *, renews: bool) -> bool:
        """Call ``work`` in a thread; False: too many calls are under way."""
        return (self._leases if renews else self._pool).run(caller, work)

    def worked(self, peer: Peer, work_s: float) -> None:
        """Count the time that it took to answer a call."""
        ration = self._ration_of(peer)
        if ration is not None:
            ration.spend(work_s)

    def _ration_of(self, peer: Peer) -> Ration[Peer] | None:
        return self._guests.get(peer.group) if peer.is_known else self._strangers_ration

    def hold(self, caller: Caller, num_bytes: int) -> bool:
        """Count bytes of a request; False: there are too many."""
        with self._lock:
            return self._request_bytes.take(caller, num_bytes)

    def release(self, caller: Caller, num_bytes: int) -> None:
        """Count bytes of a request no longer."""
        with self._lock:
            self._request_bytes.give_back(caller, num_bytes)

    def begin_tunnel(self, caller: Caller) -> bool:
        """Count a tunnel, which costs a thread; False: there are too many."""
        with self._lock:
            return self._tunnels.take(caller)

    def end_tunnel(self, caller: Caller) -> None:
        """Count a tunnel no longer."""
        with self._lock:
            self._tunnels.give_back(caller)

    def send_soon(self, peer: Peer) -> None:
        """Send what the socket of a connection did not take at once."""
        with self._lock:
            if not self._stopped.is_set():
                self._blocked.append(peer)
                self._wake_up()

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
        pauses = {ration: ration.pause_s(now) for ration in self._rations}
        for ration, pause_s in pauses.items():
            ration.listen(self._selector, pause_s <= 0)
        period_s = _SWEEP_STRANGERS_S if self._strangers else _SWEEP_S
        more = self._again or any(
            budget.again for budget, pause_s in pauses.items() if pause_s <= 0
        )
        timeout_s = (
            0.0 if more else min(period_s, *(pause or period_s for pause in pauses.values()))
        )
        ready = {key.data for key, _ in self._selector.select(timeout_s)}
        if None in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
            self._let_arrive()
        again, self._again = self._again, set()
        for peer in (ready | again) - {None, *pauses}:
            self._read(peer)
        for ration, pause_s in pauses.items():
            if ration in ready or (ration.again and pause_s <= 0):
                ration.read(self._read)
        now = time.monotonic()
        if now - self._swept >= period_s:
            self._sweep(now, now - self._swept if self._swept else 0.0)
            self._swept = now

    def _let_arrive(self) -> None:
        while self._blocked:
            self._again_of(peer := self._blocked.popleft()).add(peer)
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
            self._again_of(peer).add(peer)
        self._strangers_ration.spend(time.thread_time() - began)

    def _make_room(self) -> None:
        with self._lock:
            if len(self._strangers) <= _STRANGERS:
                return
            oldest = next(iter(self._strangers))
        self.drop(oldest)

    def _again_of(self, peer: Peer) -> set[Peer]:
        ration = self._ration_of(peer)
        return self._again if ration is None else ration.again

    def _watch(self, peer: Peer) -> None:
        """Tell when there is something to read, or room for what the socket did not take."""
        ration = self._ration_of(peer)
        selector = self._selector if ration is None else ration.selector
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.link.is_blocked else 0)
        if (selector, events) == (peer.watched_by, peer.watched_for):
            return
        with contextlib.suppress(OSError, ValueError, KeyError):  # gone
            if selector is peer.watched_by:
                selector.modify(peer.number, events, peer)
            else:
                self._unwatch(peer)
                selector.register(peer.number, events, peer)
            peer.watched_by, peer.watched_for = selector, events

    def _unwatch(self, peer: Peer) -> None:
        selector, peer.watched_by = peer.watched_by, None
        if selector is not None:
            with contextlib.suppress(OSError, ValueError, KeyError):
                selector.unregister(peer.number)

    def _read(self, peer: Peer) -> None:
        if peer not in self._peers or peer.is_held:
            return
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
                self._again_of(peer).add(peer)
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
            self._forget_again(peer)
            idle_links.watch(peer.link)
        elif peer.watched_by is not None:
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
            if peer in self._peers and peer.is_known:
                self._known.give_back(peer.caller)
            self._peers.discard(peer)
            self._strangers.pop(peer, None)
        self._forget_again(peer)
        peer.link.close()

    def _forget_again(self, peer: Peer) -> None:
        for again in (self._again, *(ration.again for ration in self._rations)):
            again.discard(peer)

    def _sweep(self, now: float, elapsed_s: float) -> None:
        """Apply the time limits of every connection."""
        with self._lock:
            peers = list(self._peers)
        for peer in peers:
            if peer.link.broken or (peer.is_held and now - peer.since >= _LEAST_STAY_S):
                self.drop(peer)
                continue
            peer.refill(elapsed_s)
            peer.link.give_up_late_answers()
            if peer.link.reading.is_driven:
                peer.end_late_requests(now)
                self._end_idle(peer, now)
                if peer.link.is_blocked and peer.watched_by is not None:
                    self._watch(peer)
        self._bound_answers(peers, now)

    def _bound_answers(self, peers: list[Peer], now: float) -> None:
        """Close the connections that take nothing, if answers fill too much memory."""
        untaken = sum(peer.link.answers.num_bytes for peer in peers)
        stuck = [peer for peer in peers if now - peer.link.answers.taken_at > _UNTAKEN_S]
        for peer in sorted(stuck, key=lambda stuck_peer: -stuck_peer.link.answers.num_bytes):
            if untaken <= self._untaken_bytes:
                return
            untaken -= peer.link.answers.num_bytes
            self.drop(peer)

    def _end_idle(self, peer: Peer, now: float) -> None:
        if peer.is_busy():
            peer.idle_since = now
            return
        limit_s = self._idle_s if peer.has_called else min(_FIRST_CALL_S, self._idle_s)
        if peer.renews:  # while it is open, who renews no lease any more is late, and not lost
            limit_s = max(limit_s, _RENEWING_S)
        idle_s = now - peer.idle_since
        if idle_s >= limit_s:
            with contextlib.suppress(OSError):
                peer.link.go_away()
        if idle_s >= limit_s + (_LEAVING_S if peer.is_known else 0):
            self.drop(peer)
