"""A job as objects of Kubernetes. Pure: a job in, documents out.

A headless Service, a StatefulSet of ps, an Indexed Job for each other role, and a claim for the
checkpoints. No operator and no definitions of our own; ``deploy/k8s`` has the same shapes for
kustomize.
"""

from typing import Any

from ...cluster.roles import PS, WORKER
from ...core.errors import ConfigurationError
from ...core.exit_codes import ExitCode
from ..job.model import JobFile
from .code import ShippedCode, config_maps, with_code
from .names import (
    CONTAINER,
    COUNT_IN_FILE,
    PORT,
    SHARED,
    claim,
    labels,
    matched,
    selector,
    service,
    workload,
)
from .pod import needs_volume, pod_template
from .status_objects import with_status

Json = dict[str, Any]

_PERMANENT = list(range(1, 128))  # docs/exit-codes.md: a restart would fail again


def manifests(job: JobFile, code: ShippedCode | None = None) -> list[Json]:
    """Every object of a job, in the order in which they are applied.

    Args:
        job: The job.
        code: Its code, if that is not in the image.

    Raises:
        ConfigurationError: The job has no image.
    """
    if not job.image:
        raise ConfigurationError(
            "the job file has no `image`: Kubernetes starts containers; name the image that holds "
            "Windlass and the program",
            field="image",
        )
    objects = config_maps(job, code) if code else []
    if not job.storage.claim and any(needs_volume(job, role) for role, _ in job.present):
        objects.append(_claim(job))
    objects.append(_service(job))
    for role, _ in job.present:
        objects.append(_stateful_set(job, code) if role == PS else _indexed_job(job, role, code))
    return with_status(job, objects)


def _metadata(job: JobFile, name: str, component: str) -> Json:
    namespace = {"namespace": job.kubernetes.namespace} if job.kubernetes.namespace else {}
    return {"name": name, **namespace, "labels": labels(job.name, component)}


def _claim(job: JobFile) -> Json:
    storage = job.storage
    spec: Json = {
        "accessModes": [storage.access],
        "resources": {"requests": {"storage": storage.size}},
    }
    if storage.storage_class:
        spec["storageClassName"] = storage.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(job, claim(job), SHARED),
        "spec": spec,
    }


def _service(job: JobFile) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, service(job.name), SHARED),
        "spec": {
            "clusterIP": "None",
            # Tasks look for each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": selector(job.name),
            "ports": [{"name": "grpc", "port": PORT, "targetPort": "grpc", "appProtocol": "tcp"}],
        },
    }


def _stateful_set(job: JobFile, code: ShippedCode | None) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(job, workload(job.name, PS), PS),
        "spec": {
            "replicas": job.count(PS),
            "serviceName": service(job.name),
            # OrderedReady would have the second wait for the first.
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": matched(job.name, PS)},
            "template": _template(job, PS, code),
        },
    }


def _indexed_job(job: JobFile, role: str, code: ShippedCode | None) -> Json:
    count = job.count(role)
    metadata = _metadata(job, workload(job.name, role), role)
    if role == WORKER:
        metadata["annotations"] = {COUNT_IN_FILE: str(count)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "backoffLimitPerIndex": job.kubernetes.retries,
            "maxFailedIndexes": 0,
            "podReplacementPolicy": "Failed",
            **_times(job),
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                    # It was asked to stop: its pod was deleted, or its node drained.
                    {"action": "Ignore", "onExitCodes": _codes([int(ExitCode.DRAINED)])},
                    {"action": "FailIndex", "onExitCodes": _codes(_PERMANENT)},
                ]
            },
            "template": _template(job, role, code),
        },
    }


def _template(job: JobFile, role: str, code: ShippedCode | None) -> Json:
    template = pod_template(job, role)
    return with_code(template, code) if code else template


def _times(job: JobFile) -> Json:
    """When a Job is ended, and when one that has ended is deleted, if the job file says so."""
    kubernetes = job.kubernetes
    deadline = {"activeDeadlineSeconds": kubernetes.deadline_s} if kubernetes.deadline_s else {}
    keep = {"ttlSecondsAfterFinished": kubernetes.keep_s} if kubernetes.keep_s >= 0 else {}
    return {**deadline, **keep}


def _codes(values: list[int]) -> Json:
    return {"containerName": CONTAINER, "operator": "In", "values": values}
