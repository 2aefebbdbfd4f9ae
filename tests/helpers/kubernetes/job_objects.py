"""Objects of the job ``digits`` as controllers, kubelet and scheduler make and change them."""

from typing import Any

from helpers.jobfile import digits
from helpers.kubernetes.cluster import KubernetesCluster
from helpers.kubernetes.pod_listings import Listed
from ropewalk.annexes.jobfile.model import JobFile
from ropewalk.annexes.kubernetes.manifests import manifests

CREATED = "2026-11-20T10:00:00Z"


def started(cluster: KubernetesCluster, job: JobFile | None = None) -> None:
    """The job is applied; no pods yet."""
    for each in manifests(job or digits()):
        cluster.put(each["kind"], each)


def task_pod(role: str, index: int, status: Listed, *, tail: str = "x7k2p", **more: Any) -> Listed:
    """A pod of a task, with the labels of its template and of its controller."""
    of_job = role != "ps"
    name = f"digits-{role}-{index}" + (f"-{tail}" if of_job else "")
    key = "batch.kubernetes.io/job-completion-index" if of_job else "apps.kubernetes.io/pod-index"
    owner = {"kind": "Job" if of_job else "StatefulSet", "controller": True}
    return {
        "metadata": {
            "name": name,
            "namespace": "train",
            "creationTimestamp": CREATED,
            "labels": {
                "app.kubernetes.io/name": "ropewalk",
                "app.kubernetes.io/instance": "digits",
                "app.kubernetes.io/component": role,
                key: str(index),
            },
            "ownerReferences": [owner],
            **more,
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [
                {
                    "name": "ropewalk",
                    "image": "ropewalk-digits:0.1.0",
                    "resources": {"limits": {"memory": "1Gi"}},
                }
            ],
        },
        "status": status,
    }


def ready(restarts: int = 0, last: Listed | None = None) -> Listed:
    container: Listed = {"name": "ropewalk", "state": {"running": {}}, "restartCount": restarts}
    if last:
        container["lastState"] = {"terminated": last}
    return {
        "phase": "Running",
        "podIP": "10.244.0.9",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [container],
    }


def ended(code: int, reason: str = "") -> Listed:
    terminated = {"exitCode": code, "reason": reason or ("Completed" if not code else "Error")}
    return {
        "phase": "Succeeded" if not code else "Failed",
        "containerStatuses": [{"name": "ropewalk", "state": {"terminated": terminated}}],
    }


def finish(cluster: KubernetesCluster, role: str, kind: str = "Complete", **more: str) -> None:
    """The Job of a role ends."""
    job = cluster.get("Job", f"digits-{role}")
    assert job is not None
    condition = {"type": kind, "status": "True", **more}
    cluster.put("Job", {**job, "status": {"conditions": [condition]}})


def event(kind: str, name: str, reason: str, message: str, at: str = CREATED) -> Listed:
    return {
        "metadata": {"name": f"{name}.{reason}.{at}", "namespace": "train"},
        "involvedObject": {"kind": kind, "name": name},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
    }
