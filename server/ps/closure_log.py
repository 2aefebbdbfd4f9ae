"""Exactly-once pushes of closures: which of them may be applied now. Pure.

As :mod:`~ropewalk.server.ps.dedup` for pushes of workers. A closure numbers its pushes to a ps 1,
2, 3 … in each attempt; number n + 1 is applied only after n, and n and below are answered as
duplicates, whichever attempt brought them. The state is one entry per lane: bounded.
"""

from dataclasses import dataclass, field

from ...core.errors import LimitExceededError, SequenceError
from ...core.wire.closure_pushes import ClosureMarks, ClosureRun


@dataclass(slots=True)
class ClosurePushLog:
    """Closure of each lane, and that one's last complete push. The caller locks. The caller locks.

    Attributes:
        limit: Most lanes.
    """

    limit: int = 1024
    _marks: ClosureMarks = field(default_factory=ClosureMarks)

    @property
    def marks(self) -> ClosureMarks:
        """Marks of each lane."""
        return self._marks

    def take(self, marks: ClosureMarks) -> None:
        """Have these marks instead."""
        self._marks = marks.copy()

    def is_new(self, run: ClosureRun, number: int) -> bool:
        """Return whether to apply this push (True), or it is a duplicate (False).

        Attempts before its oldest one are refused from now on.

        Raises:
            FencedError: The closure is over, or this attempt was given up.
            SequenceError: An earlier push has not arrived.
            LimitExceededError: The lane is beyond what a ps remembers.
        """
        if run.lane >= self.limit:
            raise LimitExceededError(
                f"{run} has lane {run.lane}, and a ps remembers {self.limit}; raise "
                "ROPEWALK_MAX_SESSIONS on the ps",
                limit="max_sessions",
                value=run.lane,
            )
        self._marks.mark(run, 0)
        applied = self._marks.applied(run)
        if number <= applied:
            return False
        if number > applied + 1:
            raise SequenceError(
                f"push {number} of {run} came before push {applied + 1}; send that one first",
                sequence=number,
                expected=applied + 1,
            )
        return True

    def applied(self, run: ClosureRun, number: int) -> None:
        """Count a push that was applied completely.

        Raises:
            FencedError: The closure is over, or this attempt was given up.
        """
        self._marks.mark(run, number)
