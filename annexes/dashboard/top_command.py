"""``ropewalk top``: a job live in the terminal."""

from importlib.util import find_spec
from typing import Any

import click

from ...core.errors import ConfigurationError, MissingExtraError
from ...launch.found_job import JobAsker
from ...launch.options import caller_options, take_settings
from .cluster_option import cluster_option


@click.command("top")
@click.argument("job", required=False)
@cluster_option
@caller_options
def top_command(job: str | None, cluster: str | None, **flags: Any) -> None:
    """Show the job whose chief is at JOB (HOST:PORT), or whose model directory JOB is, live.

    Without JOB: all jobs of --cluster, where Enter opens one and Escape goes back, or your job
    whose chief runs on this machine. Keys: `q` quits, `t` shows tasks and `p` the ps, `s` sorts by
    the next column, `r` the other way round.
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
    from .choosing import chosen
    from .top_screen import TopApp

    with chosen(job, cluster, JobAsker(take_settings(flags), 5.0)) as shown:
        TopApp(shown).run()
