"""The pod of a task: how Kubernetes spells its plan, and who may do what in it. Pure."""

from typing import Any

from ...cluster.resolvers.template_variables import HOST_TEMPLATE
from ...cluster.roles import CHIEF, PS, WORKER
from ..job.container import (
    CHECKPOINTS,
    HEALTH_PORT,
    METRICS_PORT,
    PORT,
    TLS_FOLDER,
    TOKEN_FOLDER,
)
from ..job.model import JobFile
from ..job.plan import KUBERNETES, Place, TaskPlan, plan_task, saves
from ..job.pod_part import PodPart, Spread
from . import pod_options
from .names import Form, claim, matched, secret, service

Json = dict[str, Any]

WORKING_DIR = "/app"

_JOIN_TIMEOUT_S = 600  # images are pulled and names come into DNS while the first tasks wait
_ORPHAN_S = 900  # a Job waits ten minutes at most before it replaces a pod, which then has to start
_STOP_DELAY_S = 5
_SCRAPED = {
    "prometheus.io/scrape": "true",
    "prometheus.io/port": str(METRICS_PORT),
    "prometheus.io/path": "/metrics",
}


def pod_template(job: JobFile, role: str, form: Form = Form.OBJECTS) -> Json:
    """Make the template from which a controller makes pods of a role."""
    plan = _plan(job, role, form)
    pod, kubernetes = job.pod(role), job.kubernetes
    spec: Json = {
        **_of_controller(job, role, form),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": kubernetes.grace_s,
        "securityContext": pod_options.security_context(pod),
        "containers": [_container(job, role, plan, form)],
        "volumes": _volumes(job, role, plan),
    }
    if constraints := _spread(job, role, pod, form):
        spec["topologySpreadConstraints"] = constraints
    if kubernetes.image_pull_secrets:
        spec["imagePullSecrets"] = [
            {"name": name} for name in dict.fromkeys(kubernetes.image_pull_secrets)
        ]
    spec |= pod_options.placement(pod, matched(job.name, role))
    if tolerations := _tolerations(job, role, pod):
        spec["tolerations"] = tolerations
    metadata: Json = {"labels": {**pod.labels, **matched(job.name, role)}}
    if annotations := {**pod.annotations, **(_SCRAPED if job.metrics else {})}:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": spec}


def _of_controller(job: JobFile, role: str, form: Form) -> Json:
    """Set what a StatefulSet says in its own spec, and a JobSet's controller fills in."""
    if form.is_one_object:
        return {"restartPolicy": "Never"}
    by_set = form.is_set(job, role)
    return {} if by_set else {"restartPolicy": "Never", "subdomain": service(job.name)}


def _spread(job: JobFile, role: str, pod: PodPart, form: Form) -> list[Json]:
    """Spread the pods so that a node that goes takes one ps, where there are nodes for them; or as
    the job file says.
    """
    own = matched(job.name, role)
    if pod.spread or role != PS:
        return pod_options.spread(pod.spread, own)
    [constraint] = pod_options.spread([Spread()], own)
    if form.is_one_object:
        return [constraint]
    return [{**constraint, "matchLabelKeys": ["controller-revision-hash"]}]


def _container(job: JobFile, role: str, plan: TaskPlan, form: Form) -> Json:
    command = [*plan.command]
    pod = job.pod(role)
    sources = pod_options.variable_sources(pod)
    container: Json = {
        "name": form.container,
        "image": job.image,
        "command": command[:2],
        **({"args": [_literal(word) for word in command[2:]]} if command[2:] else {}),
        "workingDir": WORKING_DIR,
        **({"envFrom": sources} if sources else {}),
        "env": _environment(plan, pod),
        "ports": [
            {"name": "grpc", "containerPort": PORT},
            {"name": "health", "containerPort": HEALTH_PORT},
            *([{"name": "metrics", "containerPort": METRICS_PORT}] if job.metrics else []),
        ],
        "resources": _resources(plan),
        **pod_options.probes(pod, waits_for_replicas=role == PS and job.settings.ps_replicas > 1),
        # The task writes why it ended; if it could not, the end of its log is shown.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # It works on until proxies and port-forwards have heard that it goes; then SIGTERM.
        "lifecycle": {"preStop": {"sleep": {"seconds": stop_delay_s(job.kubernetes.grace_s)}}},
        "securityContext": pod_options.container_security(pod),
        "volumeMounts": _mounts(job, role, plan),
    }
    if job.kubernetes.image_pull_policy:
        container["imagePullPolicy"] = job.kubernetes.image_pull_policy
    return container


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


def _environment(plan: TaskPlan, pod: PodPart) -> list[Json]:
    """Set what only Kubernetes knows of a pod, the variables of the plan, and those of Secrets."""
    referred = pod_options.variables(pod)
    named = {each["name"] for each in referred}  # each name once: HOME, for instance

    def field(path: str) -> Json:
        return {"valueFrom": {"fieldRef": {"fieldPath": path}}}

    label = "metadata.labels['app.kubernetes.io/{}']"
    return [
        {"name": "ROPEWALK_JOB_ID", **field(label.format("instance"))},
        {"name": "ROPEWALK_ROLE", **field(label.format("component"))},
        {"name": "POD_NAMESPACE", **field("metadata.namespace")},
        *(
            {"name": name, "value": text if name == HOST_TEMPLATE else _literal(text)}
            for name, text in plan.environment.items()
            if name not in named
        ),
        *referred,
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
    return volumes + pod_options.volumes(job.pod(role))


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
    return mounts + pod_options.mounts(job.pod(role))


def _tolerations(job: JobFile, role: str, pod: PodPart) -> list[Json]:
    said = [
        {key: value for key, value in each.model_dump().items() if value}
        for each in pod.tolerations
    ]
    if job.role(role).resources.gpu and not any(t.get("key") == "nvidia.com/gpu" for t in said):
        said.append({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    return said
