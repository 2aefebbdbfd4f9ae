"""Questions as a ps answers them."""

from ...core.settings import Settings
from ...net.auth.guard import Visitor
from ...proto.v1 import ps_pb2
from .answers import answer_to


class PsAnswers:
    """Answers the chief's questions to this ps. Thread-safe.

    Args:
        settings: Settings of the ps.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def Ask(self, request: ps_pb2.AskRequest, _: Visitor) -> ps_pb2.AskResponse:
        """Answer a question. Changes nothing but a log level."""
        text = answer_to(request.kind, request.argument, self._settings)
        return ps_pb2.AskResponse(answer=text)


CALLS = PsAnswers
"""Made for each ps."""
