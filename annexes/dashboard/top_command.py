"""``ropewalk top``: a job live in the terminal."""

from contextlib import closing
from importlib.util import find_spec
from typing import Any

import click

from ...core.errors import ConfigurationError, MissingExtraError
from ...core.settings import CLUSTER_VARIABLE
from ...launch.found_job import JobAsker
from ...launch.options import caller_options, take_settings
from .choosing import chosen_job


@click.command("top")
@click.argument("job", required=False)
@click.option(
    "--cluster",
    metavar="HOST:PORT",
    help="The chief of a standalone cluster, of which JOB is a job. A JOB that is neither an "
    f"address nor a folder is looked for at the cluster of {CLUSTER_VARIABLE}.",
)
@caller_options
def top_command(job: str | None, cluster: str | None, **flags: Any) -> None:
    """Show the job whose chief is at JOB (HOST:PORT), or whose model directory JOB is, live.

    Without JOB: your job whose chief runs on this machine. Keys: `q` quits, `t` shows tasks and `p`
    the ps, `s` sorts by the next column, `r` the other way round.
    """
    if find_spec("textual") is None:
        raise MissingExtraError(
            "`ropewalk top` needs Textual: pip install 'ropewalk[top]'",
            module="textual",
            extra="top",
        )
    import sys

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigurationError(
            "`ropewalk top` needs a terminal; in a pipe `ropewalk status`, also with --json, says "
            "the same once"
        )
    from .top_screen import TopApp
    from .watched_job import WatchedJob

    asker = JobAsker(take_settings(flags), 5.0)
    with chosen_job(job, cluster, asker) as found, closing(WatchedJob(found, asker)) as watched:
        TopApp(watched).run()
