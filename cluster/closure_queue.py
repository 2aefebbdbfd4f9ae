"""Which worker runs which closure: the coordinator's decisions, pure.

Events in, decisions out: nothing is sent, waited for or timed here, and the caller holds a lock, so
a test can replay any history as plain data. The semantics are those of TensorFlow's
``ClusterCoordinator``: closures run in any order on any worker; a closure whose worker is lost is
run again elsewhere; after the first error nothing is begun, what was queued is cancelled, and the
error is raised once, when all that was under way has ended.
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Run:
    """Have a worker run a closure.

    Attributes:
        worker: Its index.
        closure: Number of the closure.
        attempt: 1 at first, one more for each worker that was lost with it.
    """

    worker: int
    closure: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """A closure will not be run: one before it failed."""

    closure: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A closure has lost so many workers that it may be what ends them.

    Attributes:
        closure: Its number.
        workers: The indices of those that were lost with it, in order.
    """

    closure: int
    workers: tuple[int, ...]


Decision = Run | Cancel | GiveUp


@dataclass(slots=True)
class _Closure:
    number: int
    lost: list[int] = field(default_factory=list)  # workers
    worker: int | None = None  # that runs it

    @property
    def attempt(self) -> int:
        return len(self.lost) + 1


class ClosureQueue:
    """Closures that wait, and those under way.

    Args:
        max_queued: Most closures that wait.
        in_flight: Most closures that a worker has at once: more than one hides the way there
            and back.
        max_attempts: How many workers a closure may lose.
    """

    def __init__(
        self, *, max_queued: int = 256 * 1024, in_flight: int = 2, max_attempts: int = 5
    ) -> None:
        self._max_queued = max_queued
        self._in_flight = in_flight
        self._max_attempts = max_attempts
        self._queued: deque[_Closure] = deque()
        self._running: dict[int, _Closure] = {}
        self._workers: dict[int, set[int]] = {}  # those that are there, and what they have
        self._begun = 0
        self._last: dict[int, int] = {}  # when a worker was last given something, as a count
        self._error: Exception | None = None

    @property
    def is_full(self) -> bool:
        """Whether no more may be scheduled for now."""
        return len(self._queued) >= self._max_queued

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._queued and not self._running

    @property
    def has_error(self) -> bool:
        """Whether a closure failed, and nobody was told."""
        return self._error is not None

    @property
    def workers(self) -> frozenset[int]:
        """Those that are there."""
        return frozenset(self._workers)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way: an error may be raised now."""
        return not self._running

    def take_error(self) -> Exception | None:
        """The first error since it was last asked for; closures are begun again."""
        error, self._error = self._error, None
        return error

    # -- events ------------------------------------------------------------------------------

    def schedule(self, closure: int) -> list[Decision]:
        """A new closure, whose number is new; until an error is told it is cancelled."""
        if self._error is not None:
            return [Cancel(closure)]
        self._queued.append(_Closure(closure))
        return self._begin()

    def worker_ready(self, worker: int) -> list[Decision]:
        """A worker is there, for the first time or again."""
        self._workers.setdefault(worker, set())
        return self._begin()

    def worker_lost(self, worker: int) -> list[Decision]:
        """A worker is gone, with what it had."""
        lost = sorted(self._workers.pop(worker, ()))
        decisions: list[Decision] = []
        again: list[_Closure] = []
        for number in lost:
            closure = self._running.pop(number)
            closure.lost.append(worker)
            closure.worker = None
            if self._error is not None:
                decisions.append(Cancel(number))
            elif len(closure.lost) >= self._max_attempts:
                decisions.append(GiveUp(number, tuple(closure.lost)))
            else:
                again.append(closure)
        self._queued.extendleft(reversed(again))  # they are the oldest
        return decisions + self._begin()

    def finished(self, closure: int, attempt: int) -> list[Decision] | None:
        """A worker has run a closure.

        Returns:
            None if it counts for nothing: the closure was given to another worker meanwhile.
        """
        return self._begin() if self._ended(closure, attempt) else None

    def failed(self, closure: int, attempt: int, error: Exception) -> list[Decision] | None:
        """A closure raised an error, or was given up; as :meth:`finished`."""
        if attempt and not self._ended(closure, attempt):
            return None
        if self._error is not None:
            return []  # the first one is told
        self._error = error
        return self.cancel()

    def cancel(self) -> list[Decision]:
        """Begin nothing of what waits."""
        dropped, self._queued = self._queued, deque()
        return [Cancel(closure.number) for closure in dropped]

    # -- decisions ---------------------------------------------------------------------------

    def _ended(self, number: int, attempt: int) -> bool:
        closure = self._running.get(number)
        if closure is None or closure.attempt != attempt or closure.worker is None:
            return False
        del self._running[number]
        self._workers[closure.worker].discard(number)
        return True

    def _begin(self) -> list[Decision]:
        """Give what waits to the workers that have the least to do, in turn."""
        decisions: list[Decision] = []
        while self._queued and self._error is None:
            free = self._freest()
            if free is None:
                break
            closure = self._queued.popleft()
            closure.worker = free
            self._running[closure.number] = closure
            self._workers[free].add(closure.number)
            self._begun += 1
            self._last[free] = self._begun
            decisions.append(Run(free, closure.number, closure.attempt))
        return decisions

    def _freest(self) -> int | None:
        has = {worker: len(numbers) for worker, numbers in self._workers.items()}
        free = [worker for worker, count in has.items() if count < self._in_flight]
        return min(free, key=lambda each: (has[each], self._last.get(each, 0), each), default=None)
