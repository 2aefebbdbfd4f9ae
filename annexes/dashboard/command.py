"""``ropewalk dashboard``: the page of a job, or of a cluster's jobs, in a browser."""

import errno
from typing import Any

import click

from ...core.errors import ConfigurationError
from ...launch.found_job import JobAsker
from ...launch.options import caller_options, is_said, take_settings
from ...launch.screen.plain import echo
from .before_start import require_server
from .cluster_option import cluster_option

_PORT = 8470
_ANSWER_S = 5.0


@click.command("dashboard")
@click.argument("job", required=False)
@cluster_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=_PORT,
    show_default=True,
    help="Where the page is served; 0, or if it is taken: any free one.",
)
@click.option(
    "--bind",
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="Address of this machine. Beyond loopback it needs --tls-cert and --tls-key, or "
    "--insecure.",
)
@caller_options
def dashboard_command(
    job: str | None, cluster: str | None, port: int, bind: str, **flags: Any
) -> None:
    """Serve the page of the job whose chief is at JOB (HOST:PORT), or whose model directory JOB is.

    Also of one that is over. Without JOB: of all jobs of --cluster, or of your job whose chief runs
    on this machine. The link that is printed works once, for one browser; another one follows it.
    Ctrl-C ends it.
    """
    require_server()
    from .choosing import chosen
    from .serving import ServedPage

    asker = JobAsker(take_settings(flags), _ANSWER_S)
    with chosen(job, cluster, asker) as shown:
        try:
            page = ServedPage(shown, asker.settings, bind, port, _say)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or is_said("port"):
                raise ConfigurationError(
                    f"the page cannot be served at {bind}:{port}: {error.strerror or error}"
                ) from error
            page = ServedPage(shown, asker.settings, bind, 0, _say)
        page.run()


def _say(kind: str, link: str) -> None:
    echo(link if kind == "first" else f"a browser has opened it; for another one: {link}")
