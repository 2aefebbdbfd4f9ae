"""Deleting a job, and waiting until its pods have left; a namespace with it.

The order matters: Jobs before the namespace. A namespace that is deleted with Jobs in it may hang,
since each pod of a Job has a finalizer that the Job's controller takes away when it has counted the
pod, and a Job that is gone counts nothing (kubernetes/kubernetes#108297 and others).
"""

import contextlib
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ...cluster.spec import CHIEF, EVALUATOR, PS, WORKER
from ...core.errors import AccessError, ConfigurationError, PeerLostError, RopewalkError
from .api import KubernetesApi
from .names import CODE, COMPONENT, INSTANCE, selector_text, service, workload

Json = dict[str, Any]

CUSTOM_KINDS = ("TrainJob", "TrainingRuntime", "JobSet", "PodGroup", "PodGroup.volcano.sh")
"""Kinds of a job that a cluster may not know, in the order in which they are deleted."""


_LOOK_S = 0.5
_NAMESPACE_S = 120.0
_TRACKING = "batch.kubernetes.io/job-tracking"
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Done:
    """An object, and what was done to it: ``applied``, ``deleted``, ``kept`` or ``absent``."""

    kind: str
    name: str
    what: str


def delete_all(api: KubernetesApi, name: str, *, checkpoints: bool) -> list[Done]:
    """Delete what a job has; its claim only if asked to, since checkpoints are not made twice."""
    done = remove_tasks(api, name)
    done.append(_delete(api, "Service", service(name)))
    with contextlib.suppress(AccessError):  # who may not delete it has made none
        done.append(_delete(api, "PodDisruptionBudget", workload(name, PS)))
    for kind in ("ConfigMap", "RoleBinding", "Role", "ServiceAccount"):
        with contextlib.suppress(AccessError):  # who may not list them has made none
            listed = api.list_all(kind, selector_text(name)).items
            done += [_delete(api, kind, each["metadata"]["name"]) for each in listed]
    claims = api.list_all("PersistentVolumeClaim", selector_text(name)).items
    for each in claims:
        kind, claim = "PersistentVolumeClaim", each["metadata"]["name"]
        done.append(_delete(api, kind, claim) if checkpoints else Done(kind, claim, "kept"))
    return [each for each in done if each.what != "absent"]


def remove_old_code(api: KubernetesApi, name: str, keep: Collection[str]) -> list[Done]:
    """Delete the code that a job had before, which no pod of it will mount again.

    Args:
        api: The Kubernetes API.
        name: Name of the job.
        keep: Names of the ConfigMaps that it has now.
    """
    try:
        listed = api.list_all("ConfigMap", f"{selector_text(name)},{COMPONENT}={CODE}").items
    except AccessError:  # who may not list them has made none
        return []
    names = [str(each["metadata"]["name"]) for each in listed]
    return [_delete(api, "ConfigMap", each) for each in names if each not in keep]


def remove_tasks(api: KubernetesApi, name: str) -> list[Done]:
    """Delete what makes the job's pods; pods that call others go first."""
    done = [_delete(api, "Job", workload(name, role)) for role in (WORKER, EVALUATOR, CHIEF)]
    done += [_delete(api, "StatefulSet", workload(name, role)) for role in (WORKER, CHIEF, PS)]
    for kind in CUSTOM_KINDS:
        with contextlib.suppress(AccessError):  # who may not delete them has made none
            done.append(_delete(api, kind, name))
    return [each for each in done if each.what != "absent"]


def _delete(api: KubernetesApi, kind: str, name: str) -> Done:
    return Done(kind.partition(".")[0], name, "deleted" if api.delete(kind, name) else "absent")


def wait_until_gone(api: KubernetesApi, name: str, timeout_s: float) -> None:
    """Wait until a job whose tasks were removed has no pods any more.

    Args:
        api: The Kubernetes API.
        name: Name of the job.
        timeout_s: Longest time to wait. Unit: seconds.

    Raises:
        PeerLostError: Pods are still there.
    """
    deadline = api.clock.now() + timeout_s
    while pods := api.list_all("Pod", selector_text(name)).items:
        for pod in filter(_is_left_over, pods):
            with contextlib.suppress(RopewalkError):  # it is gone, or its controller has to
                api.patch("Pod", pod["metadata"]["name"], {"metadata": {"finalizers": None}})
        if api.clock.now() > deadline:
            raise PeerLostError(
                f"after {timeout_s:g} s these pods are still there: {_named(pods)}; "
                f"`kubectl -n {api.namespace} describe pod` says why. The rest of the job is "
                "deleted; try again when they are gone"
            )
        api.clock.wait(threading.Event(), _LOOK_S)


def _is_left_over(pod: Json) -> bool:
    """Return whether a pod has ended, and only the finalizer of a Job that is gone holds it."""
    metadata = pod["metadata"]
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    held_by = metadata.get("finalizers") or []
    return ended and bool(metadata.get("deletionTimestamp")) and held_by == [_TRACKING]


def delete_with_namespace(api: KubernetesApi, name: str, grace_s: float) -> list[Done]:
    """Delete a job, wait until its pods are gone, then its namespace, checkpoints and all.

    Args:
        api: The Kubernetes API.
        name: Name of the job.
        grace_s: Longest time that its pods may take to leave. Unit: seconds.

    Raises:
        AccessError: The namespace may not be deleted; nothing was.
        ConfigurationError: Something of others is in the namespace; nothing was deleted.
        NotFoundError: There is no such namespace.
        PeerLostError: Pods or the namespace are still there; says which, or why.
    """
    api.check_namespace()
    _refuse_others(api, name)
    api.delete("Namespace", api.namespace, dry_run=True)  # before the checkpoints are gone
    done = delete_all(api, name, checkpoints=True)
    wait_until_gone(api, name, grace_s)
    if not api.delete("Namespace", api.namespace):
        return done
    deadline = api.clock.now() + _NAMESPACE_S
    while (left := api.get("Namespace", api.namespace)) is not None:
        if api.clock.now() > deadline:
            raise PeerLostError(f"namespace {api.namespace} is still there: {_why_left(left)}")
        api.clock.wait(threading.Event(), _LOOK_S)
    return [*done, Done("Namespace", api.namespace, "deleted")]


def _refuse_others(api: KubernetesApi, name: str) -> None:
    """Refuse to delete what is not the job's with the namespace: pods that run, and what claims
    hold.
    """

    def others(kind: str) -> list[Json]:
        listed = api.list_all(kind).items
        return [
            each
            for each in listed
            if (each["metadata"].get("labels") or {}).get(INSTANCE) != name
            and (each.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        ]

    for kind, what in (
        ("Pod", "other pods run in it"),
        ("PersistentVolumeClaim", "it has claims of others"),
    ):
        if found := others(kind):
            raise ConfigurationError(
                f"namespace {api.namespace} is not deleted: {what}: {_named(found)}. Without "
                "--namespace-too the job alone is deleted"
            )


def _named(items: Sequence[Json]) -> str:
    names = [str(each["metadata"]["name"]) for each in items]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _why_left(namespace: Json) -> str:
    """Say what holds a namespace that is being deleted, in the words of its controller."""
    conditions = (namespace.get("status") or {}).get("conditions") or []
    texts = [str(each.get("message", "")) for each in conditions if each.get("status") == "True"]
    return "; ".join(filter(None, texts)) or "its controller does not say why"
