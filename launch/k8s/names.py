"""Names, labels and ports of a job's objects. Pure.

The conventions are those of ``deploy/k8s``, so what its kustomize bases make and what is rendered
from a job file can be selected, followed and deleted alike.
"""

from typing import TYPE_CHECKING

from ...cluster.roles import CHIEF, EVALUATOR, PS, WORKER

if TYPE_CHECKING:
    from ..job.model import JobFile

FIELD_MANAGER = "ropewalk"
"""Manager of all fields that this command writes: what others own is then a conflict."""

CONTAINER = "ropewalk"

NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"
SHARED = "job"
STATUS = "status"
CODE = "code"

REPLICATED = "replicated"
"""Health service of a ps by which the kubelet asks for more than that it serves (net/health.py)."""

COUNT_IN_FILE = "ropewalk/count"
"""Annotation of what can be scaled: the count that the job file said when it was last applied."""

RUNTIME_DIGEST = "ropewalk/runtime"
"""Annotation of a TrainJob: which runtime it was made with, since it keeps to that one."""

ROLES = (CHIEF, PS, WORKER, EVALUATOR)


def labels(job: str, component: str) -> dict[str, str]:
    """Make the labels of a job's objects and pods."""
    return {NAME: "ropewalk", INSTANCE: job, COMPONENT: component, MANAGED_BY: FIELD_MANAGER}


def matched(job: str, component: str) -> dict[str, str]:
    """Make the labels that select the pods of a role."""
    return {**selector(job), COMPONENT: component}


def selector(job: str) -> dict[str, str]:
    """Make the labels by which everything of a job is found."""
    return {NAME: "ropewalk", INSTANCE: job}


def selector_text(job: str) -> str:
    """Write those labels as the API takes them."""
    return ",".join(f"{key}={value}" for key, value in selector(job).items())


def service(job: str) -> str:
    """Name the headless Service."""
    return f"{job}-tasks"


def status_object(job: str) -> str:
    """Name the ConfigMap to which the chief writes the job's state."""
    return f"{job}-status"


def workload(job: str, role: str) -> str:
    """Name the StatefulSet of the ps, or the Job of another role."""
    return f"{job}-{role}"


def claim(job: "JobFile") -> str:
    """Name the claim that holds checkpoints."""
    return job.storage.claim or f"{job.name}-checkpoints"


def secret(job: "JobFile", role: str, kind: str) -> str:
    """Name the Secret of a role: ``tls`` or ``token``."""
    return f"{job.security.secret or job.name}-{role}-{kind}"
