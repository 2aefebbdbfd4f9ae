"""``cupy.cuda``: devices, streams and events. All work is done when its call returns."""

from typing import Any

from ..devices import Device
from . import runtime


class Stream:
    """The default stream."""

    ptr = 0
    null: "Stream"

    def synchronize(self) -> None:
        """Wait for nothing."""

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *error: object) -> None:
        """Leave nothing behind."""


Stream.null = Stream()


def get_current_stream(device_id: int = -1) -> Stream:
    """The stream of the current GPU."""
    return Stream.null


class Event:
    """What a stream comes to; ``ptr`` is what the runtime knows it by."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.ptr = id(self)

    def record(self, stream: Any = None) -> None:
        """Put it at the end of a stream."""

    @property
    def done(self) -> bool:
        """Whether the stream has come to it, without errors."""
        return runtime.eventQuery(self.ptr) == 0


__all__ = ["Device", "Event", "Stream", "get_current_stream", "runtime"]
