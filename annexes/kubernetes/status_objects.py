"""Objects that a chief needs to write its job's state, and to end what the job has left. Pure.

Each needs an account. To write the state it may change one ConfigMap and make Events; the ConfigMap
is made here, since a right to make one cannot be bound to a name. To end the job it may scale the
job's ps and suspend its other Jobs, and look at what tells it that the job is over: its own Job,
that of the workers, and the pods of the ps. Where StatefulSets make all of these, it writes the
result to that ConfigMap. ``deploy/k8s/components`` has the same for kustomize:
``status`` and ``end-job``.
"""

from collections.abc import Iterable
from typing import Any

from ...cluster.spec import CHIEF, EVALUATOR, PS, WORKER
from ...core.errors import ConfigurationError
from ..jobfile.model import JobFile
from .job_end import FAILURES, INCOMPLETE
from .names import STATUS, Form, document, from_field, status_object, workload
from .settings import ENDS_JOB

Json = dict[str, Any]


def account_objects(job: JobFile, form: Form) -> list[Json]:
    """Make the chief's account, what it may do and the ConfigMap it writes, if the job file needs
    them.

    Args:
        job: The job.
        form: Form of the job's objects. One object ends by itself what is left of a job.
    """
    if not _needs_account(job, form):
        return []
    leader = workload(job.name, job.leader.type)
    # One that the job file names is there already, and gets the rights beside its own.
    return _objects(
        job, form, leader, str(job.pod(job.leader.type).pod.get("serviceAccountName") or "")
    )


def _ends_job(job: JobFile, form: Form) -> str:
    """Decide when the chief ends what is left of its job, as the container reads it; empty:
    never.
    """
    kubernetes = job.kubernetes
    if form.is_one_object:
        return ""
    if kubernetes.gang and kubernetes.gang.by == "chief":
        return INCOMPLETE
    return "true" if kubernetes.end_job or kubernetes.at_once else ""


def _needs_account(job: JobFile, form: Form) -> bool:
    return _has_record(job) or bool(_ends_job(job, form))


def _has_record(job: JobFile) -> bool:
    """Return whether the job has a ConfigMap: that its chief writes its state to, or its result
    alone.
    """
    return job.kubernetes.status or job.kubernetes.at_once


def check_rendered(job: JobFile, form: Form = Form.OBJECTS) -> None:
    """Refuse to print objects that ``kubectl`` could not apply.

    Raises:
        ConfigurationError: The chief's account needs a namespace, which only ``apply`` knows.
    """
    if _needs_account(job, form) and not job.kubernetes.namespace:
        gang = "gang: {by: chief}" if _ends_job(job, form) == INCOMPLETE else "end_job: true"
        gang = "lost_pods: at-once" if job.kubernetes.at_once else gang
        wanted = "status: true" if job.kubernetes.status else gang
        raise ConfigurationError(
            f"with `kubernetes: {{{wanted}}}` the file must say the namespace, too "
            "(kubernetes.namespace): a RoleBinding names it; `ropewalk k8s apply -n` fills it in",
            field="kubernetes.namespace",
        )


def _objects(job: JobFile, form: Form, name: str, account: str) -> list[Json]:
    def made(version: str, kind: str, name: str, **more: Any) -> Json:
        return document(job, version, kind, name, STATUS, **more)

    rbac = "rbac.authorization.k8s.io"
    subject: Json = {"kind": "ServiceAccount", "name": account or name}
    if job.kubernetes.namespace:
        subject["namespace"] = job.kubernetes.namespace
    state = status_object(job.name)
    allowed = state if _has_record(job) else name
    role = {"apiGroup": rbac, "kind": "Role", "name": allowed}
    accounts = (
        [] if account else [made("v1", "ServiceAccount", name, automountServiceAccountToken=False)]
    )
    return [
        *([made("v1", "ConfigMap", state)] if _has_record(job) else []),
        *accounts,
        made(f"{rbac}/v1", "Role", allowed, rules=_rights(job, form)),
        made(f"{rbac}/v1", "RoleBinding", allowed, roleRef=role, subjects=[subject]),
    ]


def _rights(job: JobFile, form: Form) -> list[Json]:
    rights = []
    if _has_record(job):
        verbs = ["get", "patch"] if job.kubernetes.at_once else ["patch"]
        rights.append(_right("", "configmaps", [status_object(job.name)], verbs))
    if job.kubernetes.status:
        rights.append({"apiGroups": [""], "resources": ["events"], "verbs": ["create"]})
    if _ends_job(job, form):
        leader = job.leader.type
        # One name at least: a right without names is to all of them.
        sets = [role for role, _ in job.present if form.is_set(job, role)] or [PS]
        jobs = [role for role in (WORKER, EVALUATOR) if role not in sets]
        by_job = [role for role in dict.fromkeys([leader, WORKER]) if role not in sets]
        # Why a pod does not start whose name is known.
        pods = [each for each in job.tasks if each.type in sets and each.type != CHIEF]
        rights += [
            _right("apps", "statefulsets/scale", _workloads(job, sets), ["patch"]),
            _right("batch", "jobs", _workloads(job, jobs), ["patch"]),
            *([_right("batch", "jobs", _workloads(job, by_job), ["get"])] if by_job else []),
        ]
        if leader in sets:
            rights.append(_right("apps", "statefulsets", _workloads(job, [leader]), ["get"]))
        if pods:
            names = [f"{workload(job.name, each.type)}-{each.index}" for each in pods]
            rights.append(_right("", "pods", names, ["get"]))
    return rights


def _workloads(job: JobFile, roles: Iterable[str]) -> list[str]:
    return [workload(job.name, role) for role in roles]


def _right(group: str, resource: str, names: list[str], verbs: list[str]) -> Json:
    return {"apiGroups": [group], "resources": [resource], "resourceNames": names, "verbs": verbs}


def with_account(template: Json, job: JobFile, form: Form) -> Json:
    """Give the pod template of the leader the account, and tell it what to do with it."""
    if not _needs_account(job, form):
        return template
    ends, by_set = _ends_job(job, form), form.is_set(job, job.leader.type)
    variables = [
        *(_STATUS[: 1 if by_set else None] if job.kubernetes.status else []),
        *([{"name": ENDS_JOB, "value": ends}] if ends else []),
        *([_FAILURES] if ends and not by_set else []),
    ]
    spec = template["spec"]
    (container,) = spec["containers"]
    container = {**container, "env": [*container["env"], *variables]}
    account = spec.get("serviceAccountName") or workload(job.name, job.leader.type)
    # The pod's word on the token wins over the account's.
    mounted = {"serviceAccountName": account, "automountServiceAccountToken": True}
    return {**template, "spec": {**spec, **mounted, "containers": [container]}}


def _label(name: str) -> Json:
    return from_field(f"metadata.labels['{name}']")


_FAILURES: Json = {
    "name": FAILURES,
    **from_field("metadata.annotations['batch.kubernetes.io/job-index-failure-count']"),
}

_STATUS: list[Json] = [
    {"name": "ROPEWALK_STATUS_OBJECT", "value": "$(ROPEWALK_JOB_ID)-status"},
    {"name": "ROPEWALK_STATUS_JOB", **_label("batch.kubernetes.io/job-name")},
    {"name": "ROPEWALK_STATUS_JOB_UID", **_label("batch.kubernetes.io/controller-uid")},
]
