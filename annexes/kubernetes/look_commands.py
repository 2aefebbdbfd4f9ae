"""The commands of ``ropewalk k8s`` that look at jobs: status, list and logs."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...core.exit_codes import ExitCode
from ...core.terminal import terminal_line
from ...launch.screen.echo import echo
from ...launch.screen.status_table import human_seconds
from ...launch.screen.tables import new_table
from .command import Found, connect_api, json_option, of_job, where_options
from .job_status import ClusterStatus, TaskLine
from .observing import JobRow

if TYPE_CHECKING:
    from .job_status import ClusterStatus

# -- View of the status of a job on Kubernetes: for people a table, for programs JSON ----------


Json = dict[str, Any]

_WIDE = 120
PHASE_STYLES = {"Running": "green", "Done": "green", "Failed": "red"}
_STYLES = {**PHASE_STYLES, "OOMKilled": "red", "Missing": "red"}


def status_json(status: ClusterStatus) -> str:
    """Write the status as an object in one line."""
    return json.dumps(asdict(status))


def status_view(status: ClusterStatus, width: int) -> Group:
    """Make a line for the job, and a table of its tasks; below 120 columns without pods and
    nodes.
    """
    wide = width >= _WIDE
    more = ("pod", "node") if wide else ()
    names = ("task", "state", "age", "restarts", *more, "reason")
    table = new_table(*names, right=("age", "restarts"))
    for line in status.tasks:
        style = _STYLES.get(line.state, "yellow")
        table.add_row(
            line.task,
            Text(line.state, style),
            "" if line.age_s is None else human_seconds(line.age_s),
            str(line.restarts or ""),
            *((line.pod, line.node) if wide else ()),
            _reason(line),
        )
    return Group(Text(headline(status), style="bold"), *([table] if status.tasks else []))


def headline(status: ClusterStatus) -> str:
    """Write a line such as ``digits: Running: step 1200 of 3000``."""
    parts = [status.name, status.phase, status.reason or status.progress.words]
    return ": ".join(filter(None, parts))


def _reason(line: TaskLine) -> str:
    return f"{line.reason} → {line.remedy}" if line.remedy else line.reason


def rows_json(rows: Sequence[JobRow]) -> str:
    """Write a list in one line."""
    return json.dumps([asdict(row) for row in rows])


def rows_view(rows: Sequence[JobRow]) -> Table:
    """Make a table, a line for each job."""
    table = new_table("job", "phase", "running", "age", "step", "steps/s", "checkpoint", "reason")
    for row in rows:
        progress = row.progress
        goal = f"/{progress.goal}" if progress.goal else ""
        table.add_row(
            row.name,
            Text(row.phase, PHASE_STYLES.get(row.phase, "yellow")),
            f"{row.running}/{row.tasks}",
            human_seconds(row.age_s),
            f"{progress.step}{goal}",
            progress.rate,
            progress.checkpoint_step,
            row.reason,
        )
    return table


@click.command("status")
@of_job
@click.option("--watch", "-w", is_flag=True, help="Until the job is over; exits as the job did.")
@json_option
def status_command(find: Found, watch: bool, as_json: bool) -> None:
    """Show every task: its state, since when, and why it does not run.

    What has happened is read from the objects of the job and their events, never from logs. With
    --watch the exit code is 0 for a job that is done, and that of the failed task otherwise.
    """
    from .observing import follow_status, observe

    api, name = find()
    if not watch:
        status = observe(api, name)
        _show(status, as_json=as_json)
        if status.phase == "Absent":
            sys.exit(int(ExitCode.NOT_FOUND))
        return
    with _live(as_json=as_json) as show:
        status = follow_status(api, name, show)
    # Without an end there is no such job.
    sys.exit(int(ExitCode.NOT_FOUND) if status.exit_code is None else status.exit_code)


def _show(status: "ClusterStatus", *, as_json: bool) -> None:
    from ...launch.screen.terminal import TerminalConsole

    if as_json:
        echo(status_json(status))
        return
    # In a pipe lines are not cut, so that they can be searched.
    console = TerminalConsole(width=None if sys.stdout.isatty() else 1000)
    console.print(status_view(status, console.width))


@contextlib.contextmanager
def _live(*, as_json: bool) -> Iterator[Callable[["ClusterStatus"], None]]:
    """Show a status again and again: in a terminal in one place, else whenever it is another."""
    if as_json or not sys.stdout.isatty():
        shown: list[Any] = []

        def show(status: "ClusterStatus") -> None:
            key = (status.phase, [(t.task, t.state, t.reason, t.restarts) for t in status.tasks])
            if shown[-1:] != [key]:
                shown[:] = [key]
                _show(status, as_json=as_json)

        yield show
        return
    from rich.live import Live

    from ...launch.screen.terminal import TerminalConsole

    console = TerminalConsole()
    with Live(console=console, auto_refresh=False) as live:
        yield lambda status: live.update(status_view(status, console.width), refresh=True)


@click.command("list")
@where_options
@json_option
def list_command(context: str, namespace: str, as_json: bool) -> None:
    """List the jobs of a namespace: phase, tasks, and what their chiefs write of them.

    Step, rate and checkpoint are those of jobs whose file has `kubernetes: {status: true}`.
    """
    from ...launch.screen.terminal import TerminalConsole
    from .observing import list_jobs

    api = connect_api(context, namespace, None)
    rows = list_jobs(api)
    if as_json:
        echo(rows_json(rows))
    elif rows:
        console = TerminalConsole(width=None if sys.stdout.isatty() else 1000)
        console.print(rows_view(rows))
    else:
        echo(f"there are no jobs in namespace {api.namespace}")


@click.command("logs")
@click.argument("tasks", nargs=-1)
@of_job
@click.option("--follow", "-f", is_flag=True, help="Until the job is over.")
@click.option("--tail", default=-1, metavar="LINES", help="So many at the end; default: all.")
def logs_command(find: Found, tasks: tuple[str, ...], follow: bool, tail: int) -> None:
    """Show the logs of TASKS (worker, ps:0 …; default: all), each line behind its task.

    Streams that break are read on where they broke; every line is shown once. A log says nothing
    about success: the last line, on stderr, is the state of the job's objects.
    """
    from .logs import LogFollower, read_logs
    from .observing import observe

    api, name = find()

    def wanted(task: str) -> bool:
        return not tasks or task in tasks or task.partition(":")[0] in tasks

    lines = (
        LogFollower(api, name, wanted, tail).lines()
        if follow
        else read_logs(api, name, wanted, tail)
    )
    for line in lines:
        text = f"{line.task} | {line.text}" if not line.is_note else f"{line.task}: {line.text}"
        echo(terminal_line(text, colours=True), err=line.is_note)
    status = observe(api, name)
    echo(headline(status), err=True)
    if status.phase == "Absent":
        sys.exit(int(ExitCode.NOT_FOUND))
