"""Log lines of a daemon: plain, to stderr, one shape."""

import logging
import sys

from ..core.settings import Settings

_FORMATS = {
    "time": "%(asctime)s %(levelname)-7s %(message)s",
    # A launcher adds the task and its own time.
    "bare": "%(levelname)s %(message)s",
}


class _Quiet(logging.Formatter):
    """INFO is the ordinary voice and needs no label under a launcher."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text.removeprefix("INFO ")


def set_up_logging(settings: Settings) -> None:
    """Send Windlass's log lines to stderr; leave other libraries' alone."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Quiet(_FORMATS[settings.log_format], "%H:%M:%S"))
    logger = logging.getLogger("windlass")
    logger.handlers[:] = [handler]
    logger.setLevel(settings.log_level)
    logger.propagate = False
