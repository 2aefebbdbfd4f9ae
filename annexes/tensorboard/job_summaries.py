"""The job's own numbers as TensorBoard scalars in its model directory; the chief writes them.

They come from what tasks report in heartbeats anyhow, so they cost a step nothing: the chief's loop
takes a sample, and a thread writes it.
"""

import contextlib

from ...cluster.job.job import Job
from ...cluster.job.scalars import SHORTEST_S, JobSample, job_scalars, sample_every_s, sample_job
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
        self._began = now
        self._before = JobSample.of_nothing(now)
        self._older = self._before  # the one before that
        self._taken: JobSample | None = None

    def start(self) -> None:
        """Begin."""

    def look(self, job: Job, now: float, *, is_last: bool) -> None:
        """Take a sample if one is due, or the job ends; the caller holds the job's lock."""
        if is_last or now - self._before.at >= sample_every_s(now - self._began):
            self._taken = sample_job(job, now)

    def act(self) -> None:
        """Have the numbers since the last sample written, if one was taken."""
        sample, self._taken = self._taken, None
        if sample is not None:
            self._write(sample)

    def why_none_follows(self) -> str | None:
        """Say nothing of other chiefs."""
        return None

    def _write(self, sample: JobSample) -> None:
        since = self._before
        # The last one may follow at once, and tasks report twice a second.
        if sample.at - since.at < SHORTEST_S:
            since = self._older
        self._older, self._before = self._before, sample
        if values := job_scalars(since, sample):
            self._writer.add_scalars(sample.global_step, values)

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
