"""A stream of an HTTP/2 connection: what has come, and what may be sent."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from .fields import Fields


@dataclass(slots=True, eq=False)
class Http2Stream:
    """A stream. Its link's lock guards it.

    Attributes:
        number: Identifies the stream on its connection.
        window: Bytes that may be sent.
        inbound: Bytes that the peer may still send.
        fields: The peer's first fields.
        trailers: The peer's last fields.
        pieces: Payload of DATA frames that was not taken yet, the oldest first.
        has_ended: Whether the peer sends nothing more.
        has_finished: Whether this side sends nothing more.
        broken: Why it is over; empty: it is not.
        credit: Bytes that were taken and not yet granted to the peer again.
        context: Context that the stream's owner sets.
    """

    number: int
    window: int
    inbound: int
    fields: Fields = field(default_factory=list)
    trailers: Fields = field(default_factory=list)
    pieces: deque[memoryview] = field(default_factory=deque)
    has_ended: bool = False
    has_finished: bool = False
    broken: str = ""
    credit: int = 0
    context: Any = None

    @property
    def has_news(self) -> bool:
        """Whether there is something to take, or nothing more will come."""
        return bool(self.pieces) or self.has_ended or bool(self.broken)

    @property
    def is_over(self) -> bool:
        """Whether both directions have ended."""
        return bool(self.broken) or (self.has_ended and self.has_finished)
