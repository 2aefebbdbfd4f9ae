"""The part of ``ropewalk k8s`` that talks to Kubernetes, connected to a server of a test."""

from typing import Any

from helpers.kubernetes.cluster import KubernetesCluster
from helpers.late import Late
from ropewalk.annexes.kubernetes.api import KubernetesApi

client = Late("kubernetes.client")
SELECTOR = "app.kubernetes.io/name=ropewalk,app.kubernetes.io/instance=digits"


def connected(cluster: KubernetesCluster, **arguments: Any) -> KubernetesApi:
    """A client of this server, in the namespace ``train``."""
    settings = client.Configuration(host=cluster.url)
    settings.retries = 0
    return KubernetesApi(client.ApiClient(settings), "train", **arguments)


def completions(cluster: KubernetesCluster) -> int:
    """Of the workers' Job, which are also its parallelism."""
    job = cluster.get("Job", "digits-worker")
    assert job is not None
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    return int(job["spec"]["completions"])
