"""The coordinator's decisions about which worker runs which closure, pure.

Events in, decisions out: nothing is sent, waited for or timed here (time is an argument), and the
caller holds a lock, so a test can replay any history as plain data. The semantics are those of
TensorFlow's ``ClusterCoordinator``: closures run in any order on any worker; a closure whose worker
is lost is run again elsewhere; after the first error nothing is begun, what was queued is
cancelled, and the error is raised once, when all that was under way has ended.

Beyond them a closure may have a deadline, and one that takes long may be run by a second worker at
the same time: the first answer counts. A worker runs what it has one after the other, so only the
first of its closures can have ended it.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Run:
    """Have a worker run a closure.

    Attributes:
        worker: Index of the worker.
        closure: Number of the closure.
        attempt: 1 at first, one more each time that it is given to a worker.
        lane: A small number that no other closure has as long as this one is not over.
        turn: Number of closures that had been begun when this one was, with it.
        oldest_attempt: The first attempt whose pushes still count; those before are lost.
    """

    worker: int
    closure: int
    attempt: int
    lane: int = 0
    turn: int = 0
    oldest_attempt: int = 1


@dataclass(frozen=True, slots=True)
class Cancel:
    """A closure will not be run: one before it failed."""

    closure: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A closure has lost so many workers that it may be what ends them.

    Attributes:
        closure: Number of the closure.
        workers: The indices of those that were lost with it, in order.
    """

    closure: int
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expire:
    """A closure has run for longer than it may. The caller says so by ``failed``.

    Attributes:
        closure: Number of the closure.
        attempt: The one that did.
        worker: Index of the worker.
        deadline_s: Time that the closure was given. Unit: seconds.
    """

    closure: int
    attempt: int
    worker: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class LeaveWorker:
    """A worker neither ends a closure that is overdue nor itself: treat it as lost."""

    worker: int


Decision = Run | Cancel | GiveUp | Expire | LeaveWorker


class ClosureOutcome(NamedTuple):
    """The consequence of an answer.

    Attributes:
        counts: False: the closure has ended already, or was given to another worker meanwhile.
        decisions: Decisions to carry out.
    """

    counts: bool
    decisions: list[Decision]


@dataclass(slots=True, eq=False)
class _Closure:
    number: int
    deadline_s: float = math.inf
    lane: int = -1
    turn: int = 0
    attempts: int = 0
    oldest_attempt: int = 1
    lost: list[int] = field(default_factory=list)  # workers that it may have ended
    running: dict[int, int] = field(default_factory=dict)  # attempt → worker
    given_at: float = 0.0  # the last attempt


@dataclass(slots=True)
class _Worker:
    """Attributes:
    has: (closure, attempt) in the order in which they were given to it.
    due: Time at which the deadline of the first of them runs out, if it has begun and has one.
    """

    has: deque[tuple[int, int]] = field(default_factory=deque)
    due: float = math.inf
    last_given: int = 0


