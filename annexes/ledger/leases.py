"""Leases of ranges, as the chief gives them out. Pure: no clock, no calls, one lock around it.

What is leased is advice. Whether a step counts is decided where its push is applied (ADR 114), so
a range may be leased twice, a table may forget who has what, and a worker that was given up may
come back: no example is trained twice. The table only sees to it that none is left out, and that
as little as possible is computed in vain.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.task import Incarnation
from .plan import RangesProgress


class RangeLease(NamedTuple):
    """A range that a worker trains now.

    Attributes:
        epoch: Epoch of the range.
        number: Number of the range.
        begun: Whether another worker may have trained a part of it.
    """

    epoch: int
    number: int
    begun: bool


@dataclass(frozen=True, slots=True)
class AllLeased:
    """All ranges that are left are leased: ask again.

    Attributes:
        holders: Tasks that hold them.
    """

    holders: tuple[Incarnation, ...] = ()


class Over(NamedTuple):
    """All ranges of the epoch are complete."""


class Tell(NamedTuple):
    """The table knows nothing yet: whoever asks is to say what the ps know."""


Answer = RangeLease | AllLeased | Over | Tell


@dataclass(slots=True)
class Leases:
    """The leases of one ledger.

    Attributes:
        ranges: Number of ranges of an epoch.
        epoch: Epoch that is trained.
        holders: Holder of each range that is leased.
        is_known: Whether it knows what was trained before.
    """

    ranges: int
    epoch: int = 0
    holders: dict[int, Incarnation] = field(default_factory=dict)
    is_known: bool = False
    _done: Array = field(default_factory=lambda: np.empty(0, np.bool_))
    _fresh: Array = field(default_factory=lambda: np.empty(0, np.bool_))
    _free: deque[int] = field(default_factory=deque)

    def learn(self, progress: RangesProgress) -> None:
        """Take over what the ps know, if nothing is known here."""
        if self.is_known:
            return
        self.is_known = True
        self.epoch, self._done = progress.epoch, progress.done.copy()
        self._fresh = ~(progress.done | progress.begun)
        # What others have begun and left comes first.
        left = np.flatnonzero(~self._done & ~self._fresh).tolist()
        self._free = deque(left + np.flatnonzero(self._fresh).tolist())

    @property
    def num_done(self) -> int:
        """Number of ranges of the epoch that are complete."""
        return int(self._done.sum())

    def finish(self, epoch: int, numbers: Iterable[int]) -> None:
        """Note that ranges are complete."""
        self._follow(epoch)
        if epoch != self.epoch or not self.is_known:
            return
        for number in numbers:
            self._done[number] = True
            self.holders.pop(number, None)

    def hold(self, epoch: int, number: int, who: Incarnation) -> None:
        """Note that a task says it is training a range, which another chief may have leased."""
        self._follow(epoch)
        if self.is_known and epoch == self.epoch and not self._done[number]:
            self.holders.setdefault(number, who)

    def release(self, is_gone: Callable[[Incarnation], bool]) -> None:
        """Take back the ranges of tasks that are gone."""
        for number, who in list(self.holders.items()):
            if is_gone(who):
                self._take_back(number)

    def give_back(self, epoch: int, numbers: Iterable[int], who: Incarnation) -> None:
        """Note that a task does not go on with ranges that it has leased."""
        for number in numbers:
            if epoch == self.epoch and self.holders.get(number) == who:
                self._take_back(number)

    def _take_back(self, number: int) -> None:
        del self.holders[number]
        self._fresh[number] = False
        self._free.appendleft(number)

    def take(self, who: Incarnation, epoch: int) -> Answer:
        """Lease a range to a task that goes through an epoch, or one of an earlier epoch that is
        not complete.
        """
        if not self.is_known:
            return Tell()
        if epoch < self.epoch:
            return Over()
        if self._done.all():
            if epoch == self.epoch:
                return Over()
            self._begin(self.epoch + 1)
        while self._free:
            number = self._free.popleft()
            if not self._done[number] and number not in self.holders:
                self.holders[number] = who
                return RangeLease(self.epoch, number, not self._fresh[number])
        return AllLeased(tuple(dict.fromkeys(self.holders.values())))

    def _follow(self, epoch: int) -> None:
        """Begin an epoch that a worker is in already, if the one before is over."""
        if self.is_known and epoch > self.epoch and self._done.all():
            self._begin(self.epoch + 1)

    def _begin(self, epoch: int) -> None:
        self.epoch, self.holders = epoch, {}
        self._done = np.zeros(self.ranges, np.bool_)
        self._fresh = np.ones(self.ranges, np.bool_)
        self._free = deque(range(self.ranges))
