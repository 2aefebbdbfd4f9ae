"""The Kubernetes Job (or StatefulSet) of a chief's pod: whether another pod follows this one.

A pod that is evicted, or deleted by itself, is replaced. One whose Job is deleted, suspended, or
over is not: the deadline of the Job, for instance, has its pod stopped in the same way. The pod's
account may read that Job where the chief ends what is left of its job (``components/end-job``).
"""

import logging
from pathlib import Path
from typing import Any

from ...core.errors import RopewalkError
from ...core.settings import read_environment
from .client.api import KubernetesApi, connect_task
from .client.requests import ACCOUNT_FOLDER, is_in_pod
from .pods import condition
from .variables import ENDS_JOB, HOLDS

log = logging.getLogger(__name__)

CHIEFS_MANAGER = "ropewalk-chief"
"""Field manager of what a chief writes."""


def ends_its_job() -> bool:
    """Return whether this process is of a chief that ends what is left of its job."""
    return bool(read_environment(ENDS_JOB)) and is_in_pod()


def chief_api(folder: Path = ACCOUNT_FOLDER) -> KubernetesApi:
    """Connect to the API as the account of a chief's pod. The client is loaded here.

    Args:
        folder: Folder of the account.

    Raises:
        MissingExtraError: The client of Kubernetes is not installed.
        AccessError: The pod has no account.
    """
    return connect_task(CHIEFS_MANAGER, folder)


def why_none_follows(job: str, role: str, folder: Path = ACCOUNT_FOLDER) -> str | None:
    """Say why no pod follows that of this chief; empty: one does. None: that is not known.

    Args:
        job: Name of the job.
        role: Role of the task that leads it.
        folder: Folder of the pod's account.
    """
    if not ends_its_job():
        return None
    try:
        own = chief_api(folder).get(maker(), f"{job}-{role}")
    except RopewalkError as error:
        log.warning("whether another chief follows is not known: %s", error)
        return None
    return f"its {maker()} was deleted" if own is None else why_job_ends(own)


def why_job_ends(job: Any) -> str:
    """Say why a Job or a StatefulSet makes no pod any more; empty: it does.

    Args:
        job: The object, as the API has it.
    """
    spec = job.get("spec") or {}
    if job["metadata"].get("deletionTimestamp"):
        return f"its {maker()} is being deleted"
    if spec.get("suspend"):
        return "its Job is suspended"
    if spec.get("replicas") == 0:
        return "its StatefulSet was scaled to none"
    return "its Job has failed, or its deadline is over" if failure_of(job) else ""


def maker() -> str:
    """Name the kind of what makes the pods of chief and workers."""
    return "StatefulSet" if read_environment(HOLDS) else "Job"


def failure_of(job: Any) -> str:
    """Say why a Job has failed, or is about to, in its controller's words; empty: not. Pure."""
    failed = condition(job, "Failed") or condition(job, "FailureTarget")
    if failed is None:
        return ""
    words = [str(failed.get(name) or "") for name in ("reason", "message")]
    return ": ".join(filter(None, words)) or "it does not say why"
