"""Signals to a launcher: it ends what it has started before it ends itself."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def on_interrupts(stop: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Let every Ctrl-C and SIGTERM call ``stop`` within this context. For the main thread.

    Afterwards the handlers are in place again that were there before.
    """

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stop(signal.Signals(number))

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
