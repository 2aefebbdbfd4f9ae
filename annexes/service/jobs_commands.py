"""``ropewalk jobs``, ``attach``, ``logs`` and ``stop``: the jobs of a standalone cluster."""

import sys
from typing import Any

import click

from ...core.terminal import terminal_line
from ...launch.options import caller_options, take_settings
from ...launch.screen.plain import echo
from .chief_of_job import cluster_client, cluster_option
from .submit_command import follow_to_end


@click.command("jobs")
@cluster_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object per job.")
@caller_options
def jobs_command(cluster: str, as_json: bool, **flags: Any) -> None:
    """List the jobs and nodes of a standalone cluster."""
    with cluster_client(cluster, take_settings(flags)) as client:
        jobs, nodes = client.jobs()
    if as_json:
        import json

        for job in jobs:
            echo(
                json.dumps(
                    {
                        "id": job.id, "name": job.name, "state": job.state, "reason": job.reason,
                        "exit_code": job.exit_code if job.has_ended else None,
                        "submitted": job.submitted, "started": job.started, "ended": job.ended,
                        "owner": job.owner, "package": job.digest,
                        "tasks": {task.short: code for task, code in job.tasks.items()},
                    }
                )
            )  # fmt: skip
        return
    from ...launch.screen.display import TerminalConsole
    from .chief_of_job import jobs_table, nodes_table

    console = TerminalConsole(width=None if sys.stdout.isatty() else 160)
    console.print(jobs_table(jobs))
    console.print(nodes_table(nodes))


@click.command("attach")
@click.argument("job")
@cluster_option
@click.option("--plain", is_flag=True, help="Plain lines instead of colours.")
@caller_options
def attach_command(job: str, cluster: str, plain: bool, **flags: Any) -> None:
    """Show JOB (its id or name) from its first line on, until it ends. Ctrl-C stops it."""
    settings = take_settings(flags)
    with cluster_client(cluster, settings) as client:
        code = follow_to_end(client, job, settings, plain=plain)
    sys.exit(code)


@click.command("logs")
@click.argument("job")
@cluster_option
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends, or Ctrl-C.")
@click.option("--task", help="Of one task alone, e.g. worker:1.")
@caller_options
def logs_command(job: str, cluster: str, follow: bool, task: str | None, **flags: Any) -> None:
    """Print what the tasks of JOB have printed."""
    from ...core.errors import PeerLostError

    offset, silent = 0, 0
    with cluster_client(cluster, take_settings(flags)) as client:
        while True:
            try:
                news = client.follow(job, offset, wait_s=5.0 if follow else 0.0, drives=False)
            except PeerLostError:
                silent += 1
                if not follow or silent > 60:
                    raise
                continue
            # Another job of this name may come, and the offset is of this one.
            silent, offset, job = 0, news.offset, news.job.id
            for line in news.lines:
                if task in (None, line.task.short):
                    echo(terminal_line(f"{line.task.short} | {line.text}", colours=True))
            if not news.lines and (not follow or news.job.has_ended):
                return


@click.command("stop")
@click.argument("job")
@cluster_option
@click.option("--kill", is_flag=True, help="At once, without a checkpoint.")
@click.option("--reason", default="", help="Shown with the job.")
@caller_options
def stop_command(job: str, cluster: str, kill: bool, reason: str, **flags: Any) -> None:
    """Ask JOB to save and end. If it has ended already, print how."""
    from .chief_of_job import how_it_stands

    with cluster_client(cluster, take_settings(flags)) as client:
        echo(how_it_stands(client.stop(job, reason, kill=kill)))
