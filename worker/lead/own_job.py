"""The Kubernetes Job (or StatefulSet) of a chief's pod: whether another pod follows this one.

A pod that is evicted, or deleted by itself, is replaced. One whose Job is deleted, suspended, or
over is not: the deadline of the Job, for instance, has its pod stopped in the same way. The pod's
account may read that Job where the chief ends what is left of its job (``components/end-job``).
"""

import logging
from pathlib import Path
from typing import Any

from ...core.errors import NotFoundError, RopewalkError
from ...core.settings import read_environment
from ...net.pod_account import ACCOUNT_FOLDER, PodAccount, cluster_url

log = logging.getLogger(__name__)

ENDS_JOB = "ROPEWALK_ENDS_JOB"
"""Variable by which a container ends what is left of its job; any text: when it is over."""

HOLDS = "ROPEWALK_HOLDS"
"""Variable of containers whose pods a StatefulSet makes, which starts each again that ends: they
stay when their part is over."""


def chief_account(folder: Path = ACCOUNT_FOLDER) -> tuple[PodAccount, str] | None:
    """Find the account of a chief that ends what is left of its job, and its namespace; None: this
    process has none.

    Args:
        folder: Folder of the pod's account.
    """
    namespace, url = read_environment("POD_NAMESPACE"), cluster_url()
    if not (read_environment(ENDS_JOB) and namespace and url):
        return None
    return PodAccount(url, folder), namespace


def path_of_own_job(job: str, role: str, namespace: str) -> str:
    """Write the path of the API where the Job of a role is, or the StatefulSet in its place.

    Args:
        job: Name of the job.
        role: The role.
        namespace: Namespace of the job.
    """
    group, kinds = ("apps", "statefulsets") if read_environment(HOLDS) else ("batch", "jobs")
    return f"/apis/{group}/v1/namespaces/{namespace}/{kinds}/{job}-{role}"


def why_none_follows(job: str, role: str, folder: Path = ACCOUNT_FOLDER) -> str | None:
    """Say why no pod follows that of this chief; empty: one does. None: that is not known.

    Args:
        job: Name of the job.
        role: Role of the task that leads it.
        folder: Folder of the pod's account.
    """
    found = chief_account(folder)
    if found is None:
        return None
    account, namespace = found
    try:
        own = account.read(path_of_own_job(job, role, namespace))
    except NotFoundError:
        return f"its {_maker()} was deleted"
    except RopewalkError as error:
        log.warning("whether another chief follows is not known: %s", error)
        return None
    return why_job_ends(own)


def why_job_ends(job: Any) -> str:
    """Say why a Job or a StatefulSet makes no pod any more; empty: it does.

    Args:
        job: The object, as the API has it.
    """
    spec = job.get("spec") or {}
    if job["metadata"].get("deletionTimestamp"):
        return f"its {_maker()} is being deleted"
    if spec.get("suspend"):
        return "its Job is suspended"
    if spec.get("replicas") == 0:
        return "its StatefulSet was scaled to none"
    return "its Job has failed, or its deadline is over" if has_failed(job) else ""


def _maker() -> str:
    return "StatefulSet" if read_environment(HOLDS) else "Job"


def has_failed(job: Any) -> bool:
    """Return whether a Job has failed, or is about to: its pods are being stopped. Pure."""
    return bool(failure_of(job))


def failure_of(job: Any) -> str:
    """Say why a Job has failed, in its controller's words; empty: it has not. Pure."""
    for each in (job.get("status") or {}).get("conditions") or []:
        if each.get("type") in ("Failed", "FailureTarget") and each.get("status") == "True":
            words = [str(each.get(name) or "") for name in ("reason", "message")]
            return ": ".join(filter(None, words)) or "it does not say why"
    return ""
