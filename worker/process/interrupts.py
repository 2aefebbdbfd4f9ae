"""Requests to stop: the signals of a task's process, and the interruption of a program that takes
too long to notice one.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from ...core.errors import RopewalkError


class Interrupter:
    """Interrupts the program in the main thread once its grace period is over."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._error: RopewalkError | None = None
        self._running = False
        self._timer: threading.Timer | None = None

    @contextlib.contextmanager
    def program(self) -> Iterator[None]:
        """Allow interruptions of the program inside this context."""
        self._running = True
        try:
            yield
        finally:
            self._running = False
            if self._timer is not None:
                self._timer.cancel()

    def later(self, error: RopewalkError) -> None:
        """Raise ``error`` in the program after the grace period, unless it has ended by then."""
        if self._error is not None:
            return
        self._error = error
        self._timer = threading.Timer(self._grace_s, self._interrupt)
        self._timer.daemon = True
        self._timer.start()

    def _interrupt(self) -> None:
        if self._running:
            # Sent to the main thread so that a blocking call there returns; the handler below
            # then runs between two bytecodes of the program.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def on_signal(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle SIGUSR1, which only this class sends."""
        if self._running and self._error is not None:
            self._running = False
            raise self._error


def handle_signals(stop: Callable[[str], None], interrupter: Interrupter | None = None) -> None:
    """Have SIGTERM and SIGINT call ``stop`` with their name, and SIGUSR1 the interrupter.

    Handlers are not restored: the process ends after its task, and a late signal must not kill it.
    Outside the main thread, where Python allows no handlers, nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def handle(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stop(signal.Signals(signum).name)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    if interrupter is not None:
        signal.signal(signal.SIGUSR1, interrupter.on_signal)
