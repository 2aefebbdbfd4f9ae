"""The job's own numbers as TensorBoard scalars in its model directory; the chief writes them.

They come from what tasks report in heartbeats anyhow, so they cost a step nothing: the chief's loop
takes a sample, and a thread writes it.
"""

import contextlib

from ...cluster.job.job import Job
from ...cluster.job.scalars import JobScalars
from ...core.errors import ConfigurationError, StorageError
from .encoding import require_library
from .writer import JOB_RUN, EventWriter, run_folder


class JobSummaries:
    """Writes a job's numbers. Used by one thread at a time.

    Args:
        model_dir: The job's model directory.
        now: The time on the job's clock.

    Raises:
        MissingExtraError: tensorboardX is not installed.
        StorageError: The model directory cannot be written.
    """

    def __init__(self, model_dir: str, now: float) -> None:
        require_library()
        self._writer = EventWriter(run_folder(model_dir, JOB_RUN))
        self._numbers = JobScalars(now)

    def start(self) -> None:
        """Begin."""

    def look(self, job: Job, now: float, *, is_last: bool) -> None:
        """Take a sample if one is due, or the job ends; the caller holds the job's lock."""
        self._numbers.look(job, now, is_last=is_last)

    def act(self) -> None:
        """Have the numbers since the last sample written, if one was taken."""
        if (taken := self._numbers.take()) is not None:
            self._writer.add_scalars(*taken)

    def why_none_follows(self) -> str | None:
        """Say nothing of other chiefs."""
        return None

    def close(self) -> None:
        """Write what is left; the log has it if that cannot be done."""
        with contextlib.suppress(StorageError):
            self._writer.close()


def open_job_summaries(model_dir: str, now: float) -> JobSummaries:
    """Open a job's summaries.

    Args:
        model_dir: The job's model directory; empty: none.
        now: The time on the job's clock.

    Raises:
        ConfigurationError: There is no model directory, or tensorboardX is not installed.
        StorageError: The model directory cannot be written.
    """
    if not model_dir:
        raise ConfigurationError(
            "the job's numbers for TensorBoard are written to its model directory, and it has "
            "none: give --model-dir, or leave out --tensorboard"
        )
    return JobSummaries(model_dir, now)
