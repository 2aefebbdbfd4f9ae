"""Taking cuts: the values of all ps at one moment, for checkpoints and snapshots.

The decisions are ``decisions.py``; here are the calls. Workers join when they hear of a cut by
their heartbeats, and mark when all ps hold; the ps say when they have all marks.
"""

import itertools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ...client.ps.control import CutOrder, PsControl
from ...core.checkpoint.manifest import CutRecord
from ...core.errors import CutVoidError, MovedError, PermissionDeniedError, RopewalkError
from ...core.settings import Settings
from ...core.task import Incarnation, Phase
from ...core.wire.cut_marks import Marks
from ...server.chief.servicer import LockedJob
from ...worker.lead.leadership import Led
from . import decisions
from .chief_part import JobCuts
from .decisions import CutPhase, JobCut

log = logging.getLogger(__name__)

_TRIES = 3
_ANSWER_S = 2.0
_JOIN_S = 1.0  # how long a worker that has heard of a cut may take to say so
_LOOK_S = 0.05  # how soon it is noticed that a task has come or left
_READ_S = 60.0  # a reader that says nothing for longer is gone, and another one may read

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class TakenCut:
    """A cut that all ps have.

    Attributes:
        led: The shares that it is of, and who has their values.
        marks: Marks of each share, in the same order.
    """

    number: int
    global_step: int
    led: Led
    marks: tuple[Marks, ...]

    @property
    def pushes(self) -> Marks:
        """Each worker's mark on the first share; its pushes are the same on all."""
        return self.marks[0]

    def record(self) -> CutRecord:
        """Make the record of it for a manifest."""
        return CutRecord(
            number=self.number,
            workers={str(who.task): who.generation for who in self.pushes},
            shares=tuple(
                {str(who.task): (mark.pushes, mark.sequence) for who, mark in marks.items()}
                for marks in self.marks
            ),
        )


@dataclass(frozen=True, slots=True)
class _Kept:
    """A cut whose values the ps keep.

    Attributes:
        reader: Reader that the cut is for; None: a checkpoint.
        until: Time at which it may be given up for another one, by the job's clock; None: when
            released.
    """

    cut: TakenCut
    reader: Incarnation | None = None
    until: float | None = None


