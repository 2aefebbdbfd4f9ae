"""A cluster whose jobs the page or the terminal lists, and opens one by one."""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import Any

from ...core.errors import ConfigurationError, RefusedError, RopewalkError
from ...core.terminal import terminal_line
from ...launch.found_job import ClusterJobs, FoundJob, JobAsker, ListedJob, job_in_folder
from .watched_job import WatchedJob

MOST_JOBS = 16
"""Jobs that are open at one time, each with a connection to its chief."""
_ANEW_S = 0.9  # pages ask once a second


class WatchedCluster:
    """The jobs of a cluster, looked at again and again. Thread-safe.

    Args:
        cluster: The cluster.
        asker: The asker.
        anew_s: Time for which a list is good. Unit: seconds.
    """

    def __init__(self, cluster: ClusterJobs, asker: JobAsker, anew_s: float = _ANEW_S) -> None:
        self._cluster = cluster
        self._asker = asker
        self._lock = Lock()
        self._looked = -math.inf
        self._anew_s = anew_s
        self._listed: Sequence[ListedJob] = ()
        self._note = ""
        self._open: dict[str, ExitStack] = {}

    def jobs(self) -> tuple[Sequence[ListedJob], str]:
        """List the jobs, the newest first, and say why there is no newer list; empty: there is."""
        with self._lock:
            if time.monotonic() - self._looked >= self._anew_s:
                self._ask()
            return self._listed, self._note

    def _ask(self) -> None:
        try:
            self._listed, self._note = self._cluster.jobs()[::-1], ""
        except RopewalkError as error:
            why = terminal_line(error.message)
            self._note = f"the cluster at {self._cluster.where} does not answer: {why}"
        self._looked = time.monotonic()

    def look(self) -> dict[str, Any]:
        """List the jobs for the page."""
        jobs, note = self.jobs()
        fields = ListedJob.__dataclass_fields__
        rows = [{name: getattr(job, name) for name in fields} for job in jobs]
        return {"where": self._cluster.where, "jobs": rows, "note": note}

    def open(self, job: str) -> WatchedJob:
        """Open a job; one that has ended, by its model directory, if that is on this machine.

        Raises:
            RopewalkError: There is no such job, it waits, or nothing of it can be reached.
        """
        with ExitStack() as stack:
            watched = WatchedJob(self._find(job, stack), self._asker)
            stack.callback(watched.close)
            with self._lock:
                self._open[job] = stack.pop_all()
        return watched

    def _find(self, job: str, stack: ExitStack) -> FoundJob:
        listed = next((each for each in self.jobs()[0] if each.id == job), None)
        if listed is None:
            raise RefusedError(f"the cluster at {self._cluster.where} lists no job {job!r:.99}")
        try:
            address = stack.enter_context(self._cluster.way_to(job))
        except ConfigurationError:
            if not listed.folder or not Path(listed.folder).is_dir():
                raise
            return job_in_folder(listed.folder, self._asker)
        return FoundJob(self._asker.ask(address), address)

    def close_job(self, job: str) -> None:
        """Close the way to a job that is open."""
        with self._lock:
            stack = self._open.pop(job, None)
        if stack is not None:
            stack.close()

    def close(self) -> None:
        """Close all ways that are open."""
        for job in list(self._open):
            self.close_job(job)
