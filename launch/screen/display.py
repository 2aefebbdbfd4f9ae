"""The terminal through rich: text of others, tables, and a progress bar with log lines above it."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from ...client.chief.calls import JobStatus
from ...core.task import TaskId
from ...core.terminal import terminal_line, terminal_text
from .numbers import fitted, numbers

# -- rich's console for text of others: neither escape sequences nor markup in it have a meaning --


class TerminalConsole(Console):
    """A console that writes rich's own control codes, and of texts only what can be read.

    What is to have a style is a ``Text``, or is printed with one: there is no markup. So are the
    colours of a program's output: ``Text.from_ansi``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        """Make text of a string; cleaned first, so that tables know how wide it is."""
        return super().render_str(terminal_text(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render everything that is printed, in pieces."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=terminal_text(segment.text))


# -- Tables on the screen: one look for all of them --------------------------------------------


def new_table(*names: str, right: Collection[str] = ()) -> Table:
    """Make a table without frames, of which the last column is folded.

    Args:
        names: Titles of the columns.
        right: Columns whose values are numbers.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in names:
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name != names[-1],
            overflow="fold",
        )
    return table


# -- A launcher's terminal output: a progress bar with log lines above it, and tables ----------


_COLOURS = (
    "cyan",
    "green",
    "magenta",
    "yellow",
    "blue",
    "bright_cyan",
    "bright_green",
    "bright_magenta",
)

_BAR = 6  # columns of the bar, at least
_ELAPSED = 10  # columns of the time, and of the blanks between everything


class RichDisplay:
    """A progress bar at the bottom; log lines scroll above it, prefixed and coloured by task."""

    def __init__(self, tasks: Sequence[TaskId], console: TerminalConsole | None = None) -> None:
        self._console = console or TerminalConsole()
        self._width = max(len(task.short) for task in tasks)
        self._colours = {task: _COLOURS[i % len(_COLOURS)] for i, task in enumerate(tasks)}
        self._bar = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=None, table_column=Column(min_width=_BAR, max_width=40, ratio=1)),
            TextColumn("{task.fields[numbers]}", markup=False, table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            expand=True,
            console=self._console,
            transient=True,
        )
        self._row = self._bar.add_task("starting", total=None, numbers="")
        self._bar.start()

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return self._console.width

    def line(self, task: TaskId, text: str, *, is_error: bool) -> None:  # noqa: ARG002
        """Show a line a task printed, with its colours."""
        colour = self._colours.setdefault(task, _COLOURS[len(self._colours) % len(_COLOURS)])
        prefix = Text.assemble((f"{task.short:>{self._width}}", colour), " │ ")
        shown = Text.from_ansi(terminal_line(text, colours=True))
        self._console.print(prefix + shown, soft_wrap=True)

    def say(self, text: str, *, is_error: bool = False) -> None:
        """Show a line from the launcher."""
        self._console.print(text, style="bold red" if is_error else "bold", soft_wrap=True)

    def progress(self, status: JobStatus, steps_per_s: float, waits: str = "") -> None:
        """Update the bar with the job's progress, as many of its numbers as fit."""
        room = self._console.width - len(str(status.phase)) - _BAR - _ELAPSED
        self._bar.update(
            self._row,
            description=str(status.phase),
            total=status.total_steps or None,
            completed=min(status.global_step, status.total_steps or status.global_step),
            numbers=fitted(numbers(status, steps_per_s, waits), room),
        )

    def table(self, table: Table) -> None:
        """Show a table, at the end."""
        self._console.print(table)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.stop()
