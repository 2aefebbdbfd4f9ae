"""Names, labels and ports of a job's objects. Pure.

The conventions are those of ``deploy/k8s``, so what its kustomize bases make and what is rendered
from a job file can be selected, followed and deleted alike.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ...cluster.spec import CHIEF, EVALUATOR, PS, WORKER
from ..jobfile.pod_part import PORT
from .api import FIELD_MANAGER

if TYPE_CHECKING:
    from ..jobfile.model import JobFile

CONTAINER = "ropewalk"

NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"
SHARED = "job"
STATUS = "status"
CODE = "code"

REPLICATED = "replicated"
"""Health service of a ps by which the kubelet asks for more than that it serves (net/unary.py)."""

COUNT_IN_FILE = "ropewalk/count"
"""Annotation of what can be scaled: the count that the job file said when it was last applied."""

RUNTIME_DIGEST = "ropewalk/runtime"
"""Annotation of a TrainJob: which runtime it was made with, since it keeps to that one."""

ROLES = (CHIEF, PS, WORKER, EVALUATOR)


def labels(job: str, component: str) -> dict[str, str]:
    """Make the labels of a job's objects and pods."""
    return {NAME: "ropewalk", INSTANCE: job, COMPONENT: component, MANAGED_BY: FIELD_MANAGER}


def document(
    job: "JobFile", version: str, kind: str, name: str, component: str, **more: Any
) -> dict[str, Any]:
    """Make an object of a job; ``more`` is what it has beside kind and metadata."""
    namespace = {"namespace": job.kubernetes.namespace} if job.kubernetes.namespace else {}
    metadata = {"name": name, **namespace, "labels": labels(job.name, component)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


def from_field(path: str) -> dict[str, Any]:
    """Make the value of a variable that only Kubernetes knows: a field of the pod."""
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


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


class Form(StrEnum):
    """The objects of a job.

    Attributes:
        OBJECTS: A StatefulSet of ps and an Indexed Job for each other role.
        JOBSET: A JobSet (kubernetes-sigs/jobset).
        TRAINJOB: A TrainJob and its runtime (Kubeflow Trainer), of which Trainer makes a JobSet.
    """

    OBJECTS = "objects"
    JOBSET = "jobset"
    TRAINJOB = "trainjob"

    @property
    def is_one_object(self) -> bool:
        """Whether a controller makes the Jobs, and ends all of them with the job."""
        return self is not Form.OBJECTS

    def is_set(self, job: "JobFile", role: str) -> bool:
        """Return whether a StatefulSet makes the pods of a role, and replaces lost ones at once."""
        at_once = role == PS or (job.kubernetes.at_once and role != EVALUATOR)
        return at_once and not self.is_one_object

    @property
    def container(self) -> str:
        """Name of a task's container: Trainer's overrides go by it."""
        return "node" if self is Form.TRAINJOB else CONTAINER

    @property
    def host(self) -> str:
        """Name and port of a task, with its role and its index to be filled in."""
        pod = "{role}-0-{index}" if self.is_one_object else "{role}-{index}"
        return f"$(ROPEWALK_JOB_ID)-{pod}.$(ROPEWALK_JOB_ID)-tasks.$(POD_NAMESPACE).svc:{PORT}"
