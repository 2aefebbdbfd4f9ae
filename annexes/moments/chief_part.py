"""Cuts as the chief serves them: to workers that take part, and to tasks that read one."""

from collections.abc import Iterator

from ...core.report import CutCounts
from ...core.wire import codec
from ...core.wire.cut_marks import marks_to_wire
from ...net.auth.guard import Visitor
from ...proto.v1 import chief_pb2
from ...server.chief.servicer import LockedJob
from ...telemetry.catalogue import Sample
from ...telemetry.task_metrics import cut_samples
from .job_cuts import JobCuts


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
