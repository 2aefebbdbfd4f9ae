"""A job as objects of Kubernetes. Pure: a job in, documents out.

A headless Service, a StatefulSet of ps, an Indexed Job for each other role, and a claim for the
checkpoints. A Job replaces the one pod that was lost. No operator and no definitions of our own;
``deploy/k8s`` has the plain shapes for kustomize.

Or one object in the place of all but the claim: a JobSet, or a TrainJob with its runtime, of which
Trainer makes a JobSet. Its controller makes the same Jobs, one of the ps among them, and the
Service; a Job that has failed for good fails the set, which ends all pods. So there is no failure
policy of the set: to start it anew would cost every pod what the containers mend in place (ADR 49).

Source: kubernetes-sigs/jobset v1alpha2; kubeflow/trainer v1alpha1.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ...cluster.spec import EVALUATOR, PS, WORKER
from ...core.errors import ConfigurationError
from ...core.exit_codes import ExitCode
from ..jobfile.model import JobFile
from ..jobfile.pod_part import PORT
from .code import ShippedCode, config_maps, with_code
from .names import (
    COUNT_IN_FILE,
    RUNTIME_DIGEST,
    SHARED,
    Form,
    claim,
    document,
    labels,
    matched,
    selector,
    service,
    workload,
)
from .pod import needs_volume, pod_template
from .status_objects import account_objects, with_account

# -- All or nothing: what has a cluster admit the pods of a job together. Pure ------------------
# Half of a job holds what it has and does nothing. Kueue admits a group of pods when its quota
# has room for all; a scheduler with PodGroups places all or none. Both are told here by labels
# and annotations of the pods, and an object that counts them. A job that is one object
# (:class:`Form`) is admitted by Kueue as that object.
#
# Source: Kueue, "Run Plain Pods"; scheduler-plugins, "Coscheduling"; Volcano, "PodGroup".

Json = dict[str, Any]

QUEUE_NAME = "kueue.x-k8s.io/queue-name"
KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
_KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
_COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"


def with_gang(template: Json, job: JobFile, form: Form) -> Json:
    """Make a pod template belong to the job's gang, if the job file asks for one."""
    gang = job.kubernetes.gang
    if gang is None:
        return template
    added: dict[str, Json] = {"labels": {}, "annotations": {}}
    match gang.by:
        case "kueue" if not form.is_one_object:
            added["labels"] = {QUEUE_NAME: gang.queue, KUEUE_GROUP: job.name}
            added["annotations"] = {_KUEUE_COUNT: str(len(job.tasks))}
        case "coscheduling":
            added["labels"] = {_COSCHEDULING_GROUP: job.name}
        case "volcano":
            added["annotations"] = {VOLCANO_GROUP: job.name}
    metadata = dict(template["metadata"])
    for key, values in added.items():
        if values:
            metadata[key] = {**metadata.get(key, {}), **values}
    named = {"schedulerName": gang.scheduler_name} if gang.scheduler_name else {}
    return {"metadata": metadata, "spec": {**template["spec"], **named}}


def queue_labels(job: JobFile) -> dict[str, str]:
    """Make the labels by which Kueue admits the one object of a job."""
    gang = job.kubernetes.gang
    return {QUEUE_NAME: gang.queue} if gang and gang.by == "kueue" else {}


def pod_groups(job: JobFile) -> list[Json]:
    """Make the PodGroup of a job, for the schedulers that go by one."""
    gang = job.kubernetes.gang
    if gang is None:
        return []
    count = len(job.tasks)
    match gang.by:
        case "coscheduling":
            version = "scheduling.x-k8s.io/v1alpha1"
            spec: Json = {"minMember": count, "scheduleTimeoutSeconds": gang.patience_s}
        case "volcano":
            version = "scheduling.volcano.sh/v1beta1"
            spec = {"minMember": count, **({"queue": gang.queue} if gang.queue else {})}
        case _:
            return []
    return [document(job, version, "PodGroup", job.name, SHARED, spec=spec)]


def gang_of(workers: Json) -> str:
    """Name who admits the pods of a Job as a gang, for people; empty: it has none.

    Args:
        workers: The Job as the API has it.
    """
    metadata = ((workers.get("spec") or {}).get("template") or {}).get("metadata") or {}
    found = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    named = {
        KUEUE_GROUP: "Kueue",
        _COSCHEDULING_GROUP: "coscheduling",
        VOLCANO_GROUP: "Volcano",
    }
    return next((who for key, who in named.items() if key in found), "")


_PERMANENT = list(range(1, 128))  # docs/exit-codes.md: a restart would fail again
_TRAINER = "trainer.kubeflow.org"
_ANCESTOR = {f"{_TRAINER}/trainjob-ancestor-step": "trainer"}


def manifests(
    job: JobFile, form: Form = Form.OBJECTS, code: ShippedCode | None = None
) -> list[Json]:
    """Make every object of a job, in the order in which they are applied.

    Args:
        job: The job.
        form: Form of the job's objects.
        code: Code of the job, if that is not in the image.

    Raises:
        ConfigurationError: The job has no image, or cannot have this form.
    """
    job.require_image(
        "Kubernetes", "the program (or, with --code, Ropewalk and what the program imports)"
    )
    if job.kubernetes.at_once and form.is_one_object:
        raise ConfigurationError(
            f"kubernetes.lost_pods: at-once takes StatefulSets, which a {form.value} has not; take "
            "it away, or leave --as away",
            field="kubernetes.lost_pods",
        )
    templates = {role: _template(job, role, form, code) for role, _ in job.present}
    has_claim = not job.storage.claim and any(needs_volume(job, role) for role in templates)
    shared = [
        *(config_maps(job, code) if code else []),
        *account_objects(job, form),
        *([_claim(job)] if has_claim else []),
        *pod_groups(job),
        *_budget(job, form),
    ]
    match form:
        case Form.JOBSET:
            return [*shared, job_set(job, templates)]
        case Form.TRAINJOB:
            return [*shared, *train_job(job, templates)]
    controllers = [_controller(job, *each) for each in templates.items()]
    return [*shared, _service(job), *controllers]


