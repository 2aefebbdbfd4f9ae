"""The screen of ``ropewalk top``: a head, a table that is sorted, and keys, by Textual.

The job is asked in a thread of its own, so keys are answered while the chief does not.
"""

import time
from collections import deque
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import DataTable, Footer, Static

from ...client.chief.calls import JobStatus
from .top_rows import SERVERS, TASKS, Cell, Looks, head_text, server_rows, sort, task_rows
from .watched_job import KnownStatus, WatchedJob

_LOOKS = 6  # rates are of so many looks: the last five seconds
_STYLES = {"alive": "green", "done": "green", "missing": "yellow", "left": "yellow",
           "lost": "bold red", "failed": "bold red"}  # fmt: skip


class TopApp(App[None]):  # type: ignore[misc]
    """A job, live.

    Args:
        job: The job.
        every_s: Time between two looks at it. Unit: seconds.
    """

    CSS = """
    #head { height: auto; padding: 0 1; text-style: bold; }
    DataTable { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Binding]] = [
        Binding("q,escape", "quit", "quit"),
        Binding("t", "show('tasks')", "tasks"),
        Binding("p", "show('ps')", "ps"),
        Binding("s", "sort", "sort by next"),
        Binding("r", "turn", "reverse"),
    ]

    def __init__(self, job: WatchedJob, every_s: float = 1.0) -> None:
        super().__init__()
        self._every_s = every_s
        self._job = job
        self._past: deque[tuple[float, JobStatus]] = deque(maxlen=_LOOKS)
        self._note = ""
        self._kind = "tasks"
        self._by = {"tasks": (0, False), "ps": (0, False)}

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Static(id="head", markup=False)
        yield DataTable(cursor_type="row", zebra_stripes=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to look at the job."""
        self.run_worker(self._look, thread=True)
        self.set_interval(
            self._every_s, lambda: self.run_worker(self._look, thread=True, exclusive=True)
        )

    def _look(self) -> None:
        known = self._job.look()
        self.call_from_thread(self._take, known)

    def _take(self, known: KnownStatus) -> None:
        self._note = known.note
        if not self._past or known.status is not self._past[-1][1]:
            self._past.append((time.monotonic(), known.status))
        self._draw()

    @property
    def _looks(self) -> Looks:
        (then, before), (now, status) = self._past[0], self._past[-1]
        return Looks(status, before if len(self._past) > 1 else None, now - then)

    def _draw(self) -> None:
        if not self._past:
            return
        looks = self._looks
        self.query_one("#head", Static).update(head_text(looks, self._note))
        is_tasks = self._kind == "tasks"
        column, down = self._by[self._kind]
        rows = sort(task_rows(looks) if is_tasks else server_rows(looks), column, down=down)
        table = self.query_one(DataTable)
        cursor = table.cursor_row
        table.clear(columns=True)
        for place, name in enumerate(TASKS if is_tasks else SERVERS):
            table.add_column(f"{name} {'↓' if down else '↑'}" if place == column else name)
        for row in rows:
            table.add_row(*map(_shown, row))
        table.move_cursor(row=min(cursor, max(0, len(rows) - 1)), animate=False)

    def action_show(self, kind: str) -> None:
        """Show tasks, or ps."""
        self._kind = kind
        self._draw()

    def action_sort(self) -> None:
        """Sort by the next column: numbers with the largest first."""
        names = TASKS if self._kind == "tasks" else SERVERS
        column = (self._by[self._kind][0] + 1) % len(names)
        self._by[self._kind] = column, 2 <= column < len(names) - 1
        self._draw()

    def action_turn(self) -> None:
        """Sort the other way round."""
        column, down = self._by[self._kind]
        self._by[self._kind] = column, not down
        self._draw()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by a column that was clicked; a second click turns it."""
        column, down = self._by[self._kind]
        self._by[self._kind] = event.column_index, event.column_index == column and not down
        self._draw()


def _shown(cell: Cell) -> Text:
    return Text(cell.text, _STYLES.get(cell.text, ""))
