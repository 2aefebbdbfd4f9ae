"""The kinds of objects that a job has, their paths in the API, and lists of them. Pure."""

from dataclasses import dataclass
from typing import Any

_PLACES = {
    "Event": ("api/v1", "events"),
    "Job": ("apis/batch/v1", "jobs"),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims"),
    "Pod": ("api/v1", "pods"),
    "Service": ("api/v1", "services"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
}


def path_of(kind: str, namespace: str, name: str = "") -> str:
    """Of an object, or of all of a kind."""
    version, plural = _PLACES[kind]
    path = f"/{version}/namespaces/{namespace}/{plural}"
    return f"{path}/{name}" if name else path


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects of a kind as they were at one version."""

    items: list[dict[str, Any]]
    version: str
