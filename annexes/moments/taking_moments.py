"""Taking moments, for the chief's checkpoints and for readers."""

from collections.abc import Callable

from ...core.settings import Settings
from ...core.task import Incarnation
from ...server.chief.servicer import LockedJob
from ...worker.lead.leadership import Led
from .cutter import Cutter
from .job_cuts import JobCuts


def moments(
    locked_job: LockedJob, who: Incarnation, leaders: Callable[[], Led], settings: Settings
) -> Cutter:
    """Make what takes moments of a job, also for tasks that read one.

    Args:
        locked_job: The job.
        who: The task that leads it.
        leaders: Returns each share with the ps that leads it.
        settings: Settings of the chief.
    """
    cutter = Cutter(locked_job, who, leaders, settings)
    cuts = locked_job.part(JobCuts)
    cuts.take, cuts.release = cutter.take_for_reader, cutter.release_number
    return cutter
