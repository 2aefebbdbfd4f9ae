"""Warnings that anybody can cause: one in a while, and how many were left out."""

import logging
import threading
import time

_PERIOD_S = 10.0


class RareLog:
    """Logs a warning at most every ten seconds. Thread-safe.

    Args:
        log: Logger of the warnings.
        period_s: Unit: seconds.
    """

    def __init__(self, log: logging.Logger, period_s: float = _PERIOD_S) -> None:
        self._log = log
        self._period_s = period_s
        self._lock = threading.Lock()
        self._next = 0.0
        self._left_out = 0

    def warning(self, text: str, *arguments: object) -> None:
        """Log a warning, or count it."""
        with self._lock:
            now = time.monotonic()
            if now < self._next:
                self._left_out += 1
                return
            left_out, self._left_out = self._left_out, 0
            self._next = now + self._period_s
        more = f" ({left_out} more like this in the meantime)" if left_out else ""
        self._log.warning(text + "%s", *arguments, more)