class Cutter:
    """Takes the cuts of a job, one at a time. Thread-safe.

    Args:
        locked_job: The job.
        who: The chief.
        leaders: Returns each share with the ps that leads it.
        settings: Settings: how long pushes wait, and how often workers are heard of.
    """

    def __init__(
        self,
        locked_job: LockedJob,
        who: Incarnation,
        leaders: Callable[[], Led],
        settings: Settings,
    ) -> None:
        self._locked_job = locked_job
        self._who = who
        self._leaders = leaders
        self._hold_s = settings.cut_hold_s
        self._heard_s = 2 * settings.heartbeat_s  # by then a worker has heard of a cut
        # They ascend over restarts of the chief, too: its generations are a million apart.
        self._numbers = itertools.count(who.generation + 1)
        self._taking = threading.Lock()
        self._kept: _Kept | None = None
        self._has_warned = False

    def take(self, *, with_slots: bool, may_be_base: bool = False) -> TakenCut:
        """Take a cut, whose values the ps keep until :meth:`release`.

        A cut that is being read is given up for this one.

        Args:
            with_slots: Whether slots are wanted, or values alone.
            may_be_base: Whether the ps note what changes from then on, for deltas.

        Raises:
            CutVoidError: It was tried some times; why the last one was void.
        """
        with self._taking:
            taken = self._take(with_slots=with_slots, may_be_base=may_be_base)
            self._kept = _Kept(taken)
            return taken

    def take_for_reader(
        self, reader: Incarnation, *, rows_only: bool = False
    ) -> tuple[int, int, Marks]:
        """Take a cut for a task that reads its values.

        Args:
            reader: The task.
            rows_only: Whether only the rows are wanted that it has named, and no other values.

        Returns:
            (its number, its global step, the mark of each worker)

        Raises:
            CutVoidError: As :meth:`take`; or another one is taken, saved or read now.
        """
        if not self._taking.acquire(blocking=False):
            raise CutVoidError("another cut is being taken; ask again")
        try:
            now, kept = self._locked_job.clock.now(), self._kept
            if kept is not None and (kept.until is None or now < kept.until):
                raise CutVoidError(f"cut {kept.cut.number} is being saved or read; ask again")
            taken = self._take(with_slots=False, reader=reader, rows_only=rows_only)
            self._kept = _Kept(taken, reader, self._locked_job.clock.now() + _READ_S)
        finally:
            self._taking.release()
        return taken.number, taken.global_step, taken.pushes

    def release(self, cut: TakenCut) -> None:
        """Have the ps keep nothing of a cut any more."""
        if self._kept is not None and self._kept.cut is cut:
            self._kept = None
        self._end(cut.number, cut.led)

    def release_number(self, number: int, reader: Incarnation) -> None:
        """Have the ps keep nothing of a cut any more that was taken for a task. Idempotent.

        Raises:
            PermissionDeniedError: It was taken for somebody else.
        """
        kept = self._kept
        if kept is None or kept.cut.number != number:
            return
        if kept.reader != reader:
            raise PermissionDeniedError(
                f"cut {number} was taken for {kept.reader or 'a checkpoint'}, so {reader} may not "
                "release it",
                number=number,
            )
        self.release(kept.cut)

    def warn(self, error: CutVoidError | MovedError) -> None:
        """Say that a checkpoint is not of one moment; loudly once."""
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        log.log(
            level,
            "a checkpoint is not of one moment of all ps (its manifest has no cut): %s",
            error.message,
        )

    def _take(
        self,
        *,
        with_slots: bool,
        may_be_base: bool = False,
        reader: Incarnation | None = None,
        rows_only: bool = False,
    ) -> TakenCut:
        with self._locked_job.open() as (job, _):
            is_running = job.phase is Phase.RUNNING
        # A job that ends has no time to wait for a task that stands still.
        join_s = self._heard_s + (_JOIN_S if is_running else 0)
        last: CutVoidError | None = None
        for _ in range(_TRIES):
            pushing = self._pushing()
            try:
                number = next(self._numbers)
                order = CutOrder(
                    number, pushing, self._hold_s, with_slots, may_be_base, reader, rows_only
                )
                return self._attempt(order, join_s)
            except CutVoidError as error:
                log.debug("%s", error)
                last = error
                if not is_running and self._pushing() == pushing:  # nobody has just left
                    break
        raise last or CutVoidError("no cut was tried")

    def _attempt(self, order: CutOrder, join_s: float) -> TakenCut:
        cuts, number = self._locked_job.part(JobCuts), order.number
        try:
            led = list(self._leaders())
        except RopewalkError as error:
            raise CutVoidError(f"cut {number} is void: {error}", number=number) from error
        cut = decisions.announced(number, order.workers, [share for share, _ in led])
        cuts.begin(cut)
        began = self._locked_job.clock.now()
        try:
            self._wait_for_workers(join_s)
            _for_each(led, lambda share, ps: self._begin(ps, share, order))
            answers = _for_each(led, lambda share, ps: self._finish(ps, share, number))
        except RopewalkError as error:
            why = error.message
            cuts.advance(lambda now: decisions.voided(now, why))
            cuts.ended(self._locked_job.clock.now() - began, why)
            self._end(number, led)
            raise CutVoidError(f"cut {number} is void: {error}", number=number) from error
        cuts.ended(self._locked_job.clock.now() - began)
        step = max(step for step, _ in answers)
        return TakenCut(number, step, led, tuple(marks for _, marks in answers))

    def _wait_for_workers(self, join_s: float) -> None:
        """Wait until all workers have joined the cut under way."""
        cuts, clock = self._locked_job.part(JobCuts), self._locked_job.clock
        until = clock.now() + join_s
        while (now := cuts.wait(CutPhase.JOINING, _LOOK_S)).phase is CutPhase.JOINING:
            if clock.now() >= until:
                raise CutVoidError(f"{decisions.missing(now)} did not join in {join_s:g} s")
            workers = self._pushing()
            self._check(cuts.advance(partial(decisions.still_of, workers=workers)))

    def _begin(self, ps: PsControl, share: int, order: CutOrder) -> None:
        ps.begin_cut(self._who, share, order, timeout_s=self._hold_s + _ANSWER_S)
        workers = self._pushing()
        cuts = self._locked_job.part(JobCuts)
        now = cuts.advance(lambda cut: decisions.began(cut, share, workers))
        self._check(now)

    def _finish(self, ps: PsControl, share: int, number: int) -> tuple[int, Marks]:
        timeout_s = self._hold_s + _ANSWER_S
        answer = ps.finish_cut(self._who, share, number, timeout_s=timeout_s)
        self._check(self._locked_job.part(JobCuts).advance(lambda cut: decisions.taken(cut, share)))
        return answer

    @staticmethod
    def _check(cut: JobCut) -> None:
        if cut.phase is CutPhase.VOID:
            raise CutVoidError(cut.void_because, number=cut.number)

    def _pushing(self) -> frozenset[Incarnation]:
        with self._locked_job.open() as (job, _):
            return decisions.pushing(job)

    def _end(self, number: int, led: Led) -> None:
        def end(share: int, ps: PsControl) -> None:
            try:
                ps.end_cut(self._who, share, number, timeout_s=_ANSWER_S)
            except RopewalkError as error:
                log.debug("cut %d on %s: %s", number, ps.task, error)

        _for_each(led, end)


def _for_each(led: Led, call: Callable[[int, PsControl], _Answer]) -> list[_Answer]:
    """Call for each share at once; the first error of them, when all are over."""
    with ThreadPoolExecutor(len(led), thread_name_prefix="cut") as pool:
        return [each.result() for each in [pool.submit(call, *each) for each in led]]


def moments(
    locked_job: LockedJob, who: Incarnation, leaders: Callable[[], Led], settings: Settings
) -> Cutter:
    """Make what takes moments of a job, also for tasks that read one.

    Args:
        locked_job: The job.
        who: The task that leads it.
        leaders: Returns each share with the ps that leads it.
        settings: Settings of the chief.
    """
    cutter = Cutter(locked_job, who, leaders, settings)
    cuts = locked_job.part(JobCuts)
    cuts.take, cuts.release = cutter.take_for_reader, cutter.release_number
    return cutter
