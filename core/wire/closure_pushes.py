"""Exactly-once pushes of closures: what runs of one closure may still apply. Pure.

A closure whose worker is lost is run again from its beginning, on another worker, which pushes
under numbers of its own. So pushes in a closure are numbered by the closure: 1, 2, 3 … to each ps,
in every attempt from the start. Number n is applied once, whichever attempt brings it first; the
repeat of a push that broke off halfway applies the rest of it.

To know which closure that is, the coordinator gives each that it begins a *lane*, a small number
that no other unfinished closure has, and keeps for all its attempts, and a *turn*, which grows.
What a ps remembers is one mark per lane: a later turn there means that the closure before it is
over, and what still comes of that is refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..errors import FencedError


@dataclass(frozen=True, slots=True)
class ClosureRun:
    """An attempt at a closure, as its pushes name it.

    Attributes:
        coordinator: Generation of the coordinator; a later one has begun anew.
        lane: Lane of the closure until it is over.
        turn: Turn of the closure, which grows with each closure that a coordinator begins.
        attempt: Number of the attempt, from 1.
        oldest_attempt: The first attempt that may still push; those before have lost their worker.
    """

    coordinator: int
    lane: int
    turn: int
    attempt: int = 1
    oldest_attempt: int = 1

    def __str__(self) -> str:
        return f"closure {self.turn}, attempt {self.attempt}"


@dataclass(frozen=True, slots=True)
class _Mark:
    """The last push of a lane that was applied.

    Attributes:
        closure: Generation of the coordinator, and turn of the closure.
        oldest_attempt: Highest ``oldest_attempt`` of its pushes.
        number: Number of the push in the closure.
    """

    closure: tuple[int, int] = (0, 0)
    oldest_attempt: int = 0
    number: int = 0


_NONE = _Mark()

ClosureRow = tuple[int, int, int, int, int]
"""A mark: lane, generation of the coordinator, turn, oldest attempt, number of the last push."""


@dataclass(slots=True)
class ClosureMarks:
    """The progress of the closure in each lane. The caller locks."""

    _marks: dict[int, _Mark] = field(default_factory=dict)

    def applied(self, run: ClosureRun) -> int:
        """Return the number of the closure's last push that was applied; 0: none.

        Raises:
            FencedError: The closure is over, or runs elsewhere now.
        """
        mark = self._marks.get(run.lane, _NONE)
        closure = (run.coordinator, run.turn)
        if closure > mark.closure:
            return 0
        if closure < mark.closure:
            raise FencedError(
                f"a push of {run} came when closure {mark.closure[1]} had taken its place: it is "
                "over, and nothing more of it is applied",
                turn=run.turn,
                current=mark.closure[1],
            )
        if run.attempt < mark.oldest_attempt:
            raise FencedError(
                f"a push of {run} came when attempt {mark.oldest_attempt} had begun: its worker "
                "was given up, and the closure runs elsewhere",
                turn=run.turn,
                attempt=run.attempt,
                current=mark.oldest_attempt,
            )
        return mark.number

    @staticmethod
    def from_rows(rows: Iterable[ClosureRow]) -> "ClosureMarks":
        """Restore marks from what :meth:`rows` gave."""
        marks = {
            lane: _Mark((who, turn), oldest, number) for lane, who, turn, oldest, number in rows
        }
        return ClosureMarks(marks)

    def rows(self) -> list[ClosureRow]:
        """Write all marks as numbers."""
        return [
            (lane, *mark.closure, mark.oldest_attempt, mark.number)
            for lane, mark in sorted(self._marks.items())
        ]

    def copy(self) -> "ClosureMarks":
        """Copy the marks, which change apart from these."""
        return ClosureMarks(dict(self._marks))

    def mark(self, run: ClosureRun, number: int) -> None:
        """Remember that a push was applied, or with 0 that an attempt has begun.

        Raises:
            FencedError: As :meth:`applied`.
        """
        before = self.applied(run)
        mark = self._marks.get(run.lane, _NONE)
        closure = (run.coordinator, run.turn)
        oldest = mark.oldest_attempt if mark.closure == closure else 0
        self._marks[run.lane] = _Mark(closure, max(oldest, run.oldest_attempt), max(before, number))
