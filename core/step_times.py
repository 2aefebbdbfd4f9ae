"""The time of a step, and where it goes: a clock that measures it, and what it has measured.

A step lasts from the end of the one before to its own end. What is waited for or moved meanwhile is
measured where it happens, as one of the parts below; all the rest is the program's own, and called
``compute``. A part inside another counts once, as the inner one. Each part has a histogram over
steps whose buckets are the same everywhere, so that those of several tasks, or of two moments, can
be added and subtracted.

Measuring a part is two readings of a clock and two additions; the end of a step puts each part that
it had into its histogram. Nothing is locked: the numbers are those of the thread that makes the
steps, and who reads them meanwhile may see a step in one part and not yet in another.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from math import inf
from time import perf_counter_ns
from typing import TypeVar

from .step_trace import StepSampler, StepTrace

_Batch = TypeVar("_Batch")
DATA, PULL, PUSH, OTHERS, CHECKPOINT = range(5)
_COMPUTE, _STEP = 5, 6
_NAMES = ("data", "pull", "push", "others", "checkpoint", "compute", "step")
PARTS = ("data", "pull", "compute", "push", "others", "checkpoint")
"""Names of a step's parts, in the order in which they are shown."""
WAITS = ("data", "pull", "push", "others", "checkpoint")
"""Names of the parts in which a program waits: all but ``compute``."""
STEP = "step"
"""Name of the whole step, among its parts."""

_SLOW = 3  # times as long as 99 of 100 steps take at most
_LEARNT_EVERY = 256  # steps

_BOUNDS_NS = tuple(round(2 ** (10 + i / 2)) for i in range(61))
BOUNDS_S = tuple(bound / 1e9 for bound in _BOUNDS_NS)
"""Upper bounds of the buckets, powers of the square root of two from 1 µs to 1100 s. A last bucket
has what takes longer. Unit: seconds."""
NUM_BUCKETS = len(BOUNDS_S) + 1


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of the steps of a task, or the whole steps.

    Attributes:
        name: Name of the part, one of ``PARTS``, or ``STEP``.
        seconds: Time in it, of all steps together.
        buckets: Number of steps by how long the part took, as ``BOUNDS_S`` has it; steps without
            it are not counted. Empty buckets at the end are left out.
    """

    name: str
    seconds: float = 0.0
    buckets: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Number of steps that had this part."""
        return sum(self.buckets)

    def quantile(self, q: float) -> float:
        """Estimate how long the part took at most in a share ``q`` of these steps; 0: there are
        none. It is off by a factor of the square root of two at most. Unit: seconds.
        """
        left = q * self.count
        for number, count in enumerate(self.buckets):
            if count and left <= count:
                high = BOUNDS_S[min(number, NUM_BUCKETS - 2)]
                low = BOUNDS_S[number - 1] if number else 0.0
                return low + (high - low) * left / count
            left -= count
        return 0.0

    def plus(self, other: "StepPart", sign: int = 1) -> "StepPart":
        """Add the steps of another task; with ``sign`` -1 take an earlier moment's off."""
        counts = zip_longest(self.buckets, other.buckets, fillvalue=0)
        buckets = [max(0, mine + sign * theirs) for mine, theirs in counts]
        seconds = max(0.0, self.seconds + sign * other.seconds)
        return StepPart(self.name, seconds, _trimmed(buckets))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of steps by part: of a task, of several, or of a task in a while.

    Attributes:
        parts: Parts that the steps had, and the whole steps, in no order.
    """

    parts: tuple[StepPart, ...] = ()

    def part(self, name: str) -> StepPart:
        """Find a part; one that no step had is empty."""
        return next((part for part in self.parts if part.name == name), StepPart(name))

    @property
    def count(self) -> int:
        """Number of steps."""
        return self.part(STEP).count

    @property
    def step_s(self) -> float:
        """Mean time of a step; 0: there are none. Unit: seconds."""
        return self.mean(STEP)

    def mean(self, name: str) -> float:
        """Compute the time that a part takes of a step, in the mean of all steps. Unit: seconds."""
        return self.part(name).seconds / self.count if self.count else 0.0

    def share(self, name: str) -> float:
        """Compute a part's share of the time of all steps, from 0 to 1."""
        whole = self.part(STEP).seconds
        return min(1.0, self.part(name).seconds / whole) if whole > 0 else 0.0

    def largest(self) -> str:
        """Find the part with the largest share; empty: there are no steps."""
        return max(PARTS, key=self.share) if self.count else ""

    def plus(self, other: "StepTimes", sign: int = 1) -> "StepTimes":
        """Add the steps of another task; with ``sign`` -1 take an earlier moment's off."""
        names = dict.fromkeys(part.name for part in (*self.parts, *other.parts))
        return StepTimes(tuple(self.part(name).plus(other.part(name), sign) for name in names))

    def since(self, earlier: "StepTimes") -> "StepTimes":
        """Compute what came after an earlier moment; all of it if the task has begun anew."""
        return self if earlier.count > self.count else self.plus(earlier, -1)


