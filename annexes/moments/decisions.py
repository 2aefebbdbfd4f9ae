"""The chief's decisions about a cut: who takes part, when workers mark, when it is taken. Pure.

A cut has three steps. First workers are asked to *join*: a worker that stands still does not, and
then no push waits for it. Once all have joined, every ps *begins* to hold what is beyond the cut.
Only when all of them hold do the workers *mark*: a worker's mark is the moment up to which its
pushes belong to the cut, and it has to be the same moment on all ps.

A task that comes, leaves or is lost meanwhile makes the cut void: it was not asked, or does not
mark. So does a share that another ps leads by now. The chief then tries the next number.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from enum import StrEnum

from ...cluster.job.job import Job
from ...cluster.spec import CHIEF, WORKER
from ...core.task import Incarnation, State


class CutPhase(StrEnum):
    """The progress of a cut."""

    JOINING = "joining"  # workers are asked to take part
    BEGINNING = "beginning"  # all have joined; the ps are told
    MARKING = "marking"  # all ps hold; workers mark
    TAKEN = "taken"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class JobCut:
    """A cut of a job.

    Attributes:
        number: Number of the cut, which ascends from cut to cut.
        workers: The tasks that push, when it was announced.
        shares: Numbers of the shares that it is of.
        joined: Workers that have heard of it and can mark.
        began: Shares whose ps holds.
        taken: Shares whose ps has all marks.
        void_because: Why it is void; empty: it is not.
    """

    number: int
    workers: frozenset[Incarnation]
    shares: frozenset[int]
    phase: CutPhase = CutPhase.JOINING
    joined: frozenset[Incarnation] = frozenset()
    began: frozenset[int] = frozenset()
    taken: frozenset[int] = frozenset()
    void_because: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens."""
        return self.phase in (CutPhase.TAKEN, CutPhase.VOID)


def pushing(job: Job) -> frozenset[Incarnation]:
    """Find the tasks of a job that may push now."""
    return frozenset(
        Incarnation(member.task, member.generation, job.name or "")
        for member in job.members.values()
        if member.state is State.ALIVE and member.task.type in (CHIEF, WORKER)
    )


def announced(number: int, workers: Set[Incarnation], shares: Iterable[int]) -> JobCut:
    """Make a cut that is to be taken."""
    return _advanced(JobCut(number, frozenset(workers), frozenset(shares)))


def joined(cut: JobCut, who: Incarnation) -> JobCut:
    """Return the cut once a worker has said that it can mark."""
    if cut.phase is not CutPhase.JOINING:
        return cut
    return _advanced(replace(cut, joined=cut.joined | {who}))


def began(cut: JobCut, share: int, workers: Set[Incarnation]) -> JobCut:
    """Return the cut once the ps of a share holds.

    Args:
        cut: The cut.
        share: The share.
        workers: The tasks that push now: one that has come since might have pushed to one ps
            before it held, and to another one after that.
    """
    if cut.phase is not CutPhase.BEGINNING:
        return cut
    return _advanced(still_of(replace(cut, began=cut.began | {share}), workers))


def taken(cut: JobCut, share: int) -> JobCut:
    """Return the cut once the ps of a share has all marks."""
    if cut.phase is not CutPhase.MARKING:
        return cut
    return _advanced(replace(cut, taken=cut.taken | {share}))


def still_of(cut: JobCut, workers: Set[Incarnation]) -> JobCut:
    """Return the cut if these tasks push now: void if they are others than those that it is of."""
    if cut.workers == workers:
        return cut
    changed = sorted({who.task.short for who in cut.workers ^ frozenset(workers)})
    return voided(cut, f"{', '.join(changed)} came or left")


def missing(cut: JobCut) -> str:
    """Say whom a cut that is not over waits for, for people."""
    if cut.phase is CutPhase.JOINING:
        return ", ".join(sorted(who.task.short for who in cut.workers - cut.joined))
    waits_for = cut.shares - (cut.began if cut.phase is CutPhase.BEGINNING else cut.taken)
    return ", ".join(f"share {share}" for share in sorted(waits_for))


def voided(cut: JobCut, why: str) -> JobCut:
    """Return the cut once it has come to nothing; the first reason stays."""
    if cut.is_over:
        return cut
    return replace(cut, phase=CutPhase.VOID, void_because=why)


def _advanced(cut: JobCut) -> JobCut:
    if cut.phase is CutPhase.JOINING and cut.joined >= cut.workers:
        cut = replace(cut, phase=CutPhase.BEGINNING)
    if cut.phase is CutPhase.BEGINNING and cut.began >= cut.shares:
        cut = replace(cut, phase=CutPhase.MARKING)
    if cut.phase is CutPhase.MARKING and cut.taken >= cut.shares:
        cut = replace(cut, phase=CutPhase.TAKEN)
    return cut
