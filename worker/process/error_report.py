"""The report of a task that fails to its launcher: the traceback or message, in a file.

A mistake in a program fails every task alike. The launcher shows it once, so tasks that have a
launcher do not print it. The idea, and that it is a file, is that of torch.distributed.elastic's
``TORCHELASTIC_ERROR_FILE``.
"""

import contextlib
from pathlib import Path

from .program import show_error

ERROR_FILE = "WINDLASS_ERROR_FILE"  # set by the launcher, for one task
_MAX_BYTES = 64 * 1024


class ErrorReport:
    """Where the text of an error goes: to the launcher, or to stderr without one.

    Args:
        path: The launcher's file; empty: there is none.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, text: str) -> bool:
        """Write a text for the launcher; returns whether there is one."""
        if not self._path:
            return False
        with contextlib.suppress(OSError):
            Path(self._path).write_text(text[-_MAX_BYTES:], errors="replace")
            return True
        return False

    def show(self, text: str) -> None:
        """Write a text for the launcher; print it if there is none."""
        if not self.write(text):
            show_error(text)


def read_report(path: Path) -> str:
    """The text of a task's report; empty if there is none."""
    try:
        return path.read_text(errors="replace")[:_MAX_BYTES]
    except OSError:
        return ""
