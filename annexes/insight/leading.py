"""The window of a job's reports, kept beside the chief's loop."""

from ...cluster.job.job import Job
from ...worker.lead.companions import Companion, LedJob
from .window import Window


class _Watch:
    """Looks at the reports in each turn of the loop; nothing follows from it by itself."""

    def __init__(self, window: Window) -> None:
        self._window = window

    def start(self) -> None:
        """Begin."""

    def look(self, job: Job, now: float, *, is_last: bool) -> None:  # noqa: ARG002
        """Keep the reports of now."""
        self._window.look(job.members.values(), now)

    def act(self) -> None:
        """Do nothing."""

    def why_none_follows(self) -> str | None:
        """Say that it is not known here."""
        return None

    def close(self) -> None:
        """End."""


def companions(led: LedJob) -> list[Companion]:
    """Keep the last minute of a job that is led.

    Args:
        led: The job.
    """
    return [_Watch(led.locked_job.part(Window))]
