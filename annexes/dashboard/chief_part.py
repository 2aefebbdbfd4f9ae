"""The history of a job, as the chief serves it."""

from collections.abc import Iterator

from ...net.auth.guard import Visitor
from ...proto.v1 import chief_pb2
from ...server.chief.servicer import LockedJob
from ...telemetry.catalogue import Sample
from .keeping import History


class HistoryPart:
    """Serves the call about the history. Thread-safe.

    Args:
        locked_job: The job.
    """

    def __init__(self, locked_job: LockedJob) -> None:
        self._history = locked_job.part(History)

    def add_to_heartbeat(self, answer: chief_pb2.HeartbeatResponse) -> None:
        """Add nothing."""

    def add_to_status(self, status: chief_pb2.GetStatusResponse) -> None:
        """Add nothing."""

    def samples(self) -> Iterator[Sample]:
        """Yield nothing for Prometheus."""
        return iter(())

    def GetHistory(
        self, request: chief_pb2.GetHistoryRequest, _: Visitor
    ) -> chief_pb2.GetHistoryResponse:
        """Return the samples and the events after a time. Idempotent."""
        names, samples = self._history.since(request.since)
        return chief_pb2.GetHistoryResponse(
            names=names,
            samples=[
                chief_pb2.HistorySample(at=each.at, seconds=each.seconds, values=each.values)
                for each in samples
            ],
            events=[
                chief_pb2.HistoryEvent(
                    at=each.at,
                    name=each.name,
                    fields={key: str(value) for key, value in each.fields.items()},
                )
                for each in self._history.events_since(request.since)
            ],
        )


PART = HistoryPart
"""Made for each job."""
