"""The page that a chief serves of its own job, in a thread beside its loop.

It asks the chief by calls, as ``ropewalk dashboard`` does from elsewhere; so it shows the same.
"""

import logging
import threading

from ...cluster.job.job import Job
from ...core.errors import RopewalkError
from ...core.process.threads import new_thread, nobody_waits
from ...launch.found_job import FoundJob, JobAsker
from ...worker.lead.companions import LedJob
from .serving import own_page
from .settings import DashboardSettings
from .watched_job import WatchedJob

log = logging.getLogger(__name__)

_ANSWER_S = 5.0


class ChiefsPage:
    """Serves the page. See :class:`~ropewalk.worker.lead.companions.Companion`.

    Args:
        led: The job that is led.
    """

    def __init__(self, led: LedJob) -> None:
        self._leader = led.leader
        self._settings = led.settings
        self._address = ""
        self._ending = threading.Event()
        self._thread = new_thread("chiefs-page", self._serve, failed=nobody_waits)

    def start(self) -> None:
        """Begin when the chief's address is known."""

    def look(self, job: Job, now: float, *, is_last: bool) -> None:  # noqa: ARG002
        """Take the chief's own address."""
        if not self._address:
            self._address = job.members[self._leader].address

    def act(self) -> None:
        """Begin to serve, once."""
        if self._address and self._thread.ident is None:
            self._thread.start()

    def why_none_follows(self) -> str | None:
        """Say nothing of other chiefs."""
        return None

    def close(self) -> None:
        """End."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(_ANSWER_S)

    def _serve(self) -> None:
        asker = JobAsker(self._settings, _ANSWER_S)
        port = DashboardSettings.of(self._settings).dashboard_port
        try:
            job = WatchedJob(FoundJob(asker.ask(self._address), self._address), asker)
            page = own_page(job, self._settings, self._address.rpartition(":")[0], port, _say)
        except (RopewalkError, OSError) as error:
            log.warning("the page is not served at port %d: %s", port, error)
            return
        page.start()
        self._ending.wait()
        page.close()
        job.close()


def _say(kind: str, link: str) -> None:
    log.info(
        "the page of this job, for %s browser: %s", "one" if kind == "first" else "another", link
    )
