"""Calls of the page to the chief of a job: its status and its history."""

from array import array

from ...client.chief.calls import ChiefClient
from ...proto.v1 import chief_pb2
from .samples import Stretch


class HistoryClient(ChiefClient):
    """A client of the chief that asks for the history as well. Thread-safe."""

    def history(self, since: float, *, timeout_s: float) -> tuple[list[str], list[Stretch]]:
        """Return the names of the job's numbers, and the samples that end after a time.

        Raises:
            PeerLostError: No answer.
            ConfigurationError: The chief has no annex that keeps a history.
        """
        request = chief_pb2.GetHistoryRequest(since=since)
        answer = self._call(self._stub.GetHistory, request, "history", timeout_s)
        samples = [
            Stretch(each.at, each.seconds, array("d", each.values)) for each in answer.samples
        ]
        return list(answer.names), samples
