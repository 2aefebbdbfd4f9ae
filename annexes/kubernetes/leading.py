"""Kubernetes beside the chief's loop, where its pod is told to do more than run it."""

from ...core.settings import read_environment
from ...worker.lead.companions import Companion, LedJob
from .settings import ENDS_JOB, STATUS_OBJECT


def companions(led: LedJob) -> list[Companion]:
    """Accompany a chief whose pod writes the job's state, or ends what is left of it.

    Args:
        led: The job that is led.
    """
    if not read_environment(ENDS_JOB) and not read_environment(STATUS_OBJECT):
        return []
    from .chiefs_pod import ChiefsPod  # loads what the client of Kubernetes needs

    return [ChiefsPod(led)]
