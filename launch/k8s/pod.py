"""The pod of a task: how Kubernetes spells its plan, and who may do what in it. Pure."""

from typing import Any

from ...cluster.roles import CHIEF, PS, WORKER
from ..job.model import JobFile
from ..job.plan import KUBERNETES, Place, TaskPlan, plan_task, saves
from .names import (
    CHECKPOINTS,
    CONTAINER,
    HEALTH_PORT,
    METRICS_PORT,
    PORT,
    TLS_FOLDER,
    TOKEN_FOLDER,
    USER,
    claim,
    matched,
    secret,
    service,
)

Json = dict[str, Any]

WORKING_DIR = "/app"

_JOIN_TIMEOUT_S = 600  # images are pulled and names come into DNS while the first tasks wait
_STOP_DELAY_S = 5
_HOST_TEMPLATE = "WINDLASS_HOST_TEMPLATE"


def pod_template(job: JobFile, role: str) -> Json:
    """What a controller makes pods of a role from."""
    of_job = role != PS
    plan = _plan(job, role)
    kubernetes = job.kubernetes
    spec: Json = {
        **({"restartPolicy": "Never", "subdomain": service(job.name)} if of_job else {}),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": kubernetes.grace_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(job, role, plan)],
        "volumes": _volumes(job, role, plan),
    }
    if role == PS:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": matched(job.name, role)},
                "matchLabelKeys": ["controller-revision-hash"],
            }
        ]
    if kubernetes.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in kubernetes.image_pull_secrets]
    if kubernetes.node_selector:
        spec["nodeSelector"] = dict(kubernetes.node_selector)
    if tolerations := _tolerations(job, role):
        spec["tolerations"] = tolerations
    metadata: Json = {"labels": matched(job.name, role)}
    if job.metrics:
        metadata["annotations"] = {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(METRICS_PORT),
            "prometheus.io/path": "/metrics",
        }
    return {"metadata": metadata, "spec": spec}


def _container(job: JobFile, role: str, plan: TaskPlan) -> Json:
    command = [*plan.command]
    container: Json = {
        "name": CONTAINER,
        "image": job.image,
        "command": command[:2],
        **({"args": [_literal(word) for word in command[2:]]} if command[2:] else {}),
        "workingDir": WORKING_DIR,
        "env": _environment(plan),
        "ports": [
            {"name": "grpc", "containerPort": PORT},
            {"name": "health", "containerPort": HEALTH_PORT},
            *([{"name": "metrics", "containerPort": METRICS_PORT}] if job.metrics else []),
        ],
        "resources": _resources(plan),
        # Ready means that the task answers, not that the others are there.
        "startupProbe": {**_asks("startup"), "periodSeconds": 2, "failureThreshold": 150},
        "readinessProbe": {**_asks("readiness"), "periodSeconds": 10, "timeoutSeconds": 5},
        # The kernel accepts it, so a task that computes for long is not killed for it.
        "livenessProbe": {
            "tcpSocket": {"port": "health"},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        # The task writes why it ended; if it could not, the end of its log is shown.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # It works on until proxies and port-forwards have heard that it goes; then SIGTERM.
        "lifecycle": {"preStop": {"sleep": {"seconds": stop_delay_s(job.kubernetes.grace_s)}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _mounts(job, role, plan),
    }
    if job.kubernetes.image_pull_policy:
        container["imagePullPolicy"] = job.kubernetes.image_pull_policy
    return container


def stop_delay_s(grace_s: int) -> int:
    """Seconds from the request to stop to SIGTERM: a small part of the time a pod has to leave."""
    return min(_STOP_DELAY_S, grace_s // 10)


def _asks(what: str) -> Json:
    return {"grpc": {"port": HEALTH_PORT, "service": what}}


def _resources(plan: TaskPlan) -> Json:
    needs = plan.resources
    # The limit of memory is what a ps measures its bounds by. None on processors: see Resources.
    limits: Json = {"memory": needs.memory}
    if needs.gpu:
        limits["nvidia.com/gpu"] = needs.gpu
    return {"requests": {"cpu": needs.cpu, "memory": needs.memory}, "limits": limits}


def _plan(job: JobFile, role: str) -> TaskPlan:
    place = Place(
        checkpoints=CHECKPOINTS,
        tls=TLS_FOLDER,
        token=TOKEN_FOLDER,
        health_port=HEALTH_PORT,
        metrics_port=METRICS_PORT,
        grace_s=job.kubernetes.grace_s,
        join_timeout_s=_JOIN_TIMEOUT_S,
        address={
            "WINDLASS_REPLICAS": job.replicas((CHIEF, PS, WORKER)),
            _HOST_TEMPLATE: "$(WINDLASS_JOB_ID)-{role}-{index}.$(WINDLASS_JOB_ID)-tasks."
            f"$(POD_NAMESPACE).svc:{PORT}",
        },
    )
    return plan_task(job, role, place, KUBERNETES)


def _environment(plan: TaskPlan) -> list[Json]:
    """What only Kubernetes knows of a pod, then the variables of the plan."""

    def field(path: str) -> Json:
        return {"valueFrom": {"fieldRef": {"fieldPath": path}}}

    label = "metadata.labels['app.kubernetes.io/{}']"
    return [
        {"name": "WINDLASS_JOB_ID", **field(label.format("instance"))},
        {"name": "WINDLASS_ROLE", **field(label.format("component"))},
        {"name": "POD_NAMESPACE", **field("metadata.namespace")},
        *(
            {"name": name, "value": text if name == _HOST_TEMPLATE else _literal(text)}
            for name, text in plan.environment.items()
        ),
    ]


def _literal(text: str) -> str:
    """The user's text as it is: Kubernetes puts variables into ``$(NAME)``, and reads ``$$``."""
    return text.replace("$", "$$")


def needs_volume(job: JobFile, role: str) -> bool:
    """Whether the pods of a role mount the checkpoints."""
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


def _tolerations(job: JobFile, role: str) -> list[Json]:
    said = [
        {key: value for key, value in each.model_dump().items() if value}
        for each in job.kubernetes.tolerations
    ]
    if job.role(role).resources.gpu and not any(t.get("key") == "nvidia.com/gpu" for t in said):
        said.append({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    return said
