"""Log records that are left out: rare ones, and those that a launcher shows."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from .events import event

# -- Lines that others can cause: some in a while, and how many were left out ------------------


_PERIOD_S = 10.0


class RareLog:
    """Logs a line at most every ten seconds, or some. Thread-safe.

    Args:
        log: Logger of the warnings.
        period_s: Unit: seconds.
        most: Lines in a period.
        now: Tells the time. Unit: seconds.
    """

    def __init__(
        self,
        log: logging.Logger,
        period_s: float = _PERIOD_S,
        most: int = 1,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._period_s = period_s
        self._most = most
        self._time = now
        self._lock = threading.Lock()
        self._next = 0.0
        self._left = 0
        self._left_out = 0

    def warning(self, text: str, *arguments: object, about: str = "", **fields: object) -> None:
        """Log a warning, or count it.

        Args:
            text: Text of the line.
            arguments: Arguments of the text.
            about: Name of the event that is logged, kept if the line is; empty: none.
            fields: Fields of that event.
        """
        self._say(logging.WARNING, text, arguments, about, fields)

    def info(self, text: str, *arguments: object) -> None:
        """Log what is no warning, or count it."""
        self._say(logging.INFO, text, arguments)

    def _say(
        self,
        level: int,
        text: str,
        arguments: tuple[object, ...],
        about: str = "",
        fields: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        with self._lock:
            now = self._time()
            if now >= self._next:
                self._next, self._left = now + self._period_s, self._most
            if not self._left:
                self._left_out += 1
                return
            self._left -= 1
            left_out, self._left_out = self._left_out, 0
        more = f" ({left_out} more like this in the meantime)" if left_out else ""
        extra = event(about, **fields) if about else None
        self._log.log(level, text + "%s", *arguments, more, extra=extra)


# -- Log records that a task with a launcher leaves to it: every task would say the same -------
# Such a task's logging drops records logged with ``extra=REPORTED_BY_LAUNCHER``.

REPORTED_BY_LAUNCHER = {"is_reported_by_launcher": True}


def is_reported_by_launcher(record: logging.LogRecord) -> bool:
    """Return whether a launcher reports a log record's event."""
    return hasattr(record, "is_reported_by_launcher")