class ClosureQueue:
    """Closures that wait, and those under way.

    Args:
        max_queued: Most closures that wait.
        in_flight: Most closures that a worker has at once: more than one hides the way there
            and back.
        max_attempts: Number of workers that a closure may lose.
        redispatch_after_s: A closure that takes longer is given to an idle worker as well. Unit:
            seconds.
        grace_s: Time that a worker may take to end a closure that is overdue. Unit: seconds.
    """

    def __init__(
        self,
        *,
        max_queued: int = 256 * 1024,
        in_flight: int = 2,
        max_attempts: int = 5,
        redispatch_after_s: float = math.inf,
        grace_s: float = 5.0,
    ) -> None:
        self._max_queued = max_queued
        self._in_flight = in_flight
        self._max_attempts = max_attempts
        self._redispatch_after_s = redispatch_after_s
        self._grace_s = grace_s
        self._queued: deque[_Closure] = deque()
        self._running: dict[int, _Closure] = {}
        self._workers: dict[int, _Worker] = {}  # those that are there
        self._places: dict[tuple[int, int], int] = {}  # (closure, attempt) → its worker
        self._begun = 0
        self._turns = 0
        self._lanes: list[int] = []  # a heap of those that are free
        self._num_lanes = 0
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
    def depths(self) -> tuple[int, int]:
        """(closures that wait, closures that workers have)."""
        return len(self._queued), len(self._running)

    @property
    def has_error(self) -> bool:
        """Whether a closure failed, and its error was not raised yet."""
        return self._error is not None

    @property
    def workers(self) -> frozenset[int]:
        """Indices of the connected workers."""
        return frozenset(self._workers)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way: an error may be raised now."""
        return not self._running

    def take_error(self) -> Exception | None:
        """Take the first error since it was last asked for; closures are begun again."""
        error, self._error = self._error, None
        return error

    # -- events ------------------------------------------------------------------------------

    def schedule(
        self, closure: int, *, deadline_s: float = math.inf, now: float = 0.0
    ) -> list[Decision]:
        """Add a closure with a new number; while an error is still to be reported it is cancelled.

        Args:
            closure: Number of the closure.
            deadline_s: Longest time that the closure may run. Unit: seconds.
            now: Current time of a monotonic clock. Unit: seconds.
        """
        if self._error is not None:
            return [Cancel(closure)]
        self._queued.append(_Closure(closure, deadline_s))
        return self._begin(now)

    def worker_ready(self, worker: int, now: float = 0.0) -> list[Decision]:
        """Handle that a worker is there, for the first time or again."""
        self._workers.setdefault(worker, _Worker())
        return self._begin(now)

    def worker_lost(self, worker: int, now: float = 0.0) -> list[Decision]:
        """Handle that a worker is gone, with what it had."""
        gone = self._workers.pop(worker, _Worker())
        decisions: list[Decision] = []
        again: list[_Closure] = []
        for place, (number, attempt) in enumerate(gone.has):
            del self._places[number, attempt]
            closure = self._running.get(number)
            if closure is None or closure.running.pop(attempt, None) is None:
                continue  # it has ended elsewhere
            if place == 0:
                closure.lost.append(worker)
            if closure.running:
                continue  # another worker has it
            del self._running[number]
            closure.oldest_attempt = closure.attempts + 1
            if self._error is not None:
                self._free_lane(closure)
                decisions.append(Cancel(number))
            elif len(closure.lost) >= self._max_attempts:
                self._free_lane(closure)
                decisions.append(GiveUp(number, tuple(closure.lost)))
            else:
                again.append(closure)
        self._queued.extendleft(reversed(again))  # they are the oldest
        if any(isinstance(decision, GiveUp) for decision in decisions):
            return decisions  # an error, as soon as the caller has said so
        return decisions + self._begin(now)

    def began(self, closure: int, attempt: int, now: float) -> None:
        """Handle that a worker has begun a closure that has a deadline."""
        worker = self._workers.get(self._places.get((closure, attempt), -1))
        open_closure = self._running.get(closure)
        if worker is not None and open_closure is not None and worker.has[0] == (closure, attempt):
            worker.due = now + open_closure.deadline_s

    def finished(self, closure: int, attempt: int, now: float = 0.0) -> ClosureOutcome:
        """Handle that a worker has run a closure."""
        counts = self._ended(closure, attempt)
        return ClosureOutcome(counts, self._begin(now))

    def failed(
        self, closure: int, attempt: int, error: Exception, now: float = 0.0
    ) -> ClosureOutcome:
        """Handle a closure that raised an error; or with attempt 0, was given up."""
        if attempt and not self._ended(closure, attempt):
            return ClosureOutcome(False, self._begin(now))
        return self._fail(error)

    def expired(self, closure: int, error: Exception) -> ClosureOutcome:
        """End a closure because of its deadline; its worker still has it."""
        return self._fail(error) if self._end(closure) else ClosureOutcome(False, [])

    def cancel(self) -> list[Decision]:
        """Begin nothing of what waits."""
        dropped, self._queued = self._queued, deque()
        for closure in dropped:
            self._free_lane(closure)
        return [Cancel(closure.number) for closure in dropped]

    def tick(self, now: float) -> list[Decision]:
        """Handle that some time has passed: closures may be overdue, or worth a second worker."""
        decisions: list[Decision] = []
        overdue: set[int] = set()
        for index, worker in self._workers.items():
            if now < worker.due:
                continue
            number, attempt = worker.has[0]
            closure = self._running.get(number)
            if closure is not None and attempt in closure.running:
                if number not in overdue:  # both of two runs may be
                    decisions.append(Expire(number, attempt, index, closure.deadline_s))
                overdue.add(number)
            elif now >= worker.due + self._grace_s:
                decisions.append(LeaveWorker(index))
        # Not both at once: what is overdue is over when the caller has said so.
        return decisions or self._second_runs(now)

    # -- decisions ---------------------------------------------------------------------------

    def _fail(self, error: Exception) -> ClosureOutcome:
        if self._error is not None:
            return ClosureOutcome(True, [])  # the first one is told
        self._error = error
        return ClosureOutcome(True, self.cancel())

    def _ended(self, number: int, attempt: int) -> bool:
        """Free a worker that has answered; returns whether the answer counts."""
        index = self._places.pop((number, attempt), None)
        if index is None:
            return False
        worker = self._workers[index]
        worker.has.remove((number, attempt))
        worker.due = math.inf
        closure = self._running.get(number)
        return closure is not None and attempt in closure.running and self._end(number)

    def _end(self, number: int) -> bool:
        """End a closure; workers may still have it."""
        closure = self._running.pop(number, None)
        if closure is None:
            return False
        closure.running.clear()
        self._free_lane(closure)
        return True

    def _free_lane(self, closure: _Closure) -> None:
        if closure.lane >= 0:
            heapq.heappush(self._lanes, closure.lane)
            closure.lane = -1

    def _begin(self, now: float) -> list[Decision]:
        """Give what waits to the workers that have the least to do, in turn."""
        decisions: list[Decision] = []
        while self._queued and self._error is None:
            free = self._freest(self._in_flight)
            if free is None:
                break
            decisions.append(self._give(self._queued.popleft(), free, now))
        return decisions

    def _second_runs(self, now: float) -> list[Decision]:
        """Give what takes long to workers that have nothing to do, the oldest first."""
        decisions: list[Decision] = []
        if self._queued or self._error is not None or self._redispatch_after_s == math.inf:
            return decisions
        for closure in list(self._running.values()):
            if len(closure.running) != 1 or now - closure.given_at < self._redispatch_after_s:
                continue
            free = self._freest(1)
            if free is None:
                break
            decisions.append(self._give(closure, free, now))
        return decisions

    def _give(self, closure: _Closure, index: int, now: float) -> Run:
        if closure.lane < 0:
            closure.lane = heapq.heappop(self._lanes) if self._lanes else self._num_lanes
            self._num_lanes = max(self._num_lanes, closure.lane + 1)
            self._turns += 1
            closure.turn = self._turns
        closure.attempts += 1
        closure.given_at = now
        closure.running[closure.attempts] = index
        self._running[closure.number] = closure
        worker = self._workers[index]
        worker.has.append((closure.number, closure.attempts))
        self._places[closure.number, closure.attempts] = index
        self._begun += 1
        worker.last_given = self._begun
        return Run(
            index, closure.number, closure.attempts, closure.lane, closure.turn,
            closure.oldest_attempt,
        )  # fmt: skip

    def _freest(self, in_flight: int) -> int | None:
        """Find the worker with the least to do, if one has less than so many closures."""
        free = [index for index, worker in self._workers.items() if len(worker.has) < in_flight]
        return min(free, key=self._burden, default=None)

    def _burden(self, index: int) -> tuple[int, int, int]:
        worker = self._workers[index]
        return len(worker.has), worker.last_given, index
