"""A move of a share to another ps: what was asked for, and what has become of it. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from ...core.task import TaskId


class MovePhase(StrEnum):
    """The progress of a move."""

    COPYING = "copying"
    HANDING_OVER = "handing over"  # the other ps has everything, and is told to lead
    DONE = "done"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens."""
        return self in (MovePhase.DONE, MovePhase.FAILED)


@dataclass(frozen=True, slots=True)
class Move:
    """A share is to be led by another ps.

    Attributes:
        number: Number of this move, from 1 for the first one that a chief is asked for.
        share: Number of the share.
        source: The ps that led when the move was asked for.
        to: The ps that is to lead.
        phase: Progress of the move.
        reason: Why it failed; empty otherwise.
        copied_bytes: Bytes of values and slots that were sent to ``to``.
        total_bytes: Bytes of the share; 0: not known yet.
        seconds: Time that it has taken until now, or until it was over. Unit: seconds.
    """

    number: int
    share: int
    source: TaskId
    to: TaskId
    phase: MovePhase = MovePhase.COPYING
    reason: str = ""
    copied_bytes: int = 0
    total_bytes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"the move of share {self.share} from {self.source.short} to {self.to.short}"
