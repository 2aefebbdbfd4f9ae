"""The Kubernetes Job of a chief's pod: whether another pod follows this one.

A pod that is evicted, or deleted by itself, is replaced. One whose Job is deleted, suspended, or
over is not: the deadline of the Job, for instance, has its pod stopped in the same way. The pod's
account may read that Job where the chief ends what is left of its job (``components/end-job``).
"""

import logging
from pathlib import Path
from typing import Any

from ...core.errors import NotFoundError, WindlassError
from ...core.settings import read_environment
from ...net.pod_account import ACCOUNT_FOLDER, PodAccount, cluster_url

log = logging.getLogger(__name__)

ENDS_JOB = "WINDLASS_ENDS_JOB"
"""Variable by which a container ends what is left of its job; any text: when it is over."""


def path_of_own_job(job: str, role: str, namespace: str) -> str:
    """The path of the API where the Job of a chief's pod is.

    Args:
        job: Name of the job.
        role: Role of the task that leads it.
        namespace: Its namespace.
    """
    return f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}-{role}"


def why_none_follows(job: str, role: str, folder: Path = ACCOUNT_FOLDER) -> str:
    """Why no pod follows that of this chief; empty: one does, or that is not known.

    Args:
        job: Name of the job.
        role: Role of the task that leads it.
        folder: Folder of the pod's account.
    """
    namespace, url = read_environment("POD_NAMESPACE"), cluster_url()
    if not (read_environment(ENDS_JOB) and namespace and url):
        return ""
    try:
        own = PodAccount(url, folder).read(path_of_own_job(job, role, namespace))
    except NotFoundError:
        return "its Job was deleted"
    except WindlassError as error:
        log.warning("whether another chief follows is not known: %s", error)
        return ""
    return why_job_ends(own)


def why_job_ends(job: Any) -> str:
    """Why a Job makes no pod any more; empty: it does. Pure.

    Args:
        job: The Job, as the API has it.
    """
    if job["metadata"].get("deletionTimestamp"):
        return "its Job is being deleted"
    if (job.get("spec") or {}).get("suspend"):
        return "its Job is suspended"
    return "its Job has failed, or its deadline is over" if has_failed(job) else ""


def has_failed(job: Any) -> bool:
    """Whether a Job has failed, or is about to: its pods are being stopped. Pure."""
    conditions = (job.get("status") or {}).get("conditions") or []
    ends = [each for each in conditions if each.get("type") in ("Failed", "FailureTarget")]
    return any(each.get("status") == "True" for each in ends)
