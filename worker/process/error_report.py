"""The report of a task that fails to its launcher: the traceback or message, in a file.

A mistake in a program fails every task alike. The launcher shows it once, so tasks that have a
launcher do not print it. The parent of a task in a container needs a sentence for the status of the
pod; such a task prints its error as well. The idea, and that it is a file, is that of
torch.distributed.elastic's ``TORCHELASTIC_ERROR_FILE``.
"""

import contextlib
from pathlib import Path

from ...core.files.plain_file import open_plain
from ...core.settings import read_environment, take_environment
from .program import show_error

ERROR_FILE = "ROPEWALK_ERROR_FILE"  # set by the launcher, for one task
ERROR_COPY = "ROPEWALK_ERROR_COPY"  # set by the parent of a task in a container
_MAX_BYTES = 64 * 1024


class ErrorReport:
    """A way for the text of an error: to the launcher, or to stderr without one.

    Args:
        path: The launcher's file; empty: there is none.
        is_copy: Whether the error is printed as well.
    """

    def __init__(self, path: str, *, is_copy: bool = False) -> None:
        self._path = path
        self._is_copy = is_copy

    @property
    def has_parent(self) -> bool:
        """Whether it is for the parent of a task in a container."""
        return self._is_copy and bool(self._path)

    def write(self, text: str) -> bool:
        """Hand a text to the launcher; returns whether it is the launcher that prints it."""
        if not self._path:
            return False
        with contextlib.suppress(OSError):
            Path(self._path).write_text(text[-_MAX_BYTES:], errors="replace")
            return not self._is_copy
        return False

    def show(self, text: str) -> None:
        """Write a text for the launcher; print it if there is none."""
        if not self.write(text):
            show_error(text)


def take_error_report() -> ErrorReport:
    """Take over the report of this process, as its environment says, for which it is removed
    there.
    """
    copy, path = take_environment(ERROR_COPY), take_environment(ERROR_FILE)
    return ErrorReport(path or copy, is_copy=not path)


def has_parent() -> bool:
    """Return whether this process is the task of a container whose parent process supervises it."""
    return bool(read_environment(ERROR_COPY))


def read_report(path: Path) -> str:
    """Read the text of a task's report; empty if there is none."""
    try:
        with open_plain(path) as file:
            return file.read(_MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""
