"""Shares of callers, so that none of them can take from the others places, threads or time.

Strangers can send frames, handshakes and connections as fast as the machine allows, and so can a
caller that was admitted. They work for a share of the time, or in a part of the threads, and wait.
"""

import logging
import selectors
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

_Connection = TypeVar("_Connection")
Caller = Hashable | None
"""Identity of a caller; None: callers cannot be told apart, and are bounded by the whole alone."""

_Work = Callable[[], None]
_Call = tuple[Caller, _Work]

_LONGEST_PAUSE_S = 2.0
_IDLE_THREAD_S = 10.0


def new_thread(
    name: str, work: _Work, failed: Callable[[BaseException], object] = lambda _: None
) -> threading.Thread:
    """Make a daemon thread, not started yet; an unexpected end is logged.

    Args:
        name: Name of the thread.
        work: Function that the thread runs.
        failed: Called in the thread with an exception of ``work``; ends whatever waits for it.
    """

    def run() -> None:
        try:
            work()
        except BaseException as error:
            log.exception("the thread %s has failed", name)
            failed(error)

    return threading.Thread(target=run, name=name, daemon=True)


class Places:
    """Counts the places that each caller has; one caller has at most half of them. Pure.

    Args:
        limit: Places in all.

    Attributes:
        count: Places that are taken.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self._most_of_one = max(1, limit // 2)
        self._taken: Counter[Hashable] = Counter()

    def take(self, caller: Caller, count: int = 1) -> bool:
        """Take places for a caller; False: there are too few, or the caller would have too many."""
        if self.count + count > self.limit:
            return False
        if caller is not None:
            if self._taken[caller] + count > self._most_of_one:
                return False
            self._taken[caller] += count
        self.count += count
        return True

    def give_back(self, caller: Caller, count: int = 1) -> None:
        """Give back places that were taken."""
        self.count -= count
        if caller is not None:
            self._taken[caller] -= count
            if not self._taken[caller]:
                del self._taken[caller]


class CallPool:
    """Threads that answer calls; they end when there is nothing to do. Thread-safe.

    Args:
        name: The threads'.
        threads: Most calls at once.
        most_waiting: Most calls that wait for a thread; one more is refused.
    """

    def __init__(self, name: str, threads: int, most_waiting: int) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._running = Places(threads)
        self._queued = Places(most_waiting)
        self._queue: deque[_Call] = deque()  # their callers have too many threads
        self._ready: deque[_Call] = deque()  # counted as running
        self._idle_threads = 0
        self._is_closed = False

    def run(self, caller: Caller, work: _Work) -> bool:
        """Call ``work`` in a thread, now or when there is one; False: too many calls wait."""
        call = caller, work
        with self._changed:
            if self._is_closed:
                return False
            if not self._running.take(caller):
                if not self._queued.take(caller):
                    return False
                self._queue.append(call)
                return True
            self._ready.append(call)
            if self._idle_threads >= len(self._ready):
                self._changed.notify_all()
                return True
        try:
            new_thread(self._name, self._serve).start()
        except RuntimeError:  # no more threads: one that there is may have taken the call
            with self._changed:
                if call in self._ready:
                    self._ready.remove(call)
                    self._running.give_back(caller)
                    return False
        return True

    def close(self, grace_s: float) -> None:
        """Take no more calls, wait ``grace_s`` for those that there are, and forget the others."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._running.count, grace_s)
            self._queue.clear()

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            caller, work = call
            try:
                work()
            except OSError as error:
                log.debug("an answer is not heard: %s", error)
            except Exception:
                log.exception("a call could not be answered")
            finally:
                self._end(caller)

    def _next(self) -> _Call | None:
        with self._changed:
            self._idle_threads += 1
            self._changed.wait_for(lambda: self._ready or self._is_closed, _IDLE_THREAD_S)
            self._idle_threads -= 1
            return self._ready.popleft() if self._ready else None

    def _end(self, caller: Caller) -> None:
        """Give a caller's thread to the call that has waited for longest and may have one."""
        with self._changed:
            self._running.give_back(caller)
            for place, call in enumerate(self._queue):
                if self._running.take(call[0]):
                    del self._queue[place]
                    self._queued.give_back(call[0])
                    self._ready.append(call)
                    break
            if self._is_closed:
                self._changed.notify_all()


class WorkBudget:
    """Working time that grows with the clock and is spent by working.

    A piece of work is counted after it was done, so the time that is left may be below zero: for
    two seconds' worth at most, since nobody is to wait longer for what somebody else asked.

    Args:
        share: Share of one processor, between 0 and 1.
        burst_s: Most working time that may be saved up. Unit: seconds.
    """

    def __init__(self, share: float, burst_s: float) -> None:
        self._share = share
        self._burst_s = burst_s
        self._left_s = burst_s
        self._at = 0.0

    def spend(self, work_s: float) -> None:
        """Subtract time that was spent working. Unit: seconds."""
        self._left_s = max(self._left_s - work_s, -_LONGEST_PAUSE_S * self._share)

    def wait_s(self, now: float) -> float:
        """Compute how long to pause; 0: go on. Unit: seconds.

        Args:
            now: Any clock in seconds, the same at each call.
        """
        if self._at:
            self._left_s = min(self._burst_s, self._left_s + (now - self._at) * self._share)
        self._at = now
        return max(0.0, -self._left_s / self._share)


class Ration(Generic[_Connection]):
    """A selector of such connections, and the time that is left for them.

    Args:
        share: Share of one processor, between 0 and 1.
        burst_s: Most time that may be saved up. Unit: seconds.

    Attributes:
        selector: Has the connections.
        again: Connections that may have more, which was taken from their sockets already.
    """

    def __init__(self, share: float, burst_s: float) -> None:
        self.selector = selectors.DefaultSelector()
        self._budget = WorkBudget(share, burst_s)
        self._lock = threading.Lock()
        self.again: set[_Connection] = set()

    def pause_s(self, now: float) -> float:
        """Compute how long none of them is to be read; 0: go on. Unit: seconds."""
        if not self.selector.get_map() and not self.again:
            return 0.0
        with self._lock:
            return self._budget.wait_s(now)

    def spend(self, work_s: float) -> None:
        """Count time that was spent on them. From any thread."""
        with self._lock:
            self._budget.spend(work_s)

    def listen(self, selector: selectors.BaseSelector, listen: bool) -> None:
        """Have ``selector`` tell, or not tell, that bytes of some connection have come."""
        number = self.selector.fileno()
        registered = number in selector.get_map()
        if listen and not registered:
            selector.register(number, selectors.EVENT_READ, self)
        elif not listen and registered:
            selector.unregister(number)

    def read(self, read: Callable[[_Connection], None]) -> None:
        """Call ``read`` for each connection that has bytes, and count the time."""
        began = time.thread_time()
        again, self.again = self.again, set()
        for peer in again | {key.data for key, _ in self.selector.select(0)}:
            read(peer)
            time.sleep(0)  # threads that serve steps wait for the interpreter otherwise
        self.spend(time.thread_time() - began)
