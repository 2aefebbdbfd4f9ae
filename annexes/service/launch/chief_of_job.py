"""Reaching the chief of a job of a standalone cluster."""

from collections.abc import Iterator
from contextlib import contextmanager

from ....cluster.roles import CHIEF
from ....core.errors import ConfigurationError
from ....core.settings import Settings
from ..client.calls import GatewayClient
from ..client.routing import routes_to
from .cluster_client import cluster_client
from .tables import how_it_stands


@contextmanager
def chief_of_job(job: str, cluster: str, settings: Settings) -> Iterator[tuple[GatewayClient, str]]:
    """Open the cluster's gateway, and find the address of the job's chief, which is reached through
    it.

    Args:
        job: Id or name of the job.
        cluster: Address of the cluster's chief, host:port.
        settings: Credentials and deadlines.

    Raises:
        ConfigurationError: The job has no chief: it waits for its nodes, or has ended.
        RefusedError: There is no such job.
    """
    with cluster_client(cluster, settings) as client:
        job_view = client.follow(job, 0, wait_s=0, drives=False).job
        if CHIEF not in job_view.cluster or job_view.has_ended:
            raise ConfigurationError(f"{how_it_stands(job_view)}: it has no chief to ask")
        with routes_to(client, job_view):
            yield client, job_view.cluster[CHIEF][0]