def total_times(several: Iterable[StepTimes]) -> StepTimes:
    """Add up the times of several tasks."""
    total = StepTimes()
    for times in several:
        total = total.plus(times)
    return total


def _trimmed(buckets: list[int]) -> tuple[int, ...]:
    while buckets and not buckets[-1]:
        buckets.pop()
    return tuple(buckets)


class StepClock:
    """Measures the steps of a task, in the thread that makes them.

    ::

        began = clock.begin()
        batch = next(batches)
        clock.end(DATA, began)

    What ends in an error is not measured.

    Args:
        now_ns: Reads the time. Unit: nanoseconds.
        on_slow: Called with a step that took over three times as long as 99 of 100 take at most:
            how long it took, that time, the part that took most, and how long that did. Unit:
            seconds.

    Attributes:
        sampler: Says which steps are traced; None: none is. Once set it stays.
        trace: Trace of the step that is under way; None: it is not sampled.
    """

    def __init__(
        self,
        now_ns: Callable[[], int] = perf_counter_ns,
        on_slow: Callable[[float, float, str, float], None] = lambda *_: None,
    ) -> None:
        self.sampler: StepSampler | None = None
        self.trace: StepTrace | None = None
        self._own_now = now_ns
        self._now = now_ns  # in a sampled step the trace's
        self._on_slow = on_slow
        self._began = 0  # the step that is under way; 0: none was finished yet
        self._measured = 0  # time in parts, since the start
        self._measured_before = 0  # the last step's end
        self._here = [0] * len(_NAMES)  # time in each part, in the step that is under way
        self._sums = [0] * len(_NAMES)
        self._buckets = [[0] * NUM_BUCKETS for _ in _NAMES]
        self._count = 0
        self._slow_ns = inf  # until there are enough steps to compare with
        self._noted = -inf  # time of the last slow step that was kept

    def begin(self) -> int:
        """Begin a part; what :meth:`end` needs."""
        return self._now() - self._measured

    def end(self, part: int, began: int) -> None:
        """End a part.

        Args:
            part: Number of the part: ``DATA``, ``PULL``, ``PUSH``, ``OTHERS`` or ``CHECKPOINT``.
            began: Result of :meth:`begin`; parts that were measured since then count alone.
        """
        spent = self._now() - self._measured - began
        if spent > 0:  # else parts of two threads lay beside each other
            self._here[part] += spent
            self._measured += spent

    def step_ended(self) -> None:
        """End a step. The first one is not counted: it has what is done once, such as compiling."""
        now, here, measured = self._now(), self._here, self._measured
        if self._began:
            here[_STEP] = whole = now - self._began
            here[_COMPUTE] = max(0, whole - measured + self._measured_before)
            sums, buckets = self._sums, self._buckets
            for part, spent in enumerate(here):
                if spent:
                    sums[part] += spent
                    buckets[part][bisect_left(_BOUNDS_NS, spent)] += 1
            self._count += 1
            if whole > self._slow_ns:
                self._note_slow(now, here)
            if not self._count % _LEARNT_EVERY:
                self._slow_ns = _SLOW * 1e9 * self.times().part(STEP).quantile(0.99)
        self._here = [0] * len(_NAMES)
        self._began, self._measured_before = now, measured
        _here.clock = self
        if self.sampler is not None:
            self._sample(self.sampler)

    def _sample(self, sampler: StepSampler) -> None:
        """End the trace of the last step, and begin one if the next step is sampled."""
        if self.trace is not None:
            sampler.ended(self.trace)
            self.trace, self._now = None, self._own_now
        if sampler.next_is_sampled():
            self._here = self.trace = StepTrace(sampler.task, _NAMES, self._own_now)
            self._now = self.trace.now

    def _note_slow(self, now: int, here: list[int]) -> None:
        """Report a slow step, one in a second."""
        if now >= self._noted + 1e9:
            self._noted = now
            part = max(range(_STEP), key=here.__getitem__)
            usual_s = self._slow_ns / _SLOW / 1e9
            self._on_slow(here[_STEP] / 1e9, usual_s, _NAMES[part], here[part] / 1e9)

    def times(self) -> StepTimes:
        """Return what was measured until now. From any thread."""
        parts = zip(_NAMES, self._sums.copy(), self._buckets, strict=True)
        return StepTimes(
            tuple(StepPart(name, ns / 1e9, _trimmed(all_.copy())) for name, ns, all_ in parts if ns)
        )


class _Here(threading.local):
    """The clock of the steps that a thread makes; of one that has made none, one nobody reads."""

    clock = StepClock()


_here = _Here()


def clock_here() -> StepClock:
    """Return the clock of the steps that this thread makes.

    For what does not know whose steps it is a part of, such as a dataset. In a thread that makes no
    steps nobody waits, and what is measured there is nobody's.
    """
    return _here.clock


def timed(batches: Iterable[_Batch]) -> Iterator[_Batch]:
    """Yield batches, each measured as what a step waits for its data."""
    iterator = iter(batches)
    while True:
        clock = _here.clock
        began = clock.begin()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        clock.end(DATA, began)
        yield batch
