"""The screens of ``ropewalk top``: a head, a table that is sorted, and keys, by Textual.

A job, or the jobs of a cluster, is asked in a thread of its own, so keys are answered while nobody
answers there.
"""

import time
from collections import deque
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from ...client.chief.calls import JobStatus
from ...core.errors import RopewalkError
from ...core.terminal import counted, terminal_line
from ...launch.found_job import ListedJob
from .top_rows import (
    JOBS,
    SERVERS,
    TASKS,
    Cell,
    Looks,
    head_text,
    job_rows,
    server_rows,
    sort,
    task_rows,
)
from .watched_cluster import WatchedCluster
from .watched_job import KnownStatus, WatchedJob

_LOOKS = 6  # rates are of so many looks: the last five seconds
_STYLES = {"alive": "green", "done": "green", "missing": "yellow", "left": "yellow",
           "lost": "bold red", "failed": "bold red", "running": "green"}  # fmt: skip


class _TableScreen(Screen[None]):  # type: ignore[misc]
    """A head and a table, shown anew every so often.

    Args:
        every_s: Time between two looks. Unit: seconds.
    """

    def __init__(self, every_s: float) -> None:
        super().__init__()
        self._every_s = every_s

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Static(id="head", markup=False)
        yield DataTable(cursor_type="row", zebra_stripes=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to look."""
        self.run_worker(self._look, thread=True)
        self.set_interval(
            self._every_s, lambda: self.run_worker(self._look, thread=True, exclusive=True)
        )

    def _look(self) -> None:
        """Ask, in a thread."""
        raise NotImplementedError

    def _show(self, head: str, names: list[str], rows: list[list[Cell]]) -> None:
        self.query_one("#head", Static).update(head)
        table = self.query_one(DataTable)
        cursor = table.cursor_row
        table.clear(columns=True)
        for name in names:
            table.add_column(name)
        for row in rows:
            table.add_row(*map(_shown, row), key=row[0].text)
        table.move_cursor(row=min(cursor, max(0, len(rows) - 1)), animate=False)


class JobsScreen(_TableScreen):
    """The jobs of a cluster, live; Enter or a click opens one.

    Args:
        cluster: The cluster.
        every_s: Time between two looks at it. Unit: seconds.
    """

    BINDINGS: ClassVar[list[Binding]] = [
        Binding("enter", "select", "open", show=True),
        Binding("q,escape", "app.quit", "quit"),
    ]

    def __init__(self, cluster: WatchedCluster, every_s: float) -> None:
        super().__init__(every_s)
        self._cluster = cluster
        self._why = ""
        self._is_opening = False
        self._jobs: list[ListedJob] = []

    def _look(self) -> None:
        jobs, note = self._cluster.jobs()
        self.app.call_from_thread(self._take, list(jobs), note)

    def _take(self, jobs: list[ListedJob], note: str) -> None:
        self._jobs = jobs
        notes = [terminal_line(text) for text in (note, self._why) if text]
        head = "\n".join([counted(len(jobs), "job"), *notes])
        self._show(head, list(JOBS), job_rows(jobs, time.time()))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the job of a row."""
        job = str(event.row_key.value)
        if not self._is_opening:
            self._is_opening = True
            self.run_worker(lambda: self._open(job), thread=True)

    def _open(self, job: str) -> None:
        watched: WatchedJob | None = None
        try:
            watched, self._why = self._cluster.open(job), ""
        except RopewalkError as error:
            self._why = error.message
        self.app.call_from_thread(self._opened, job, watched)

    def _opened(self, job: str, watched: WatchedJob | None) -> None:
        self._is_opening = False
        if watched is None:
            self._take(self._jobs, "")
            return
        screen = JobScreen(watched, self._every_s, has_others=True)
        self.app.push_screen(screen, lambda _: self._cluster.close_job(job))


class JobScreen(_TableScreen):
    """A job, live.

    Args:
        job: The job.
        every_s: Time between two looks at it. Unit: seconds.
        has_others: Whether Escape goes back to a list of jobs.
    """

    BINDINGS: ClassVar[list[Binding]] = [
        Binding("q", "app.quit", "quit"),
        Binding("escape", "back", "back", show=False),
        Binding("t", "show('tasks')", "tasks"),
        Binding("p", "show('ps')", "ps"),
        Binding("s", "sort", "sort by next"),
        Binding("r", "turn", "reverse"),
    ]

    def __init__(self, job: WatchedJob, every_s: float, *, has_others: bool = False) -> None:
        super().__init__(every_s)
        self._has_others = has_others
        self._job = job
        self._past: deque[tuple[float, JobStatus]] = deque(maxlen=_LOOKS)
        self._note = ""
        self._kind = "tasks"
        self._by = {"tasks": (0, False), "ps": (0, False)}

    def action_back(self) -> None:
        """Go back to the list of jobs, or quit."""
        if self._has_others:
            self.dismiss()
        else:
            self.app.exit()

    def _look(self) -> None:
        known = self._job.look()
        self.app.call_from_thread(self._take, known)

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
        is_tasks = self._kind == "tasks"
        column, down = self._by[self._kind]
        rows = sort(task_rows(looks) if is_tasks else server_rows(looks), column, down=down)
        names = list(TASKS if is_tasks else SERVERS)
        names[column] += " ↓" if down else " ↑"
        self._show(head_text(looks, self._note), names, rows)

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


class TopApp(App[None]):  # type: ignore[misc]
    """A job, or the jobs of a cluster, in the terminal.

    Args:
        shown: The job or the cluster.
        every_s: Time between two looks at it. Unit: seconds.
    """

    CSS = """
    #head { height: auto; padding: 0 1; text-style: bold; }
    DataTable { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, shown: WatchedJob | WatchedCluster, every_s: float = 1.0) -> None:
        super().__init__()
        self._every_s = every_s
        self._watched = shown

    def get_default_screen(self) -> Screen[None]:
        """Make the first screen."""
        if isinstance(self._watched, WatchedJob):
            return JobScreen(self._watched, self._every_s)
        return JobsScreen(self._watched, self._every_s)


def _shown(cell: Cell) -> Text:
    return Text(cell.text, _STYLES.get(cell.text, ""))
