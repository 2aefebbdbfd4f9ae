"""What a chief needs to write its job's state: a ConfigMap, and an account that may. Pure.

The account may change this one ConfigMap and make Events, and nothing else; the ConfigMap is made
here, since a right to make one cannot be bound to a name. ``deploy/k8s/components/status`` has the
same for kustomize.
"""

from collections.abc import Sequence
from typing import Any

from ...cluster.roles import CHIEF, WORKER
from ...core.errors import ConfigurationError
from ..job.model import JobFile
from .names import CONTAINER, STATUS, labels, status_object, workload

Json = dict[str, Any]


def with_status(job: JobFile, objects: Sequence[Json]) -> list[Json]:
    """A job's objects, with those for its state in front if the job file asks for them."""
    if not job.kubernetes.status:
        return list(objects)
    leader = workload(job.name, CHIEF if job.count(CHIEF) else WORKER)
    (of_leader,) = (each for each in objects if each["metadata"]["name"] == leader)
    # One that the job file names is there already, and gets the rights beside its own.
    named = of_leader["spec"]["template"]["spec"].get("serviceAccountName")
    return [
        *_objects(job, leader, named),
        *(_writing(each, named or leader) if each is of_leader else each for each in objects),
    ]


def check_rendered(job: JobFile) -> None:
    """Refuse to print objects that ``kubectl`` could not apply.

    Raises:
        ConfigurationError: The chief's account needs a namespace, which only ``apply`` knows.
    """
    if job.kubernetes.status and not job.kubernetes.namespace:
        raise ConfigurationError(
            "with `kubernetes: {status: true}` the file must say the namespace, too "
            "(kubernetes.namespace): a RoleBinding names it; `windlass k8s apply -n` fills it in",
            field="kubernetes.namespace",
        )


def _objects(job: JobFile, name: str, account: str | None) -> list[Json]:
    namespace = {"namespace": job.kubernetes.namespace} if job.kubernetes.namespace else {}

    def made(version: str, kind: str, name: str, **more: Any) -> Json:
        metadata = {"name": name, **namespace, "labels": labels(job.name, STATUS)}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}

    rbac = "rbac.authorization.k8s.io"
    own = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [status_object(job.name)],
        "verbs": ["get", "patch"],
    }
    events = {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}
    subject: Json = {"kind": "ServiceAccount", "name": account or name, **namespace}
    state = status_object(job.name)
    role = {"apiGroup": rbac, "kind": "Role", "name": state}
    accounts = (
        [] if account else [made("v1", "ServiceAccount", name, automountServiceAccountToken=False)]
    )
    return [
        made("v1", "ConfigMap", state),
        *accounts,
        made(f"{rbac}/v1", "Role", state, rules=[own, events]),
        made(f"{rbac}/v1", "RoleBinding", state, roleRef=role, subjects=[subject]),
    ]


def _writing(leader: Json, account: str) -> Json:
    """The Job of the chief, whose pod has the account and is told where to write."""
    template = leader["spec"]["template"]
    spec = template["spec"]
    containers = [
        {**each, "env": [*each.get("env", []), *_VARIABLES]} if each["name"] == CONTAINER else each
        for each in spec["containers"]
    ]
    # The pod's word on the token wins over the account's.
    mounted = {"serviceAccountName": account, "automountServiceAccountToken": True}
    changed = {**template, "spec": {**spec, **mounted, "containers": containers}}
    return {**leader, "spec": {**leader["spec"], "template": changed}}


def _label(name: str) -> Json:
    return {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{name}']"}}}


_VARIABLES: list[Json] = [
    {"name": "WINDLASS_STATUS_OBJECT", "value": "$(WINDLASS_JOB_ID)-status"},
    {"name": "WINDLASS_STATUS_JOB", **_label("batch.kubernetes.io/job-name")},
    {"name": "WINDLASS_STATUS_JOB_UID", **_label("batch.kubernetes.io/controller-uid")},
]
