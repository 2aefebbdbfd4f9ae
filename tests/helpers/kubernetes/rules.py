"""What a real API server refuses, and in which words: updates, conflicts, missing namespaces. Pure.

The rules are those of ``pkg/apis/{batch,apps,core}/validation`` in Kubernetes 1.30 to 1.36; bodies
are ``Status`` objects, whose ``details.causes`` name fields.
"""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from helpers.kubernetes.pod_listings import Listed

GROUPS = {
    "Job": "batch",
    "JobSet": "jobset.x-k8s.io",
    "PodGroup": "scheduling.x-k8s.io",
    "Role": "rbac.authorization.k8s.io",
    "RoleBinding": "rbac.authorization.k8s.io",
    "StatefulSet": "apps",
}
PLURALS = {
    "ConfigMap": "configmaps",
    "Event": "events",
    "Job": "jobs",
    "JobSet": "jobsets",
    "LimitRange": "limitranges",
    "Namespace": "namespaces",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PodGroup": "podgroups",
    "PriorityClass": "priorityclasses",
    "ResourceQuota": "resourcequotas",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "RuntimeClass": "runtimeclasses",
    "Secret": "secrets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "StatefulSet": "statefulsets",
    "StorageClass": "storageclasses",
    "TrainJob": "trainjobs",
    "TrainingRuntime": "trainingruntimes",
}
_JOB_FIXED = (
    "template",
    "selector",
    "completionMode",
    "podFailurePolicy",
    "backoffLimitPerIndex",
    "successPolicy",
)
_SET_FREE = frozenset(
    {
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    }
)


def resource(kind: str) -> str:
    """``jobs.batch``, as messages name a kind."""
    plural, group = PLURALS[kind], GROUPS.get(kind, "")
    return f"{plural}.{group}" if group else plural


def status(code: int, message: str, reason: str = "", **details: Any) -> Listed:
    """A ``Status`` that says no."""
    body: Listed = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    return {**body, "message": message, "reason": reason, "details": details}


def missing(kind: str, name: str) -> Listed:
    text = f'{resource(kind)} "{name}" not found'
    return status(404, text, "NotFound", name=name, kind=PLURALS[kind])


def invalid(kind: str, name: str, field: str, message: str, reason: str) -> Listed:
    """422: one field cannot be so."""
    title = f"{kind}.{GROUPS[kind]}" if kind in GROUPS else kind
    cause = {"reason": reason, "message": message, "field": field}
    text = f'{title} "{name}" is invalid: {field}: {message}'
    return status(422, text, "Invalid", name=name, kind=kind, causes=[cause])


def conflict(owned: dict[str, str]) -> Listed:
    """409 of server-side apply: others own fields that were to change, ``{path: manager}``."""
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{manager}" using v1',
            "field": f".{path}",
        }
        for path, manager in owned.items()
    ]
    number = f"{len(causes)} conflict{'s' if len(causes) > 1 else ''}"
    text = "; ".join(f"{each['message']}: {each['field']}" for each in causes)
    return status(409, f"Apply failed with {number}: {text}", "Conflict", causes=causes)


def refused_pod(name: str, spec: Listed, has: Callable[[str, str], bool]) -> Listed | None:
    """What admission says against a pod that names what is not there; None: nothing.

    Source: ``plugin/pkg/admission/{priority,runtimeclass,serviceaccount}/admission.go``.

    Args:
        name: Name of the pod.
        spec: Its spec.
        has: Whether there is an object of a kind and a name.
    """
    account = spec.get("serviceAccountName", "default")
    says = {
        ("PriorityClass", spec.get("priorityClassName")): "no PriorityClass with name {} was found",
        ("RuntimeClass", spec.get("runtimeClassName")): (
            'pod rejected: RuntimeClass "{}" not found'
        ),
        ("ServiceAccount", "" if account == "default" else account): (
            'error looking up service account train/{0}: serviceaccount "{0}" not found'
        ),
    }
    for (kind, named), why in says.items():
        if named and not has(kind, named):
            text = f'pods "{name}" is forbidden: {why.format(named)}'
            return status(403, text, "Forbidden", name=name, kind="pods")
    return None


def refused_update(kind: str, name: str, before: Listed, after: Listed) -> Listed | None:
    """Why an object that is there cannot become another; None: it can."""
    old, new = before.get("spec") or {}, after.get("spec") or {}
    match kind:
        case "Job":
            return _refused_job(name, old, new)
        case "StatefulSet":
            if any(old.get(each) != new.get(each) for each in {*old, *new} - _SET_FREE):
                return invalid(
                    kind,
                    name,
                    "spec",
                    "Forbidden: updates to statefulset spec for fields other than 'replicas', "
                    "'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', "
                    "'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
                    "FieldValueForbidden",
                )
        case "PersistentVolumeClaim":
            fixed = {*old, *new} - {"resources", "volumeName"}
            if any(old.get(each) != new.get(each) for each in fixed):
                return invalid(
                    kind,
                    name,
                    "spec",
                    "Forbidden: spec is immutable after creation except resources.requests and "
                    "volumeAttributesClassName for bound claims\n  core.PersistentVolumeClaimSpec{"
                    "\n  \tAccessModes: ... }\n",
                    "FieldValueForbidden",
                )
    return None


def _refused_job(name: str, old: Listed, new: Listed) -> Listed | None:
    for field in _JOB_FIXED:
        if old.get(field) != new.get(field):
            value = json.dumps(new.get(field)) * 3  # as long as Go's own way of writing one
            text = f"Invalid value: {value}: field is immutable"
            return invalid("Job", name, f"spec.{field}", text, "FieldValueInvalid")
    counts = ("completions", "parallelism")
    if any(old.get(each) != new.get(each) for each in counts) and (
        new.get("completions") != new.get("parallelism")
        and old.get("completions") != new.get("completions")
    ):
        text = (
            f"Invalid value: {new.get('completions')}: can only be modified in tandem with "
            "spec.parallelism"
        )
        return invalid("Job", name, "spec.completions", text, "FieldValueInvalid")
    return None


_KEYS = {"env": "name", "volumes": "name", "volumeMounts": "mountPath", "imagePullSecrets": "name"}


def no_object(kind: str, name: str, body: Listed) -> Listed | None:
    """500 of server-side apply: a list that is merged by a key has it twice; None: none has."""
    twice = sorted(set(_twice(body.get("spec") or {}, ".spec")))
    if not twice:
        return None
    errors = "".join(f"\n  {each}" for each in twice)
    what = f"failed to create typed patch object (train/{name}; {body['apiVersion']}, Kind={kind})"
    return status(500, f"{what}: errors:{errors}")


def _twice(value: Any, path: str) -> Iterator[str]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for at, each in items:
        if isinstance(at, str) and at in _KEYS and isinstance(each, list):
            keys = [item[_KEYS[at]] for item in each]
            for key in {key for key in keys if keys.count(key) > 1}:
                yield f'{path}.{at}: duplicate entries for key [{_KEYS[at]}="{key}"]'
        if isinstance(each, dict | list):
            yield from _twice(each, f"{path}.{at}" if isinstance(at, str) else f"{path}[{at}]")


def leaves(body: Listed, path: str = "") -> Iterator[str]:
    """Paths of the fields that a patch sets."""
    for name, value in body.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def merged(before: Listed, change: Listed) -> Listed:
    """Maps are merged, None removes, everything else is replaced (RFC 7386)."""
    result = copy.deepcopy(before)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result
