"""Pods as the Kubernetes API lists them, by who makes them.

The form is that of ``kubectl get pods -o json`` (API v1, 1.36): names, labels, host names and
subdomains as the controllers of Kubernetes set them (Indexed Job, StatefulSet), JobSet (labels
``jobset.sigs.k8s.io/…``, pod names ``<jobset>-<replicatedJob>-<job>-<pod>-<random>``) and the
Kubeflow training operator (labels ``training.kubeflow.org/…``); statuses as the kubelet and the
scheduler write them.
"""

from typing import Any

Listed = dict[str, Any]

# -- statuses ----------------------------------------------------------------------------------


def running(ip: str) -> Listed:
    return {
        "phase": "Running",
        "hostIP": "192.168.1.7",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [
            {"name": "tensorflow", "state": {"running": {"startedAt": "2026-11-20T10:00:03Z"}}}
        ],
    }


def unschedulable() -> Listed:
    return {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            }
        ],
    }


def pulling(reason: str = "ImagePullBackOff") -> Listed:
    return {
        "phase": "Pending",
        "hostIP": "192.168.1.7",
        "podIP": "10.244.0.99",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "ContainersReady", "status": "False", "reason": "ContainersNotReady"},
        ],
        "containerStatuses": [
            {
                "name": "tensorflow",
                "state": {
                    "waiting": {
                        "reason": reason,
                        "message": 'Back-off pulling image "train:typo"',
                    }
                },
            }
        ],
    }


def killed() -> Listed:
    return {
        "phase": "Failed",
        "hostIP": "192.168.1.7",
        "podIP": "10.244.0.98",
        "containerStatuses": [
            {
                "name": "tensorflow",
                "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            }
        ],
    }


def evicted() -> Listed:
    return {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory.",
    }


# -- pods --------------------------------------------------------------------------------------


def pod(name: str, status: Listed, **metadata: Any) -> Listed:
    """A pod of nobody."""
    return {
        "metadata": {
            "name": name,
            "namespace": "train",
            "creationTimestamp": "2026-11-20T10:00:00Z",
            **metadata,
        },
        "spec": {"containers": [{"name": "tensorflow"}]},
        "status": status,
    }


def _owned(kind: str, name: str) -> list[Listed]:
    return [{"apiVersion": "v1", "kind": kind, "name": name, "uid": "0", "controller": True}]


def of_stateful_set(name: str, index: int, status: Listed, *, labelled: bool = True) -> Listed:
    """With its headless Service; ``labelled``: of Kubernetes 1.28 or later."""
    labels = {"app": "mnist", "role": name, "app.kubernetes.io/component": name}
    if labelled:
        labels["apps.kubernetes.io/pod-index"] = str(index)
    made = pod(
        f"{name}-{index}", status, labels=labels, ownerReferences=_owned("StatefulSet", name)
    )
    made["spec"] |= {"hostname": f"{name}-{index}", "subdomain": name}
    return made


def of_indexed_job(job: str, index: int, status: Listed, tail: str = "x7k2p") -> Listed:
    """Without a subdomain: no name in DNS."""
    made = pod(
        f"{job}-{index}-{tail}",
        status,
        labels={
            "app": "mnist",
            "job-name": job,
            "batch.kubernetes.io/job-name": job,
            "batch.kubernetes.io/job-completion-index": str(index),
        },
        ownerReferences=_owned("Job", job),
    )
    made["spec"] |= {"hostname": f"{job}-{index}"}
    return made


def of_job_set(role: str, job: int, index: int, status: Listed) -> Listed:
    """One pod of ``<jobset>-<role>-<job>``, an Indexed Job of the JobSet ``mnist``."""
    full = f"mnist-{role}-{job}"
    made = of_indexed_job(full, index, status)
    made["metadata"]["labels"] |= {
        "jobset.sigs.k8s.io/jobset-name": "mnist",
        "jobset.sigs.k8s.io/replicatedjob-name": role,
        "jobset.sigs.k8s.io/job-index": str(job),
    }
    made["spec"] |= {"subdomain": "mnist"}
    return made


def of_tf_job(kind: str, index: int, status: Listed) -> Listed:
    """A replica of the TFJob ``mnist``; its Service is per pod, and the pod has no subdomain."""
    return pod(
        f"mnist-{kind}-{index}",
        status,
        labels={
            "training.kubeflow.org/job-name": "mnist",
            "training.kubeflow.org/operator-name": "tfjob-controller",
            "training.kubeflow.org/replica-index": str(index),
            "training.kubeflow.org/replica-type": kind,
        },
        ownerReferences=_owned("TFJob", "mnist"),
    )
