"""Cuts as the chief serves them: to workers that take part, and to tasks that read one."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from ...core.errors import CutVoidError
from ...core.report import CutCounts
from ...core.task import Incarnation
from ...core.wire import codec
from ...core.wire.bounds import shorten
from ...core.wire.cut_marks import Marks, marks_to_wire
from ...net.auth.guard import Visitor
from ...proto.v1 import chief_pb2
from ...server.chief.servicer import LockedJob
from ...telemetry.catalogue import Sample
from ...telemetry.task_metrics import cut_samples
from . import decisions
from .decisions import CutPhase, JobCut

# -- The cut that a job is taking, for the workers that ask, and the thread that takes it ------

_ASK_S = 0.02  # a round trip is less, and so is the stall that it costs
_ASK_EACH_S = 0.0005  # so that hundreds of workers do not keep the chief busy
_WHY_BYTES = 300


class TakeForReader(Protocol):
    """Takes a cut for a task that reads it."""

    def __call__(self, reader: Incarnation, *, rows_only: bool) -> tuple[int, int, Marks]:
        """Return (its number, its global step, its marks)."""
        ...


def _cannot(reader: Incarnation, *, rows_only: bool) -> tuple[int, int, Marks]:  # noqa: ARG001
    raise CutVoidError("the chief takes no cuts: its job has no ps, or has not begun")


def _keeps_none(number: int, reader: Incarnation) -> None:
    """Release a cut of a job that takes none."""


class JobCuts:
    """The cut under way. Thread-safe.

    Attributes:
        counts: Counts of the cuts before.
        take: Takes a cut for a task that reads its values.
        release: Has the ps keep nothing any more of the cut with a number, taken for a task.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._cut: JobCut | None = None
        self.counts = CutCounts()
        self.take: TakeForReader = _cannot
        self.release: Callable[[int, Incarnation], None] = _keeps_none

    @property
    def number(self) -> int:
        """Number of the cut under way; 0: none."""
        cut = self._cut
        return cut.number if cut is not None and not cut.is_over else 0

    def join(self, number: int, who: Incarnation) -> tuple[bool, float]:
        """Let a worker take part, and tell it what to do.

        Returns:
            (whether it should mark now, after how many seconds to ask again; 0: not any more)
        """
        with self._change:
            cut = self._cut
            if cut is None or cut.number != number or cut.is_over or who not in cut.workers:
                return False, 0.0
            self._set(decisions.joined(cut, who))
            return cut.phase is CutPhase.MARKING, max(_ASK_S, _ASK_EACH_S * len(cut.workers))

    def begin(self, cut: JobCut) -> None:
        """Announce a cut."""
        with self._change:
            self._set(cut)

    def advance(self, decide: Callable[[JobCut], JobCut]) -> JobCut:
        """Apply a decision to the cut under way; returns what it is then."""
        with self._change:
            if self._cut is None:
                raise RuntimeError("no cut was begun")
            self._set(decide(self._cut))
            return self._cut

    def ended(self, took_s: float, void_because: str = "") -> None:
        """End the cut under way.

        Args:
            took_s: Duration of the cut. Unit: seconds.
            void_because: Why it is void; empty: it was taken.
        """
        with self._change:
            now = self.counts
            if void_because:
                why = shorten(void_because, _WHY_BYTES)
                self.counts = replace(now, void=now.void + 1, last_void=why)
            else:
                self.counts = replace(now, taken=now.taken + 1, last_s=took_s)

    def wait(self, phase: CutPhase, timeout_s: float) -> JobCut:
        """Wait as long as a cut is in a phase; returns what it is then."""
        with self._change:
            self._change.wait_for(
                lambda: self._cut is None or self._cut.phase is not phase, timeout_s
            )
            if self._cut is None:
                raise RuntimeError("no cut was begun")
            return self._cut

    def _set(self, cut: JobCut) -> None:
        if cut != self._cut:
            self._cut = cut
            self._change.notify_all()


# -- The calls -----------------------------------------------------------------------------------


class CutsPart:
    """Serves the calls about cuts. Thread-safe.

    Args:
        locked_job: The job.
    """

    def __init__(self, locked_job: LockedJob) -> None:
        self._cuts = locked_job.part(JobCuts)

    def add_to_heartbeat(self, answer: chief_pb2.HeartbeatResponse) -> None:
        """Tell the number of the cut under way."""
        answer.cut = self._cuts.number

    def add_to_status(self, status: chief_pb2.GetStatusResponse) -> None:
        """Add how many cuts were taken."""
        status.cuts.CopyFrom(_cuts_to_wire(self._cuts.counts))

    def samples(self) -> Iterator[Sample]:
        """Yield samples of cuts."""
        counts = self._cuts.counts
        yield from cut_samples(counts.taken, counts.void, counts.last_s)

    def JoinCut(self, request: chief_pb2.JoinCutRequest, _: Visitor) -> chief_pb2.JoinCutResponse:
        """Let a worker take part in a cut, and tell it whether it should mark. Idempotent."""
        who = codec.sender_of(request)
        marks, again_s = self._cuts.join(request.cut, who)
        return chief_pb2.JoinCutResponse(marks=marks, again_s=again_s)

    def TakeCut(
        self, request: chief_pb2.TakeCutRequest, visitor: Visitor
    ) -> chief_pb2.TakeCutResponse:
        """Take a cut for a task that reads its values. Not idempotent: each has a new number."""
        who = codec.sender_of(request)
        visitor.check("cut ROWS" if request.rows_only else "cut VALUES")
        number, global_step, marks = self._cuts.take(who, rows_only=request.rows_only)
        return chief_pb2.TakeCutResponse(
            cut=number, global_step=global_step, marks=marks_to_wire(marks)
        )

    def ReleaseCut(
        self, request: chief_pb2.ReleaseCutRequest, _: Visitor
    ) -> chief_pb2.ReleaseCutResponse:
        """Have the ps keep nothing of a cut any more. Idempotent."""
        who = codec.sender_of(request)
        self._cuts.release(request.cut, who)
        return chief_pb2.ReleaseCutResponse()


def _cuts_to_wire(counts: CutCounts) -> chief_pb2.CutCounts:
    return chief_pb2.CutCounts(
        taken=counts.taken, void=counts.void, last_s=counts.last_s, last_void=counts.last_void
    )


PART = CutsPart
"""Made for each job."""
