"""What callers share, so that none of them can take it from the others: places, threads, time.

Strangers can send frames, handshakes and connections as fast as the machine allows, and so can a
caller that was admitted. They work for a share of the time, or in a part of the threads, and wait.
"""

import logging
import selectors
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Generic, TypeVar

from ..cluster.access.principal import TASK_ROLES, Principal

log = logging.getLogger(__name__)

_Connection = TypeVar("_Connection")
_Work = Callable[[], None]


def shares_credentials(caller: Principal | None) -> bool:
    """Whether many tasks may be the same caller: they show credentials of their role, or none."""
    return caller is None or (caller.role in TASK_ROLES and caller.index is None)


class Places:
    """Counts the places that each caller has; one caller has at most half of them. Pure.

    Readers are one caller, and so are drivers. Tasks that cannot be told apart are bounded together
    with all others only.

    Args:
        limit: Places in all.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._most_of_one = max(1, limit // 2)
        self._taken: Counter[Principal | None] = Counter()
        self.count = 0

    def take(self, caller: Principal | None) -> bool:
        """Take a place for a caller; False: there is none, or the caller has too many."""
        is_one = not shares_credentials(caller)
        if self.count >= self._limit or (is_one and self._taken[caller] >= self._most_of_one):
            return False
        self._taken[caller] += 1
        self.count += 1
        return True

    def give_back(self, caller: Principal | None) -> None:
        """Give back a place that was taken."""
        self.count -= 1
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]


class CallPool:
    """Threads that answer calls. Thread-safe.

    Args:
        executor: Has at least ``threads`` threads.
        threads: Most calls at once.
        most_waiting: Most calls that wait for a thread; one more is refused.
    """

    def __init__(self, executor: Executor, threads: int, most_waiting: int) -> None:
        self._executor = executor
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._running = Places(threads)
        self._queued = Places(most_waiting)
        self._queue: deque[tuple[Principal | None, _Work]] = deque()
        self._is_closed = False

    def run(self, caller: Principal | None, work: _Work) -> bool:
        """Call ``work`` in a thread, now or when there is one; False: too many calls wait."""
        with self._lock:
            if self._is_closed:
                return False
            if not self._running.take(caller):
                if not self._queued.take(caller):
                    return False
                self._queue.append((caller, work))
                return True
        try:
            self._executor.submit(self._run, caller, work)
        except RuntimeError:  # no more threads, or the executor has ended
            self._turn_over(caller)
            return False
        return True

    def close(self, grace_s: float) -> None:
        """Take no more calls, wait ``grace_s`` for those that there are, and forget the others."""
        with self._idle:
            self._is_closed = True
            self._idle.wait_for(lambda: not self._running.count, grace_s)
            self._queue.clear()

    def _run(self, caller: Principal | None, work: _Work) -> None:
        following: tuple[Principal | None, _Work] | None = (caller, work)
        while following is not None:
            caller, work = following
            try:
                work()
            except OSError as error:
                log.debug("an answer is not heard: %s", error)
            except Exception:
                log.exception("a call could not be answered")
            finally:
                following = self._turn_over(caller)

    def _turn_over(self, caller: Principal | None) -> tuple[Principal | None, _Work] | None:
        """Give a caller's thread to the call that has waited for longest and may have one."""
        with self._idle:
            self._running.give_back(caller)
            self._idle.notify_all()
            for place, (waiting, work) in enumerate(self._queue):
                if self._running.take(waiting):
                    del self._queue[place]
                    self._queued.give_back(waiting)
                    return waiting, work
        return None


class WorkBudget:
    """Working time that grows with the clock and is spent by working.

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
        self._left_s -= work_s

    def wait_s(self, now: float) -> float:
        """How long to pause; 0: go on. Unit: seconds.

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
        budget: The time.
        again: Connections that may have more, which was taken from their sockets already.
    """

    def __init__(self, share: float, burst_s: float) -> None:
        self.selector = selectors.DefaultSelector()
        self.budget = WorkBudget(share, burst_s)
        self.again: set[_Connection] = set()

    def pause_s(self, now: float) -> float:
        """How long none of them is to be read; 0: go on. Unit: seconds."""
        return self.budget.wait_s(now) if self.selector.get_map() or self.again else 0.0

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
        self.budget.spend(time.thread_time() - began)
