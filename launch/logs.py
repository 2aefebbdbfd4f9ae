"""Log lines of a daemon: plain text to stderr."""

import logging
import sys

from ..core.settings import Settings

_FORMATS = {
    "time": "%(asctime)s %(levelname)-7s %(message)s",
    # For tasks of a launcher, which adds the task's name.
    "bare": "%(levelname)s %(message)s",
}


class _Quiet(logging.Formatter):
    """Leaves out the level INFO."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text.removeprefix("INFO ")


def set_up_logging(settings: Settings) -> None:
    """Send Windlass's log lines to stderr; other libraries' logging stays as it is."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Quiet(_FORMATS[settings.log_format], "%H:%M:%S"))
    logger = logging.getLogger("windlass")
    logger.handlers[:] = [handler]
    logger.setLevel(settings.log_level)
    logger.propagate = False
