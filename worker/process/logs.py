"""Log lines of a task: plain text to stderr."""

import logging
import sys

from ...core.process.reported_by_launcher import is_reported_by_launcher
from ...core.settings import Settings
from ...core.terminal import terminal_text

_FORMATS = {
    "time": "%(asctime)s %(levelname)-7s %(message)s",
    # For tasks of a launcher, which adds the task's name and takes the mark away.
    "bare": "%(levelname)s %(message)s",
}
# Begins a log line of Ropewalk for a launcher, which tells it from the program's lines by that.
LAUNCHER_MARK = "\x1e"


class _Formatter(logging.Formatter):
    """Leaves out the level INFO and control characters: a message may quote other programs."""

    def __init__(self, pattern: str, mark: str) -> None:
        super().__init__(pattern, "%H:%M:%S")
        self._mark = mark

    def format(self, record: logging.LogRecord) -> str:
        return self._mark + terminal_text(super().format(record).removeprefix("INFO "))


def set_up_logging(settings: Settings) -> None:
    """Send Ropewalk's log lines to stderr; other libraries' logging stays as it is."""
    handler = logging.StreamHandler(sys.stderr)
    mark = LAUNCHER_MARK if settings.log_format == "bare" else ""
    if mark:
        handler.addFilter(lambda record: not is_reported_by_launcher(record))
    handler.setFormatter(_Formatter(_FORMATS[settings.log_format], mark))
    logger = logging.getLogger("ropewalk")
    logger.handlers[:] = [handler]
    logger.setLevel(settings.log_level)
    logger.propagate = False
