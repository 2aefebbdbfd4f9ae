"""``ropewalk status``: jobs by address, by model directory, or all of this user on this machine."""

import sys
from typing import TYPE_CHECKING, Any

import click

from ...core.errors import ConfigurationError
from ...core.settings import CLUSTER_VARIABLE
from ..found_job import JobAsker, found_job, jobs_of_this_machine
from ..options import caller_options, take_settings
from ..screen.plain import echo

if TYPE_CHECKING:
    from ...client.chief.calls import JobStatus


@click.command("status")
@click.argument("job", required=False)
@click.option(
    "--cluster",
    metavar="HOST:PORT",
    help="The chief of a standalone cluster, of which JOB is a job. A JOB that is neither an "
    f"address nor a folder is looked for at the cluster of {CLUSTER_VARIABLE}.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per job instead of tables.")
@click.option("--timeout-s", default=5.0, show_default=True, help="How long to wait for an answer.")
@caller_options
def status_command(
    job: str | None, cluster: str | None, as_json: bool, timeout_s: float, **flags: Any
) -> None:
    """Show the job whose chief is at JOB (HOST:PORT), or whose model directory JOB is.

    Or that job of a standalone cluster. Without JOB: your jobs whose chief runs on this machine.
    """
    from ...worker.lead.status import status_json

    statuses = _find(job, cluster, JobAsker(take_settings(flags), timeout_s))
    for number, status in enumerate(statuses):
        if as_json:
            echo(status_json(status))
        else:
            _show(status, first=number == 0)


def _find(job: str | None, cluster: str | None, asker: JobAsker) -> "list[JobStatus]":
    if job is not None:
        with found_job(job, cluster, asker) as found:
            return [found.status]
    if cluster is not None:
        raise ConfigurationError("name the JOB; `ropewalk jobs` lists those of a cluster")
    return [found.status for found in jobs_of_this_machine(asker)]


def _show(status: "JobStatus", *, first: bool) -> None:
    from ..screen.display import TerminalConsole
    from ..screen.status_table import status_lines, status_table, step_table, usage_table

    # In a pipe lines are not cut, so that they can be searched.
    console = TerminalConsole(width=None if sys.stdout.isatty() else 1000)
    if not first:
        console.print()
    title, *more = status_lines(status)
    console.print(title, style="bold")
    for line in more:
        console.print(line)
    console.print(status_table(status, console.width))
    for table in (step_table(status, console.width), usage_table(status)):
        if table is not None:
            console.print()
            console.print(table)
