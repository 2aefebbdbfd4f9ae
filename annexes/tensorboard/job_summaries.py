"""The job's own numbers as TensorBoard scalars in its model directory; the chief writes them.

They come from what tasks report in heartbeats anyhow, so they cost a step nothing: the chief's loop
takes a sample, and a thread writes it.
"""

from ...cluster.job.job import Job
from ...cluster.job.scalars import SHORTEST_S, JobSample, job_scalars, sample_every_s, sample_job
from ...core.errors import ConfigurationError
from ...core.settings import Settings
from . import EventWriter, encoding, event_of, require_library
from .folders import JOB_RUN, run_folder


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

    def sample(self, job: Job, now: float, *, is_last: bool = False) -> JobSample | None:
        """Take a sample if one is due, else None; the caller holds the job's lock."""
        is_due = now - self._before.at >= sample_every_s(now - self._began)
        return sample_job(job, now) if is_due or is_last else None

    def write(self, sample: JobSample) -> None:
        """Have the numbers since the last sample written."""
        since = self._before
        # The last one may follow at once, and tasks report twice a second.
        if sample.at - since.at < SHORTEST_S:
            since = self._older
        self._older, self._before = self._before, sample
        if values := job_scalars(since, sample):
            self._writer.add(event_of(sample.global_step, encoding.scalars(values)))

    def close(self) -> None:
        """Write what is left.

        Raises:
            StorageError: It could not be written.
        """
        self._writer.close()


def open_job_summaries(settings: Settings, now: float) -> JobSummaries | None:
    """Open a job's summaries, if its settings ask for them; else None.

    Args:
        settings: The chief's settings.
        now: The time on the job's clock.

    Raises:
        ConfigurationError: There is no model directory, or tensorboardX is not installed.
        StorageError: The model directory cannot be written.
    """
    if not settings.tensorboard:
        return None
    if not settings.model_dir:
        raise ConfigurationError(
            "the job's numbers for TensorBoard are written to its model directory, and it has "
            "none: give --model-dir, or leave out --tensorboard"
        )
    return JobSummaries(settings.model_dir, now)
