"""A job as one object: a JobSet, or a TrainJob with its runtime. Pure.

The controller makes the same Indexed Jobs that a job has as plain objects, a Job of the ps among
them, and the Service. (Of a TrainJob and its runtime Trainer makes a JobSet.) Each Job replaces the
one pod that was lost; a Job that has failed for good fails the set, which ends all pods. So there
is no failure policy of the set: to start it anew would cost every pod what the containers mend in
place (ADR 49).

Source: kubernetes-sigs/jobset v1alpha2; kubeflow/trainer v1alpha1.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ...cluster.roles import EVALUATOR, WORKER
from ..job.model import JobFile
from .gang import queue_labels
from .indexed_job import indexed_job
from .names import RUNTIME_DIGEST, SHARED, labels, service

Json = dict[str, Any]

_TRAINER = "trainer.kubeflow.org"
_ANCESTOR = {f"{_TRAINER}/trainjob-ancestor-step": "trainer"}


def job_set(job: JobFile, templates: Mapping[str, Json]) -> Json:
    """Make the JobSet of a job.

    Args:
        job: The job.
        templates: Pod templates of the roles.
    """
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(job, queue_labels(job)),
        "spec": _spec(job, templates, {}),
    }


def train_job(job: JobFile, templates: Mapping[str, Json]) -> list[Json]:
    """Make the TrainJob of a job, behind its runtime.

    Trainer counts the nodes of the Job that has its label, the workers', and passes Jobs without
    labels over.

    Args:
        job: The job.
        templates: Pod templates of the roles.
    """
    nodes = job.count(WORKER)
    runtime: Json = {
        **({"mlPolicy": {"numNodes": nodes}} if nodes else {}),
        "template": {"spec": _spec(job, templates, {WORKER: _ANCESTOR})},
    }
    digest = hashlib.sha256(json.dumps(runtime, sort_keys=True).encode()).hexdigest()
    annotations = {"annotations": {RUNTIME_DIGEST: digest[:16]}}
    reference = {"apiGroup": _TRAINER, "kind": "TrainingRuntime", "name": job.name}
    version = f"{_TRAINER}/v1alpha1"
    framework = {f"{_TRAINER}/framework": "ropewalk"}
    return [
        {
            "apiVersion": version,
            "kind": "TrainingRuntime",
            "metadata": _metadata(job, framework),
            "spec": runtime,
        },
        {
            "apiVersion": version,
            "kind": "TrainJob",
            "metadata": {**_metadata(job, queue_labels(job)), **annotations},
            "spec": {"runtimeRef": reference},
        },
    ]


def _metadata(job: JobFile, more: Mapping[str, str]) -> Json:
    namespace = {"namespace": job.kubernetes.namespace} if job.kubernetes.namespace else {}
    return {"name": job.name, **namespace, "labels": {**labels(job.name, SHARED), **more}}


def _spec(
    job: JobFile, templates: Mapping[str, Json], more: Mapping[str, Mapping[str, str]]
) -> Json:
    # Over when these are; the others are ended then.
    decisive = [job.leader.type, *([EVALUATOR] if job.count(EVALUATOR) else [])]
    keep_s = job.kubernetes.keep_s
    return {
        "network": {
            "enableDNSHostnames": True,
            "publishNotReadyAddresses": True,
            # As the Service of plain objects is called, so that certificates fit both.
            "subdomain": service(job.name),
        },
        "successPolicy": {"operator": "All", "targetReplicatedJobs": decisive},
        **({"ttlSecondsAfterFinished": keep_s} if keep_s >= 0 else {}),
        "replicatedJobs": [
            _replicated(job, role, template, more.get(role, {}))
            for role, template in templates.items()
        ],
    }


def _replicated(job: JobFile, role: str, template: Json, more: Mapping[str, str]) -> Json:
    spec = indexed_job(job, role, template)
    spec.pop("ttlSecondsAfterFinished", None)  # the set is deleted as a whole
    metadata = {"labels": {**labels(job.name, role), **more}}
    return {"name": role, "replicas": 1, "template": {"metadata": metadata, "spec": spec}}
