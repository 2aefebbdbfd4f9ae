"""The pod of a task: environment, container, volumes, and who may do what in it. Pure."""

from typing import Any

from ...cluster.roles import CHIEF, EVALUATOR, PS, WORKER
from ..job.credentials import credential_variables
from ..job.model import Job
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
_SAVES = (CHIEF, PS, EVALUATOR)


def pod_template(job: Job, role: str) -> Json:
    """What a controller makes pods of a role from."""
    of_job = role != PS
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
        "containers": [_container(job, role)],
        "volumes": _volumes(job, role),
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


def _container(job: Job, role: str) -> Json:
    command = job.command(role)
    container: Json = {
        "name": CONTAINER,
        "image": job.image,
        "command": command[:2],
        **({"args": [_literal(word) for word in command[2:]]} if command[2:] else {}),
        "workingDir": WORKING_DIR,
        "env": _environment(job, role),
        "ports": [
            {"name": "grpc", "containerPort": PORT},
            {"name": "health", "containerPort": HEALTH_PORT},
            *([{"name": "metrics", "containerPort": METRICS_PORT}] if job.metrics else []),
        ],
        "resources": _resources(job, role),
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
        # It works on until proxies and port-forwards have heard that it goes; then SIGTERM.
        "lifecycle": {"preStop": {"sleep": {"seconds": stop_delay_s(job.kubernetes.grace_s)}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _mounts(job, role),
    }
    if job.kubernetes.image_pull_policy:
        container["imagePullPolicy"] = job.kubernetes.image_pull_policy
    return container


def stop_delay_s(grace_s: int) -> int:
    """Seconds from the request to stop to SIGTERM: a small part of the time a pod has to leave."""
    return min(_STOP_DELAY_S, grace_s // 10)


def _asks(what: str) -> Json:
    return {"grpc": {"port": HEALTH_PORT, "service": what}}


def _resources(job: Job, role: str) -> Json:
    needs = job.role(role).resources
    # The limit of memory is what a ps measures its bounds by. None on processors: see Resources.
    limits: Json = {"memory": needs.memory}
    if needs.gpu:
        limits["nvidia.com/gpu"] = needs.gpu
    return {"requests": {"cpu": needs.cpu, "memory": needs.memory}, "limits": limits}


def model_dir(job: Job) -> str:
    """Where checkpoints go."""
    return job.storage.model_dir or f"{CHECKPOINTS}/{job.name}"


def _environment(job: Job, role: str) -> list[Json]:
    """The variables of Windlass, which are equal in all roles but for two, then the user's."""

    def field(path: str) -> Json:
        return {"valueFrom": {"fieldRef": {"fieldPath": path}}}

    label = "metadata.labels['app.kubernetes.io/{}']"
    said: list[Json] = [
        {"name": "WINDLASS_JOB_ID", **field(label.format("instance"))},
        {"name": "WINDLASS_ROLE", **field(label.format("component"))},
        {"name": "POD_NAMESPACE", **field("metadata.namespace")},
    ]
    values = {
        "WINDLASS_REPLICAS": job.replicas((CHIEF, PS, WORKER)),
        "WINDLASS_HOST_TEMPLATE": "$(WINDLASS_JOB_ID)-{role}-{index}.$(WINDLASS_JOB_ID)-tasks."
        f"$(POD_NAMESPACE).svc:{PORT}",
        "WINDLASS_HEALTH_PORT": str(HEALTH_PORT),
        **({"WINDLASS_METRICS_PORT": str(METRICS_PORT)} if job.metrics else {}),
        "WINDLASS_JOIN_TIMEOUT_S": str(_JOIN_TIMEOUT_S),
        # A ps that is asked to end waits so long for the checkpoint; below the grace period.
        "WINDLASS_LEAVE_GRACE_S": str(job.kubernetes.grace_s * 3 // 4),
    }
    if role == CHIEF and job.count(WORKER):
        # Its program begins when they have joined: a short job is not over before they start.
        values["WINDLASS_WAIT_FOR_WORKERS"] = str(job.count(WORKER))
    if role == PS:
        # A StatefulSet starts it again when the job is over; that one waits to be deleted.
        values["WINDLASS_STAY_WITHOUT_CHIEF"] = "true"
    if role in _SAVES or not job.count(CHIEF):
        values["WINDLASS_MODEL_DIR"] = _literal(model_dir(job))
    values["HOME"] = "/tmp"  # noqa: S108 - a volume of the pod's own
    values |= credential_variables(job, TLS_FOLDER, TOKEN_FOLDER)
    if job.role(role).resources.gpu:
        values["CUPY_CACHE_DIR"] = "/tmp/cupy"  # noqa: S108 - a volume of the pod's own
    users = {name: _literal(text) for name, text in job.environment_of(role).items()}
    return [*said, *({"name": name, "value": text} for name, text in (values | users).items())]


def _literal(text: str) -> str:
    """The user's text as it is: Kubernetes puts variables into ``$(NAME)``, and reads ``$$``."""
    return text.replace("$", "$$")


def needs_volume(job: Job, role: str) -> bool:
    """Whether the pods of a role mount the checkpoints."""
    return not job.storage.is_url and (role in _SAVES or not job.count(CHIEF))


def _volumes(job: Job, role: str) -> list[Json]:
    volumes: list[Json] = [{"name": "tmp", "emptyDir": {}}]
    if needs_volume(job, role):
        volumes.append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim(job)}})
    if job.role(role).resources.gpu:
        # Data loaders hand batches over here; it counts as the container's memory.
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}})
    volumes += [
        {"name": kind, "secret": {"secretName": secret(job, role, kind), "defaultMode": 0o440}}
        for kind in _secrets(job)
    ]
    return volumes


def _mounts(job: Job, role: str) -> list[Json]:
    mounts: list[Json] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    if needs_volume(job, role):
        where = CHECKPOINTS if not job.storage.model_dir else job.storage.model_dir
        mounts.append({"name": "checkpoints", "mountPath": where})
    if job.role(role).resources.gpu:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
    folders = {"tls": TLS_FOLDER, "token": TOKEN_FOLDER}
    # Whole folders: a file mounted by subPath is never renewed.
    mounts += [
        {"name": kind, "mountPath": folders[kind], "readOnly": True} for kind in _secrets(job)
    ]
    return mounts


def _secrets(job: Job) -> list[str]:
    return {"insecure": [], "mtls": ["tls"], "token": ["tls", "token"]}[job.security.mode]


def _tolerations(job: Job, role: str) -> list[Json]:
    said = [
        {key: value for key, value in each.model_dump().items() if value}
        for each in job.kubernetes.tolerations
    ]
    if job.role(role).resources.gpu and not any(t.get("key") == "nvidia.com/gpu" for t in said):
        said.append({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    return said
