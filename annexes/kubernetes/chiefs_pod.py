"""The part of a chief's pod in its job: writing its state, looking at pods, knowing the next."""

from ...cluster.job.job import Job
from ...worker.lead.companions import LedJob
from .failed_peers import failed_peers
from .own_job import why_none_follows
from .status_writer import status_writer


class ChiefsPod:
    """Work of a chief's pod beside its loop, in threads that look when they have time.

    Args:
        led: The job that is led.
    """

    def __init__(self, led: LedJob) -> None:
        self._job, self._role = led.settings.job_id, led.leader.type
        self._writer = status_writer(led.locked_job)
        self._peers = failed_peers(led.locked_job, self._job, asks_ps=led.asks_ps)

    def start(self) -> None:
        """Start to write, and to look at pods that do not join."""
        for part in (self._writer, self._peers):
            if part is not None:
                part.start()

    def look(self, job: Job, now: float, *, is_last: bool) -> None:
        """Leave it to the threads."""

    def act(self) -> None:
        """Leave it to the threads."""

    def why_none_follows(self) -> str | None:
        """Say why no pod follows that of this chief; empty: one does. None: that is not known."""
        return why_none_follows(self._job, self._role)

    def close(self) -> None:
        """End; the state is written once more."""
        if self._peers is not None:
            self._peers.close()
        if self._writer is not None:
            self._writer.stop()
