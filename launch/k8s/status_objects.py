"""What a chief needs to write its job's state, and to end what the job has left. Pure.

Each needs an account. To write the state it may change one ConfigMap and make Events; the ConfigMap
is made here, since a right to make one cannot be bound to a name. To end the job it may scale the
job's ps and suspend its other Jobs. ``deploy/k8s/components`` has the same for kustomize:
``status`` and ``end-job``.
"""

from collections.abc import Sequence
from typing import Any

from ...cluster.roles import CHIEF, EVALUATOR, PS, WORKER
from ...core.errors import ConfigurationError
from ..job.model import JobFile
from .names import CONTAINER, STATUS, labels, status_object, workload

Json = dict[str, Any]


def with_status(job: JobFile, objects: Sequence[Json]) -> list[Json]:
    """A job's objects, with those of its chief's account in front if the job file needs one."""
    if not _needs_account(job):
        return list(objects)
    leader = workload(job.name, CHIEF if job.count(CHIEF) else WORKER)
    (of_leader,) = (each for each in objects if each["metadata"]["name"] == leader)
    # One that the job file names is there already, and gets the rights beside its own.
    named = of_leader["spec"]["template"]["spec"].get("serviceAccountName")
    return [
        *_objects(job, leader, named),
        *(
            _with_account(job, each, named or leader) if each is of_leader else each
            for each in objects
        ),
    ]


def _needs_account(job: JobFile) -> bool:
    return job.kubernetes.status or job.kubernetes.end_job


def check_rendered(job: JobFile) -> None:
    """Refuse to print objects that ``kubectl`` could not apply.

    Raises:
        ConfigurationError: The chief's account needs a namespace, which only ``apply`` knows.
    """
    if _needs_account(job) and not job.kubernetes.namespace:
        wanted = "status" if job.kubernetes.status else "end_job"
        raise ConfigurationError(
            f"with `kubernetes: {{{wanted}: true}}` the file must say the namespace, too "
            "(kubernetes.namespace): a RoleBinding names it; `windlass k8s apply -n` fills it in",
            field="kubernetes.namespace",
        )


def _objects(job: JobFile, name: str, account: str | None) -> list[Json]:
    namespace = {"namespace": job.kubernetes.namespace} if job.kubernetes.namespace else {}

    def made(version: str, kind: str, name: str, **more: Any) -> Json:
        metadata = {"name": name, **namespace, "labels": labels(job.name, STATUS)}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}

    rbac = "rbac.authorization.k8s.io"
    subject: Json = {"kind": "ServiceAccount", "name": account or name, **namespace}
    state = status_object(job.name)
    allowed = state if job.kubernetes.status else name
    role = {"apiGroup": rbac, "kind": "Role", "name": allowed}
    accounts = (
        [] if account else [made("v1", "ServiceAccount", name, automountServiceAccountToken=False)]
    )
    return [
        *([made("v1", "ConfigMap", state)] if job.kubernetes.status else []),
        *accounts,
        made(f"{rbac}/v1", "Role", allowed, rules=_rights(job)),
        made(f"{rbac}/v1", "RoleBinding", allowed, roleRef=role, subjects=[subject]),
    ]


def _rights(job: JobFile) -> list[Json]:
    rights = []
    if job.kubernetes.status:
        rights += [
            _right("", "configmaps", [status_object(job.name)], ["get", "patch"]),
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        ]
    if job.kubernetes.end_job:
        others = [workload(job.name, role) for role in (WORKER, EVALUATOR)]
        rights += [
            _right("apps", "statefulsets/scale", [workload(job.name, PS)], ["patch"]),
            _right("batch", "jobs", others, ["patch"]),
        ]
    return rights


def _right(group: str, resource: str, names: list[str], verbs: list[str]) -> Json:
    return {"apiGroups": [group], "resources": [resource], "resourceNames": names, "verbs": verbs}


def _with_account(job: JobFile, leader: Json, account: str) -> Json:
    """The Job of the chief, whose pod has the account and is told what to do with it."""
    variables = [
        *(_STATUS if job.kubernetes.status else []),
        *(_END_JOB if job.kubernetes.end_job else []),
    ]
    template = leader["spec"]["template"]
    spec = template["spec"]
    containers = [
        {**each, "env": [*each.get("env", []), *variables]} if each["name"] == CONTAINER else each
        for each in spec["containers"]
    ]
    # The pod's word on the token wins over the account's.
    mounted = {"serviceAccountName": account, "automountServiceAccountToken": True}
    changed = {**template, "spec": {**spec, **mounted, "containers": containers}}
    return {**leader, "spec": {**leader["spec"], "template": changed}}


def _label(name: str) -> Json:
    return {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{name}']"}}}


_STATUS: list[Json] = [
    {"name": "WINDLASS_STATUS_OBJECT", "value": "$(WINDLASS_JOB_ID)-status"},
    {"name": "WINDLASS_STATUS_JOB", **_label("batch.kubernetes.io/job-name")},
    {"name": "WINDLASS_STATUS_JOB_UID", **_label("batch.kubernetes.io/controller-uid")},
]
_END_JOB: list[Json] = [{"name": "WINDLASS_ENDS_JOB", "value": "true"}]