def _template(job: JobFile, role: str, form: Form, code: ShippedCode | None) -> Json:
    """Make the pod template of a role: what every pod has, and what this job's have beside it."""
    template = pod_template(job, role, form)
    if code:
        template = with_code(template, code)
    if role == job.leader.type:
        template = with_account(template, job, form)
    return with_gang(template, job, form)


def _claim(job: JobFile) -> Json:
    storage = job.storage
    spec: Json = {
        "accessModes": [storage.access],
        "resources": {"requests": {"storage": storage.size}},
    }
    if storage.storage_class:
        spec["storageClassName"] = storage.storage_class
    return document(job, "v1", "PersistentVolumeClaim", claim(job), SHARED, spec=spec)


def _budget(job: JobFile, form: Form) -> list[Json]:
    """Let one ps leave after the other where nodes are drained: each hands over what it has.

    Of pods of a Job, which has no scale, Kubernetes takes only how many are to stay.
    """
    if not (job.settings.shares_move and job.count(PS)):
        return []
    bound = {"minAvailable": job.count(PS) - 1} if form.is_one_object else {"maxUnavailable": 1}
    spec: Json = {
        **bound,
        # One that does not run is in nobody's way.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": matched(job.name, PS)},
    }
    name = workload(job.name, PS)
    return [document(job, "policy/v1", "PodDisruptionBudget", name, PS, spec=spec)]


def _service(job: JobFile) -> Json:
    spec = {
        "clusterIP": "None",
        # Tasks look for each other before any of them is ready.
        "publishNotReadyAddresses": True,
        "selector": selector(job.name),
        "ports": [{"name": "grpc", "port": PORT, "targetPort": "grpc", "appProtocol": "tcp"}],
    }
    return document(job, "v1", "Service", service(job.name), SHARED, spec=spec)


def _controller(job: JobFile, role: str, template: Json) -> Json:
    """Make the StatefulSet or Job of a role."""
    by_set = Form.OBJECTS.is_set(job, role)
    kind, version = ("StatefulSet", "apps/v1") if by_set else ("Job", "batch/v1")
    spec = _stateful_set(job, role, template) if by_set else indexed_job(job, role, template)
    made = document(job, version, kind, workload(job.name, role), role, spec=spec)
    if role == WORKER or (role == PS and job.settings.ps_shares):
        made["metadata"]["annotations"] = {COUNT_IN_FILE: str(job.count(role))}
    return made


def _stateful_set(job: JobFile, role: str, template: Json) -> Json:
    return {
        "replicas": job.count(role),
        "serviceName": service(job.name),
        # OrderedReady would have the second wait for the first.
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": matched(job.name, role)},
        "template": template,
    }


# -- Jobs ------------------------------------------------------------------------------------------


def indexed_job(job: JobFile, role: str, template: Json) -> Json:
    """Make the spec of a role's Job.

    Args:
        job: The job.
        role: The role.
        template: Template of its pods.
    """
    count = job.count(role)
    (container,) = template["spec"]["containers"]
    return {
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
                _on_exit("Ignore", container, [int(ExitCode.DRAINED)]),
                _on_exit("FailIndex", container, _final_codes(job)),
            ]
        },
        "template": template,
    }


def _final_codes(job: JobFile) -> list[int]:
    """Exit codes that a new pod does not mend."""
    gang = job.kubernetes.gang
    late = [int(ExitCode.JOIN_TIMEOUT)] if gang and gang.by == "chief" else []
    return [*_PERMANENT, *late]


def _times(job: JobFile) -> Json:
    """Set when a Job is ended, and when one that has ended is deleted, if the job file says so."""
    kubernetes = job.kubernetes
    deadline = {"activeDeadlineSeconds": kubernetes.deadline_s} if kubernetes.deadline_s else {}
    keep = {"ttlSecondsAfterFinished": kubernetes.keep_s} if kubernetes.keep_s >= 0 else {}
    return {**deadline, **keep}


def _on_exit(action: str, container: Json, values: list[int]) -> Json:
    codes = {"containerName": container["name"], "operator": "In", "values": values}
    return {"action": action, "onExitCodes": codes}


# -- one object ------------------------------------------------------------------------------------


def job_set(job: JobFile, templates: Mapping[str, Json]) -> Json:
    """Make the JobSet of a job.

    Args:
        job: The job.
        templates: Pod templates of the roles.
    """
    spec = _spec(job, templates, {})
    return _one_object(job, "jobset.x-k8s.io/v1alpha2", "JobSet", spec, queue_labels(job))


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
    reference = {"apiGroup": _TRAINER, "kind": "TrainingRuntime", "name": job.name}
    version, framework = f"{_TRAINER}/v1alpha1", {f"{_TRAINER}/framework": "ropewalk"}
    made = _one_object(job, version, "TrainJob", {"runtimeRef": reference}, queue_labels(job))
    made["metadata"]["annotations"] = {RUNTIME_DIGEST: digest[:16]}
    return [_one_object(job, version, "TrainingRuntime", runtime, framework), made]


def _one_object(job: JobFile, version: str, kind: str, spec: Json, more: Mapping[str, str]) -> Json:
    made = document(job, version, kind, job.name, SHARED, spec=spec)
    made["metadata"]["labels"] |= more
    return made


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
