"""The kinds of objects that a job has, their paths in the API, lists of them, and what was done to
one. Pure.
"""

from dataclasses import dataclass
from typing import Any

_PLACES = {
    "ConfigMap": ("api/v1", "configmaps"),
    "Event": ("api/v1", "events"),
    "Job": ("apis/batch/v1", "jobs"),
    "JobSet": ("apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    "Namespace": ("api/v1", "namespaces"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims"),
    "Pod": ("api/v1", "pods"),
    "PodGroup": ("apis/scheduling.x-k8s.io/v1alpha1", "podgroups"),
    "PodGroup.volcano.sh": ("apis/scheduling.volcano.sh/v1beta1", "podgroups"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "ResourceQuota": ("api/v1", "resourcequotas"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": ("api/v1", "secrets"),
    "Service": ("api/v1", "services"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
    "TrainJob": ("apis/trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "TrainingRuntime": ("apis/trainer.kubeflow.org/v1alpha1", "trainingruntimes"),
    "StorageClass": ("apis/storage.k8s.io/v1", "storageclasses"),
}
KINDS = frozenset(_PLACES)
"""Kinds that this package can send and list."""

_CONTROLLERS = {
    "JobSet": "JobSet's controller (sigs.k8s.io/jobset)",
    "PodGroup": "the scheduler that kubernetes.gang names (scheduler-plugins or Volcano)",
    "TrainJob": "Kubeflow Trainer",
    "TrainingRuntime": "Kubeflow Trainer",
}
CUSTOM_KINDS = ("TrainJob", "TrainingRuntime", "JobSet", "PodGroup", "PodGroup.volcano.sh")
"""Kinds of a job that a cluster may not know, in the order in which they are deleted."""

_OF_THE_CLUSTER = ("Namespace", "StorageClass")


def path_of(kind: str, namespace: str, name: str = "") -> str:
    """Write the path of an object, or of all objects of a kind."""
    version, plural = _PLACES[kind]
    inside = "" if kind in _OF_THE_CLUSTER else f"/namespaces/{namespace}"
    path = f"/{version}{inside}/{plural}"
    return f"{path}/{name}" if name else path


def kind_of(document: dict[str, Any]) -> str:
    """Find the kind by which this package knows an object: two schedulers call theirs PodGroup."""
    is_volcano = str(document["apiVersion"]).startswith("scheduling.volcano.sh/")
    return f"{document['kind']}.volcano.sh" if is_volcano else str(document["kind"])


def controller_of(kind: str) -> str:
    """Name whose kind it is, if a cluster may not know it; else empty."""
    return _CONTROLLERS.get(kind, "")


def in_namespace(body: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Put an object into a namespace, with the service accounts that it names.

    The path's namespace and the object's must be one; ``--namespace`` wins over the job file.
    """
    body = {**body, "metadata": {**body["metadata"], "namespace": namespace}}
    if body["kind"] == "RoleBinding":
        body["subjects"] = [
            {**each, "namespace": namespace} if each["kind"] == "ServiceAccount" else each
            for each in body["subjects"]
        ]
    return body


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects of a kind as they were at one version."""

    items: list[dict[str, Any]]
    version: str


@dataclass(frozen=True, slots=True)
class Done:
    """An object, and what was done to it: ``applied``, ``deleted``, ``kept`` or ``absent``."""

    kind: str
    name: str
    what: str
