"""A launcher's output: the interface of displays, and plain lines."""

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

import click

from ...core.task import TaskId
from ...core.terminal import terminal_line, terminal_text
from .numbers import fitted, numbers

if TYPE_CHECKING:
    from rich.table import Table

    from ...client.chief.calls import JobStatus

# -- A launcher's output: the interface of displays, and plain lines for pipes and files -------
# A module of its own, since ``display`` loads rich: a launcher starts its tasks before that.


class Display(Protocol):
    """The output of a launcher."""

    @property
    def width(self) -> int:
        """Columns of a table, at most."""
        ...

    def line(self, task: TaskId, text: str, *, is_error: bool) -> None:
        """Show a line a task printed."""
        ...

    def say(self, text: str, *, is_error: bool = False) -> None:
        """Show a line from the launcher."""
        ...

    def progress(self, status: "JobStatus", steps_per_s: float, waits: str = "") -> None:
        """Show the job's progress."""
        ...

    def table(self, table: "Table") -> None:
        """Show a table, at the end."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class PlainDisplay:
    """Lines only, for pipes, files and people who prefer them."""

    _EVERY_S = 2.0

    def __init__(self, tasks: Sequence[TaskId], stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._width = max(len(task.short) for task in tasks)
        self._shown_at = -self._EVERY_S
        self._shown = ""

    @property
    def width(self) -> int:
        """Columns of ``COLUMNS`` or of the terminal, if there is one; 120 in pipes and files."""
        return min(120, shutil.get_terminal_size((120, 24)).columns)

    def line(self, task: TaskId, text: str, *, is_error: bool) -> None:  # noqa: ARG002
        """Show a line a task printed, without colours: Keras' bar has them wherever it is printed
        to.
        """
        self._write(terminal_line(f"{task.short:>{self._width}} | {text}"))

    def say(self, text: str, *, is_error: bool = False) -> None:  # noqa: ARG002
        """Show a line from the launcher."""
        self._write(text)

    def progress(self, status: "JobStatus", steps_per_s: float, waits: str = "") -> None:
        """Print the job's progress, at most every two seconds and when it has changed."""
        text = f"{status.phase}: {fitted(numbers(status, steps_per_s, waits))}"
        if status.age_s - self._shown_at >= self._EVERY_S and text != self._shown:
            self._shown_at, self._shown = status.age_s, text
            self._write(text)

    def table(self, table: "Table") -> None:
        """Show a table, at the end."""
        from .display import TerminalConsole

        TerminalConsole(file=self._stream, width=self.width, color_system=None).print(table)

    def close(self) -> None:
        """Do nothing: there is nothing to undo."""

    def _write(self, text: str) -> None:
        self._stream.write(terminal_text(text) + "\n")
        self._stream.flush()


# -- Printing by the commands: text of others goes to the terminal through here, and cannot steer it
# Tables and progress go through :mod:`~ropewalk.launch.screen.display`, which loads rich.


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text, with its colours where there is a terminal.

    Args:
        text: Maybe a stranger's, or with one's in it.
        err: Whether to print to stderr.
        nl: Whether to end the line.
    """
    click.echo(terminal_text(text, colours=True), err=err, nl=nl)
