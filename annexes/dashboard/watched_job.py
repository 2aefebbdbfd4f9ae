"""A job that the page or the terminal shows: live from its chief, or as its model directory has it.

What is shown is the last that was known; when the chief does not answer a note says so, and since
when. A job that was named by its model directory is looked for there again, since the next chief
may be elsewhere.
"""

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...cluster.access import READER, Principal
from ...core.errors import ConfigurationError, RopewalkError
from ...core.terminal import terminal_line
from ...launch.found_job import FoundJob, JobAsker, job_in_folder
from ...worker.lead.status import status_json
from .calls import HistoryClient, PastJob
from .history_file import read_history

if TYPE_CHECKING:
    from ...client.chief.calls import JobStatus

_LOOK_S = 3.0  # between looks into the model directory of a job whose chief does not answer


@dataclass(frozen=True, slots=True)
class KnownStatus:
    """A job as it is known.

    Attributes:
        status: Last status.
        at: Time of the status. Unit: seconds since the epoch.
        note: Why there is no newer one; empty: there is none.
    """

    status: "JobStatus"
    at: float
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Write it for the page: numbers that are none are texts, such as ``NaN``."""
        status = json.loads(status_json(self.status), parse_constant=str)
        return {"status": status, "at": self.at, "note": self.note}


class WatchedJob:
    """A job that is looked at again and again. Thread-safe.

    Args:
        found: The job.
        asker: The asker.
    """

    def __init__(self, found: FoundJob, asker: JobAsker) -> None:
        self._asker = asker
        self._lock = threading.Lock()
        self._client: HistoryClient | None = None
        self._address = ""
        self._seen = KnownStatus(found.status, time.time())
        self._folder = found.folder
        self._looked = time.monotonic()
        self._dial(found.address)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._dial("")

    @property
    def folder(self) -> str:
        """Model directory, if it is known and on this machine; else empty."""
        if not self._folder:
            above = self._seen.status.last_checkpoint.rpartition("/")[0]
            self._folder = above if above and Path(above).is_dir() else ""
        return self._folder

    def look(self) -> KnownStatus:
        """Ask for the status; returns the last one, with a note, if nobody answers."""
        with self._lock:
            if self._client is not None:
                self._ask(self._client)
            elif not self._seen.status.phase.is_over or self._folder:
                self._look_in_folder()
            return self._seen

    def _ask(self, client: HistoryClient) -> None:
        try:
            status = client.status(timeout_s=self._asker.timeout_s)
        except RopewalkError as error:
            if self._seen.status.phase.is_over:
                self._dial("")
                return
            why = f"{self._address} does not answer: {terminal_line(error.message)}"
            self._seen = KnownStatus(self._seen.status, self._seen.at, why)
            self._look_in_folder()
        else:
            self._seen = KnownStatus(status, time.time())

    def _look_in_folder(self) -> None:
        """See whether the job has ended, or has another chief."""
        if not self.folder or time.monotonic() - self._looked < _LOOK_S:
            return
        try:
            found = job_in_folder(self.folder, self._asker)
        except ConfigurationError:
            return  # the next job there has not begun
        finally:
            self._looked = time.monotonic()
        if found.address or found.status.phase.is_over:
            self._seen = KnownStatus(found.status, time.time())
            self._dial(found.address)

    def _dial(self, address: str) -> None:
        if address == self._address:
            return
        if self._client is not None:
            self._client.close()
        self._address, self._client = address, None
        if address:
            self._client = HistoryClient(address, self._asker.settings, Principal(READER))

    def history(self, since: float = 0.0) -> PastJob:
        """Return the part of the job's history that is after a time.

        Nothing, if the chief does not answer, or keeps no history.
        """
        with self._lock:
            if self._client is not None:
                try:
                    return self._client.history(since, timeout_s=self._asker.timeout_s)
                except RopewalkError:
                    if since:
                        return PastJob([], [], [])
            if since or not self.folder:
                return PastJob([], [], [])
            from ...core.checkpoint.folder import open_folder

            samples, events = read_history(open_folder(self.folder))
            return PastJob(samples.names, list(samples.since()), events)
