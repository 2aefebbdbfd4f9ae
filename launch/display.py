"""A launcher's terminal output: a progress bar with log lines above it, and tables."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..client.chief.calls import JobStatus, TaskStatus
from ..core.states import State
from ..core.task import TaskId
from .plain import numbers

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


class RichDisplay:
    """A progress bar at the bottom; log lines scroll above it, prefixed and coloured by task."""

    def __init__(self, tasks: Sequence[TaskId], console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._width = max(len(task.short) for task in tasks)
        self._colours = {task: _COLOURS[i % len(_COLOURS)] for i, task in enumerate(tasks)}
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._row = self._bar.add_task("starting", total=None, numbers="")
        self._bar.start()

    def line(self, task: TaskId, text: str, *, is_error: bool) -> None:  # noqa: ARG002
        """A line a task printed."""
        colour = self._colours[task]
        self._console.print(
            f"[{colour}]{task.short:>{self._width}}[/] │ {escape(text)}", soft_wrap=True
        )

    def say(self, text: str, *, is_error: bool = False) -> None:
        """A line from the launcher."""
        style = "bold red" if is_error else "bold"
        self._console.print(f"[{style}]{escape(text)}[/]", soft_wrap=True)

    def progress(self, status: JobStatus, steps_per_s: float) -> None:
        """Update the bar with the job's progress."""
        self._bar.update(
            self._row,
            description=str(status.phase),
            total=status.total_steps or None,
            completed=min(status.global_step, status.total_steps or status.global_step),
            numbers=numbers(status, steps_per_s),
        )

    def table(self, table: Table) -> None:
        """A table, at the end."""
        self._console.print(table)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.stop()


def human_bytes(count: float) -> str:
    """1536 → ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """75 → ``1m15s``."""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{whole}s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


_STATE_STYLES = {
    State.ALIVE: "green",
    State.DONE: "green",
    State.MISSING: "yellow",
    State.LEFT: "yellow",
    State.LOST: "red",
    State.FAILED: "red",
}


def status_table(status: JobStatus) -> Table:
    """Every task with its state, age and numbers; who is missing, and since when."""
    table = Table(title=_title(status), title_justify="left", title_style="bold")
    for name in (
        "task",
        "state",
        "since",
        "address",
        "steps",
        "pushes",
        "sent",
        "received",
        "detail",
    ):
        right = name in ("since", "steps", "pushes", "sent", "received")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "detail")
    for item in status.tasks:
        style = _STATE_STYLES[item.state]
        table.add_row(
            item.task.short,
            f"[{style}]{item.state}[/]",
            human_seconds(item.since_s),
            item.address,
            *activity(item),
            escape(item.detail or _detail(item)),
        )
    return table


def activity(item: TaskStatus) -> tuple[str, str, str, str]:
    """(steps, pushes, bytes sent, bytes received) of a task, as text."""
    report, counters = item.report, item.counters
    if counters is not None:
        return (
            "",
            str(counters.pushes),
            human_bytes(counters.bytes_out),
            human_bytes(counters.bytes_in),
        )
    if not report.steps:
        return ("", "", "", "")
    if item.task.type == "evaluator":
        return ("", "", "", "")
    return (
        str(report.steps),
        str(report.pushes),
        human_bytes(report.bytes_pushed),
        human_bytes(report.bytes_pulled),
    )


def _detail(item: TaskStatus) -> str:
    counters = item.counters
    if counters is not None:
        return placement_text(item)
    parts = (metrics_text(item.report.metrics), transports_text(item.report.transports))
    return " · ".join(part for part in parts if part)


def transports_text(transports: Sequence[str]) -> str:
    """A task's connections: ``via shm``, or per ps where they differ (``ps:0 shm, ps:1
    grpc (…)``).
    """
    ways = {text.partition(" ")[2] for text in transports}
    return f"via {ways.pop()}" if len(ways) == 1 else ", ".join(transports)


def metrics_text(metrics: Mapping[str, float]) -> str:
    """``accuracy 0.975 · loss 0.09``."""
    return " · ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def placement_text(item: TaskStatus) -> str:
    """What a ps holds: ``3 shards, 8.3 KiB + 16.6 KiB slots: w1, b1, w2/part_0``."""
    counters = item.counters
    if counters is None:
        return ""
    more = ", …" if counters.shards > len(counters.labels) else ""
    slots = f" + {human_bytes(counters.slot_bytes)} slots" if counters.slot_bytes else ""
    names = f": {', '.join(counters.labels)}{more}" if counters.labels else ""
    plural = "" if counters.shards == 1 else "s"
    return f"{counters.shards} shard{plural}, {human_bytes(counters.value_bytes)}{slots}{names}"


def _title(status: JobStatus) -> str:
    goal = f"/{status.total_steps}" if status.total_steps else ""
    age = human_seconds(status.age_s)
    text = f"job {status.phase} for {age} · global step {status.global_step}{goal}"
    if status.last_checkpoint:
        text += f" · checkpoint {status.last_checkpoint}"
    return escape(f"{text} · {status.reason}" if status.reason else text)
