"""All or nothing: what has a cluster admit the pods of a job together. Pure.

Half of a job holds what it has and does nothing. Kueue admits a group of pods when its quota has
room for all; a scheduler with PodGroups places all or none. Both are told here by labels and
annotations of the pods, and an object that counts them. A job that is one object (:class:`Form`) is
admitted by Kueue as that object.

Source: Kueue, "Run Plain Pods"; scheduler-plugins, "Coscheduling"; Volcano, "PodGroup".
"""

from typing import Any

from ..jobfile.model import JobFile
from .names import SHARED, Form, document

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
