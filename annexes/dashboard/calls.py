"""Calls of the page to the chief of a job: its status and its history."""

from array import array
from typing import NamedTuple

from ...client.chief.calls import ChiefClient
from ...core.process.events import Event
from ...proto.v1 import chief_pb2
from .samples import Stretch


class PastJob(NamedTuple):
    """A part of a job's history: names of its numbers, its samples and events, oldest first."""

    names: list[str]
    samples: list[Stretch]
    events: list[Event]


class HistoryClient(ChiefClient):
    """A client of the chief that asks for the history as well. Thread-safe."""

    def history(self, since: float, *, timeout_s: float) -> PastJob:
        """Return the part of the history that is after a time.

        Raises:
            PeerLostError: No answer.
            ConfigurationError: The chief has no annex that keeps a history.
        """
        request = chief_pb2.GetHistoryRequest(since=since)
        answer = self._call(self._stub.GetHistory, request, "history", timeout_s)
        return PastJob(
            list(answer.names),
            [Stretch(each.at, each.seconds, array("d", each.values)) for each in answer.samples],
            [Event(each.at, each.name, dict(each.fields)) for each in answer.events],
        )
