"""The pod of a task: how Kubernetes spells its plan, and who may do what in it. Pure."""

import copy
from collections.abc import Collection
from typing import Any

from ...cluster.resolvers.template import HOST_TEMPLATE
from ...cluster.spec import CHIEF, PS, WORKER
from ..jobfile.model import JobFile
from ..jobfile.plan import KUBERNETES, Place, TaskPlan, plan_task, saves
from ..jobfile.pod_part import (
    CHECKPOINTS,
    HEALTH_PORT,
    IMAGE_USER,
    METRICS_PORT,
    PORT,
    TLS_FOLDER,
    TOKEN_FOLDER,
    PodPart,
    ProbeTimes,
    merged,
)
from .names import REPLICATED, Form, claim, from_field, matched, secret, service

Json = dict[str, Any]

WORKING_DIR = "/app"

_JOIN_TIMEOUT_S = 600  # images are pulled and names come into DNS while the first tasks wait
_ORPHAN_S = 900  # a Job waits ten minutes at most before it replaces a pod, which then has to start
_STOP_DELAY_S = 5
_STARTUP_PERIOD_S = 2
_LIVENESS_PERIOD_S = 10
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

_POD_SECURITY: Json = {
    "runAsNonRoot": True,
    "runAsUser": IMAGE_USER,
    "runAsGroup": IMAGE_USER,
    "fsGroup": IMAGE_USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER_SECURITY: Json = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_SCRAPED = {
    "prometheus.io/scrape": "true",
    "prometheus.io/port": str(METRICS_PORT),
    "prometheus.io/path": "/metrics",
}


def pod_template(job: JobFile, role: str, form: Form = Form.OBJECTS) -> Json:
    """Make the template from which a controller makes pods of a role."""
    plan = _plan(job, role, form)
    part, kubernetes = job.pod(role), job.kubernetes
    spec: Json = {
        **_of_controller(job, role, form),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": kubernetes.grace_s,
        "securityContext": dict(_POD_SECURITY),
        "containers": [_container(job, role, plan, form)],
        "volumes": _volumes(job, role, plan),
    }
    if role == PS and "topologySpreadConstraints" not in part.pod:
        spec["topologySpreadConstraints"] = [_apart(matched(job.name, role), form)]
    if secrets := kubernetes.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in dict.fromkeys(secrets)]
    spec = _completed(merged(spec, part.pod), matched(job.name, role))
    if job.role(role).resources.gpu and not _tolerates(spec, "nvidia.com/gpu"):
        gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        spec["tolerations"] = [*spec.get("tolerations", ()), gpu]
    metadata: Json = {"labels": {**part.labels, **matched(job.name, role)}}
    if annotations := {**part.annotations, **(_SCRAPED if job.metrics else {})}:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": spec}


def _completed(spec: Json, own_labels: dict[str, str]) -> Json:
    """Complete a spec by what a job file leaves out: whose pods are meant, who may read Secrets."""
    spec = copy.deepcopy(spec)
    affinity = spec.get("affinity") or {}
    near = [affinity.get(kind) or {} for kind in ("podAffinity", "podAntiAffinity")]
    preferred = [each for group in near for each in group.get(_PREFERRED) or ()]
    for selecting in (
        *(spec.get("topologySpreadConstraints") or ()),
        *(each for group in near for each in group.get(_REQUIRED) or ()),
        *(each.get("podAffinityTerm") or {} for each in preferred),
    ):
        selecting.setdefault("labelSelector", {"matchLabels": own_labels})
    for volume in spec["volumes"]:
        if "secret" in volume:  # root's, and readable by the pod's group
            volume["secret"].setdefault("defaultMode", 0o440)
    return spec


def _apart(own_labels: dict[str, str], form: Form) -> Json:
    """Spread the pods so that a node that goes takes one ps, where there are nodes for them."""
    by_set = {} if form.is_one_object else {"matchLabelKeys": ["controller-revision-hash"]}
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": own_labels},
        **by_set,
    }


def _tolerates(spec: Json, taint: str) -> bool:
    return any(each.get("key") == taint for each in spec.get("tolerations") or ())


def _of_controller(job: JobFile, role: str, form: Form) -> Json:
    """Set what a StatefulSet says in its own spec, and a JobSet's controller fills in."""
    if form.is_one_object:
        return {"restartPolicy": "Never"}
    by_set = form.is_set(job, role)
    return {} if by_set else {"restartPolicy": "Never", "subdomain": service(job.name)}


def _container(job: JobFile, role: str, plan: TaskPlan, form: Form) -> Json:
    command, part = [*plan.command], job.pod(role)
    container: Json = {
        "name": form.container,
        "image": job.image,
        "command": command[:2],
        **({"args": [_literal(word) for word in command[2:]]} if command[2:] else {}),
        "workingDir": WORKING_DIR,
        "env": _environment(plan, {name for _, name in part.variables}),
        "ports": [
            {"name": "grpc", "containerPort": PORT},
            {"name": "health", "containerPort": HEALTH_PORT},
            *([{"name": "metrics", "containerPort": METRICS_PORT}] if job.metrics else []),
        ],
        "resources": _resources(plan),
        **_probes(part, waits_for_replicas=role == PS and job.settings.ps_replicas > 1),
        # The task writes why it ended; if it could not, the end of its log is shown.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # It works on until proxies and port-forwards have heard that it goes; then SIGTERM.
        "lifecycle": {"preStop": {"sleep": {"seconds": stop_delay_s(job.kubernetes.grace_s)}}},
        "securityContext": dict(_CONTAINER_SECURITY),
        "volumeMounts": _mounts(job, role, plan),
    }
    if job.kubernetes.image_pull_policy:
        container["imagePullPolicy"] = job.kubernetes.image_pull_policy
    return merged(container, part.container)


