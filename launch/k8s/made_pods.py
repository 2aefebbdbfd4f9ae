"""Pods that an object makes: its templates, and how many of each. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MadePods:
    """Equal pods.

    Attributes:
        owner: Name of what makes them.
        count: Number of pods.
        spec: Spec of a pod.
        metadata: Labels and annotations of a pod.
    """

    owner: str
    count: int
    spec: Json
    metadata: Json = field(default_factory=dict)


def made_pods(document: Json) -> Iterator[MadePods]:
    """List the pods of a Job, a StatefulSet, a JobSet or a runtime of Trainer; none of other
    objects.
    """
    name, spec = document["metadata"]["name"], document.get("spec") or {}
    if document["kind"] == "TrainingRuntime":
        spec = spec["template"]["spec"]
    for job in spec.get("replicatedJobs") or []:
        yield from _of(f"{name}-{job['name']}", job["template"]["spec"])
    yield from _of(name, spec)


def _of(owner: str, spec: Json) -> Iterator[MadePods]:
    template = spec.get("template") or {}
    made = template.get("spec") or {}
    if "containers" in made:
        count = spec.get("replicas", spec.get("parallelism", 1))
        yield MadePods(owner, int(count or 0), made, template.get("metadata") or {})
