"""Findings in the status of a job."""

from collections.abc import Iterator

from ...core.wire.same_fields import to_message
from ...proto.v1 import chief_pb2
from ...server.chief.servicer import LockedJob
from ...telemetry.catalogue import Sample
from .decisions import unsaved
from .window import Window


class InsightPart:
    """A chief's part in findings. Thread-safe.

    Args:
        locked_job: The job.
    """

    def __init__(self, locked_job: LockedJob) -> None:
        self._locked_job = locked_job
        self._window = locked_job.part(Window)

    def add_to_heartbeat(self, answer: chief_pb2.HeartbeatResponse) -> None:
        """Add nothing."""

    def add_to_status(self, status: chief_pb2.GetStatusResponse) -> None:
        """Add what the last minute's reports say, and why checkpoints fail."""
        saves = self._locked_job.saves
        with self._locked_job.open() as (job, now):
            found = [
                *unsaved(saves.in_a_row, saves.why, job.saved_step),
                *self._window.findings(job.members.values(), now),
            ]
        status.findings.extend(to_message(chief_pb2.Finding, each) for each in found)

    def samples(self) -> Iterator[Sample]:
        """Yield nothing: what findings are made of is in the tasks' own metrics."""
        yield from ()


PART = InsightPart
"""Made for each job."""