def _probes(part: PodPart, *, waits_for_replicas: bool = False) -> Json:
    """Set how the kubelet asks a task. Ready means that it answers, not that the others are there.

    Args:
        part: Options of a role's pods in the job file.
        waits_for_replicas: Whether it is a ps, which is ready once each share has its replicas:
            only then the next one may be stopped, by a StatefulSet that rolls or by an eviction.
    """
    times = part.probes or ProbeTimes()
    return {
        "startupProbe": {
            **_asks("startup"),
            "periodSeconds": _STARTUP_PERIOD_S,
            "failureThreshold": times.startup_s // _STARTUP_PERIOD_S,
        },
        "readinessProbe": {
            **_asks(REPLICATED if waits_for_replicas else "readiness"),
            "periodSeconds": times.readiness_s,
            "timeoutSeconds": 5,
        },
        # The kernel accepts it, so a task that computes for long is not killed for it.
        "livenessProbe": {
            "tcpSocket": {"port": "health"},
            "periodSeconds": _LIVENESS_PERIOD_S,
            "timeoutSeconds": 5,
            "failureThreshold": times.liveness_s // _LIVENESS_PERIOD_S,
        },
    }


def _asks(what: str) -> Json:
    return {"grpc": {"port": HEALTH_PORT, "service": what}}


def stop_delay_s(grace_s: int) -> int:
    """Compute the seconds from the request to stop to SIGTERM: a small part of the time a pod has
    to leave.
    """
    return min(_STOP_DELAY_S, grace_s // 10)


def _resources(plan: TaskPlan) -> Json:
    needs = plan.resources
    # The limit of memory is what a ps measures its bounds by. None on processors: see Resources.
    limits: Json = {"memory": needs.memory}
    requests: Json = {"cpu": needs.cpu, "memory": needs.memory}
    if needs.gpu:
        limits["nvidia.com/gpu"] = needs.gpu
    if needs.ephemeral_storage:
        requests["ephemeral-storage"] = limits["ephemeral-storage"] = needs.ephemeral_storage
    return {"requests": requests, "limits": limits}


def _plan(job: JobFile, role: str, form: Form) -> TaskPlan:
    gang = job.kubernetes.gang
    waits = gang is not None and gang.by == "chief"
    place = Place(
        checkpoints=CHECKPOINTS,
        tls=TLS_FOLDER,
        token=TOKEN_FOLDER,
        health_port=HEALTH_PORT,
        metrics_port=METRICS_PORT,
        grace_s=job.kubernetes.grace_s,
        join_timeout_s=gang.patience_s if gang and waits else _JOIN_TIMEOUT_S,
        orphan_s=_ORPHAN_S,
        address={
            "ROPEWALK_REPLICAS": job.replicas((CHIEF, PS, WORKER)),
            HOST_TEMPLATE: form.host,
        },
    )
    return plan_task(job, role, place, KUBERNETES)


def _environment(plan: TaskPlan, others: Collection[str]) -> list[Json]:
    """Set what only Kubernetes knows of a pod, and the variables of the plan but for ``others``,
    which the job file says: HOME, for instance.
    """
    label = "metadata.labels['app.kubernetes.io/{}']"
    return [
        {"name": "ROPEWALK_JOB_ID", **from_field(label.format("instance"))},
        {"name": "ROPEWALK_ROLE", **from_field(label.format("component"))},
        {"name": "POD_NAMESPACE", **from_field("metadata.namespace")},
        *(
            {"name": name, "value": text if name == HOST_TEMPLATE else _literal(text)}
            for name, text in plan.environment.items()
            if name not in others
        ),
    ]


def _literal(text: str) -> str:
    """Quote the user's text, so that it stays as it is: Kubernetes puts variables into ``$(NAME)``,
    and reads ``$$``.
    """
    return text.replace("$", "$$")


def needs_volume(job: JobFile, role: str) -> bool:
    """Return whether the pods of a role mount the checkpoints."""
    return not job.storage.is_url and saves(job, role)


def _volumes(job: JobFile, role: str, plan: TaskPlan) -> list[Json]:
    volumes: list[Json] = [{"name": "tmp", "emptyDir": {}}]
    if needs_volume(job, role):
        volumes.append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim(job)}})
    if plan.resources.gpu:
        # Data loaders hand batches over here; it counts as the container's memory.
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}})
    volumes += [
        {"name": kind, "secret": {"secretName": secret(job, role, kind), "defaultMode": 0o440}}
        for kind in plan.credentials
    ]
    return volumes


def _mounts(job: JobFile, role: str, plan: TaskPlan) -> list[Json]:
    mounts: list[Json] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    if needs_volume(job, role):
        where = CHECKPOINTS if not job.storage.model_dir else job.storage.model_dir
        mounts.append({"name": "checkpoints", "mountPath": where})
    if plan.resources.gpu:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
    folders = {"tls": TLS_FOLDER, "token": TOKEN_FOLDER}
    # Whole folders: a file mounted by subPath is never renewed.
    mounts += [
        {"name": kind, "mountPath": folders[kind], "readOnly": True} for kind in plan.credentials
    ]
    return mounts
