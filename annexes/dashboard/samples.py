"""A job's numbers over time in bounded memory: the older, the coarser.

Samples are kept in levels. The first has the newest ones as they came; when it is full, its two
oldest become one of the next level, which is as long as both, and so on. So a day is kept in about
a thousand samples, of which the last minutes are the finest, and a year in half as many more. What
the last level cannot hold is forgotten.

Pure: time comes with the samples.
"""

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from sys import float_info

LEVELS = 16
CAPACITY = 96
"""Samples of a level. With one a second the last level holds 36 days, all of them 72."""
MOST_SERIES = 400
"""Names that have numbers: 5 MB with all samples. Others are left out."""
MISSING = -float_info.max
"""No number, in place of one; NaN is a number that a diverged program reports."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The numbers of a stretch of time.

    Attributes:
        at: End of the stretch. Unit: seconds since the epoch.
        seconds: Length of the stretch.
        values: Numbers by the places of their names; those that are missing at the end are MISSING.
    """

    at: float
    seconds: float
    values: "array[float]"

    def numbers(self) -> list[float | None]:
        """List the numbers; None: there is none."""
        return [None if value == MISSING else value for value in self.values]


def merge(older: Stretch, newer: Stretch) -> Stretch:
    """Make one sample of two: means by how long each is, of the numbers that are there."""
    seconds = older.seconds + newer.seconds
    share = older.seconds / seconds if seconds else 0.5
    longer, shorter = older.values, newer.values
    if len(longer) < len(shorter):
        longer, shorter, share = shorter, longer, 1 - share
    values = array("d", longer)
    for place, other in enumerate(shorter):
        own = values[place]
        if own == MISSING:
            values[place] = other
        elif other != MISSING:
            values[place] = share * own + (1 - share) * other
    return Stretch(newer.at, seconds, values)


@dataclass(slots=True)
class Samples:
    """The samples of a job. Not thread-safe.

    Attributes:
        names: Name of each number, by its place.
        levels: Number of levels, of which each is half as fine as the one before.
        capacity: Samples of a level, at most.
    """

    names: list[str] = field(default_factory=list)
    levels: int = LEVELS
    capacity: int = CAPACITY
    _places: dict[str, int] = field(default_factory=dict)
    _levels: list[deque[Stretch]] = field(default_factory=lambda: [deque()])

    def add(self, at: float, seconds: float, numbers: Mapping[str, float]) -> Stretch:
        """Add the newest sample.

        Args:
            at: End of its time; not before that of the last. Unit: seconds since the epoch.
            seconds: Length of its time.
            numbers: Numbers by name.
        """
        sample = Stretch(at, seconds, self._values(numbers))
        self._push(sample, 0)
        return sample

    def begin_with(self, before: Sequence[tuple[float, float, Mapping[str, float]]]) -> None:
        """Take the samples of an earlier history, the oldest first, no coarser than they are.

        Args:
            before: End, length and numbers of each; there are no others yet.
        """
        kept = [Stretch(at, seconds, self._values(numbers)) for at, seconds, numbers in before]
        parts = [
            kept[max(0, end - self.capacity) : end] for end in range(len(kept), 0, -self.capacity)
        ]
        self._levels = [deque(part) for part in parts[: self.levels]] or [deque()]

    def _values(self, numbers: Mapping[str, float]) -> "array[float]":
        for name in numbers:
            if name not in self._places and len(self.names) < MOST_SERIES:
                self._places[name] = len(self.names)
                self.names.append(name)
        values = array("d", [MISSING]) * len(self.names)
        for name, number in numbers.items():
            if (place := self._places.get(name)) is not None:
                values[place] = number
        return values

    def _push(self, sample: Stretch, depth: int) -> None:
        if depth == len(self._levels):
            self._levels.append(deque())
        level = self._levels[depth]
        level.append(sample)
        if len(level) <= self.capacity:
            return
        oldest = level.popleft()
        if depth + 1 < self.levels:
            self._push(merge(oldest, level.popleft()), depth + 1)

    def since(self, at: float = 0.0) -> Iterator[Stretch]:
        """Yield the samples that end after a time, the oldest first."""
        for level in reversed(self._levels):
            yield from (sample for sample in level if sample.at > at)

    def __len__(self) -> int:
        return sum(map(len, self._levels))
