"""A ps's decisions about a cut of one share: whose pushes wait, and when its values are the cut's.

Pure: no I/O, no locks, no clock. A cut is each worker's pushes up to one number, on all ps, and
none beyond. A worker tells each ps where that number is by a *mark*, at a moment when all of its
pushes were answered, and pushes again when its marks are answered. A ps that has a worker's mark
lets that worker's pushes wait until it has the marks of all.

The rules below are needed, each of them: without any one, the model of the tests finds an order of
messages in which a ps has a push that another one does not have.

Source: Chandy and Lamport, "Distributed Snapshots: Determining Global States of Distributed
Systems", ACM TOCS 3(1), 1985. Their markers travel on the channels; here a push on a channel is
held back instead of recorded, since the values are to have it or not.
"""

from collections.abc import Set
from dataclasses import dataclass, replace
from enum import StrEnum

from ....core.errors import FencedError
from ....core.task import Incarnation
from ....core.wire.cut_marks import CutMark


class CutState(StrEnum):
    """The progress of a cut on one ps."""

    HOLDING = "holding"  # it waits for marks
    TAKEN = "taken"  # the values are the cut's
    VOID = "void"


@dataclass(frozen=True, slots=True)
class ShareCut:
    """A cut on one share.

    Attributes:
        number: Number of the cut in the job, which ascends.
        workers: Workers whose marks it waits for.
        until: Time at which it is void if a mark is missing. Unit: seconds, of the caller's clock.
        marks: The marks that have come.
        void_because: Why it is void; empty: it is not.
    """

    number: int
    workers: frozenset[Incarnation]
    until: float
    marks: frozenset[tuple[Incarnation, CutMark]] = frozenset()
    state: CutState = CutState.HOLDING
    void_because: str = ""

    @property
    def is_holding(self) -> bool:
        """Whether it waits for marks."""
        return self.state is CutState.HOLDING

    @property
    def marked_by(self) -> frozenset[Incarnation]:
        """Workers whose marks have come."""
        return frozenset(who for who, _ in self.marks)


def begun(
    before: ShareCut | None, number: int, workers: Set[Incarnation], until: float
) -> ShareCut:
    """Begin the cut that the chief orders; with no workers at all it is taken at once.

    Raises:
        FencedError: The order is an old one: a later cut was begun.
    """
    if before is not None and number <= before.number:
        if number == before.number:
            return before
        raise FencedError(f"cut {number} was begun after cut {before.number}", number=number)
    return _taken_if_complete(ShareCut(number, frozenset(workers), until))


def holds(cut: ShareCut, who: Incarnation, now: float) -> bool:
    """Return whether a push has to wait: it comes after the worker's mark, or the worker gives
    none.

    A worker that registered after the cut was begun gives no mark. Some ps may have begun to hold
    when it pushed to another one, so all of its pushes wait.
    """
    if not cut.is_holding or now >= cut.until:
        return False
    return who in cut.marked_by or who not in cut.workers


def marked(cut: ShareCut, who: Incarnation, mark: CutMark, applied: int, now: float) -> ShareCut:
    """Add a worker's mark to the cut.

    Args:
        cut: The cut.
        who: The worker.
        mark: Mark of the worker.
        applied: Number of its last push here, outside closures, by the ps's own count.
        now: The time.

    Raises:
        FencedError: The cut is over, or does not wait for this worker.
    """
    if (who, mark) in cut.marks:
        return cut  # a repeat
    if not cut.is_holding or now >= cut.until:
        raise FencedError(f"cut {cut.number} is over: a mark of {who} is of no use", task=who.task)
    if who not in cut.workers:
        raise FencedError(f"cut {cut.number} does not wait for {who}", task=who.task)
    if mark.sequence != applied:
        # The mark was on its way for long: it says where the pushes ended before.
        return voided(cut, f"{who} marked push {mark.sequence}, and push {applied} is here")
    return _taken_if_complete(replace(cut, marks=cut.marks | {(who, mark)}))


def voided(cut: ShareCut, why: str) -> ShareCut:
    """Make the cut void: it has come to nothing; the first reason stays."""
    if cut.state is CutState.VOID:
        return cut
    return replace(cut, state=CutState.VOID, void_because=why)


def expired(cut: ShareCut, now: float) -> ShareCut:
    """Bring the cut to this time: void if pushes have waited for as long as they may."""
    if not cut.is_holding or now < cut.until:
        return cut
    missing = sorted(who.task.short for who in cut.workers - cut.marked_by)
    return voided(cut, f"no mark of {', '.join(missing)} in time")


def _taken_if_complete(cut: ShareCut) -> ShareCut:
    return replace(cut, state=CutState.TAKEN) if cut.marked_by >= cut.workers else cut
