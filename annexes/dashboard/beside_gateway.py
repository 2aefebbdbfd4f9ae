"""The page that the gateway of a standing cluster serves of all its jobs, in a thread beside it."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from ...core.errors import ConfigurationError
from ...core.settings import Settings
from ...launch.found_job import ClusterJobs, JobAsker
from ...net.auth.credentials import job_of_credentials
from .before_start import require_server
from .settings import DashboardSettings

log = logging.getLogger(__name__)

_ANSWER_S = 5.0


@contextmanager
def beside(
    address: str, jobs: Callable[[], AbstractContextManager[ClusterJobs]], settings: Settings
) -> Iterator[None]:
    """Serve the page for as long as the block runs, if the settings ask for it.

    Args:
        address: Address of the gateway, HOST:PORT.
        jobs: Opens its jobs.
        settings: Settings of the gateway.

    Raises:
        MissingExtraError: What serves it is not installed.
        ConfigurationError: The port is taken.
    """
    port = DashboardSettings.of(settings).dashboard_port
    if not port:
        yield
        return
    require_server()
    from .serving import own_page
    from .watched_cluster import WatchedCluster

    # Each job has a name of its own, which callers need not know.
    asker = JobAsker(
        settings.model_copy(update={"job_id": job_of_credentials(settings)}), _ANSWER_S
    )
    with ExitStack() as stack:
        cluster = WatchedCluster(stack.enter_context(jobs()), asker)
        stack.callback(cluster.close)
        try:
            page = own_page(cluster, settings, address.rpartition(":")[0], port, _say)
        except OSError as error:
            raise ConfigurationError(
                f"the page cannot be served at port {port} (dashboard_port): "
                f"{error.strerror or error}"
            ) from error
        stack.callback(page.close)
        page.start()
        yield


def _say(kind: str, link: str) -> None:
    which = "one" if kind == "first" else "another"
    log.info("the page of this cluster's jobs, for %s browser: %s", which, link)
