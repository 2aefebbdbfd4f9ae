"""The job's own numbers, beside the chief's loop."""

from ...worker.lead.companions import Companion, LedJob
from .settings import TensorBoardSettings


def companions(led: LedJob) -> list[Companion]:
    """Write the job's numbers, if its settings ask for them.

    Args:
        led: The job that is led.

    Raises:
        ConfigurationError: There is no model directory, or tensorboardX is not installed.
        StorageError: The model directory cannot be written.
    """
    if not TensorBoardSettings.of(led.settings).tensorboard:
        return []
    from .job_summaries import open_job_summaries

    return [open_job_summaries(led.settings.model_dir, led.locked_job.clock.now())]
