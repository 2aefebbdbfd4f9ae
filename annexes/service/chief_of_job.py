"""A standalone cluster, as commands reach and show it: its gateway, jobs, and a job's chief."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext

import click
from rich.table import Table

from ...cluster.spec import CHIEF
from ...core.errors import ConfigurationError
from ...core.exit_codes import describe_exit
from ...core.settings import CLUSTER_VARIABLE, Settings
from ...launch.found_job import ListedJob
from ...launch.options import driver
from ...launch.screen.display import new_table
from .calls import GatewayClient, JobView, NodeView, routes_to


def cluster_client(address: str, settings: Settings) -> closing[GatewayClient]:
    """Open a client of the gateway of a standing cluster, until the block ends."""
    return closing(GatewayClient(address, settings, driver(settings)))


cluster_option = click.option(
    "--cluster",
    required=True,
    envvar=CLUSTER_VARIABLE,
    metavar="HOST:PORT",
    help=f"The chief of the cluster; also in {CLUSTER_VARIABLE}.",
)


# -- Jobs and nodes of a standalone cluster, as tables ------------------------------------------


def jobs_table(jobs: Sequence[JobView]) -> Table:
    """Make a table of all jobs, the oldest first."""
    table = new_table("job", "state", "tasks", "began", "took", "exit", "owner", "why")
    for job in jobs:
        running = sum(code is None for code in job.tasks.values())
        took_s = (job.ended or time.time()) - job.started if job.started else 0.0
        table.add_row(
            job.id,
            job.state,
            f"{running} of {len(job.tasks)}" if job.tasks else "",
            time.strftime("%H:%M:%S", time.localtime(job.started)) if job.started else "",
            f"{took_s:.0f} s" if job.started else "",
            str(job.exit_code) if job.has_ended else "",
            job.owner,
            job.reason,
        )
    return table


def how_it_stands(job: JobView) -> str:
    """Write a sentence such as ``train-3f2a1c ended at 12:30:05 with 0: the task's work is
    complete``.
    """
    if not job.has_ended:
        return f"{job.id} is {job.state}" + (f": {job.reason}" if job.reason else "")
    at = time.strftime("%H:%M:%S", time.localtime(job.ended))
    why = job.reason or describe_exit(job.exit_code)
    return f"{job.id} ended at {at} with {job.exit_code}: {why}"


def nodes_table(nodes: Sequence[NodeView]) -> Table:
    """Make a table of all nodes."""
    table = new_table("node", "host", "tasks", "GPUs", "state")
    for node in sorted(nodes, key=lambda each: (each.task.type, each.task.index)):
        state = "lost" if node.is_lost else "there"
        table.add_row(node.task.short, node.host, str(node.running), str(node.gpus or ""), state)
    return table


def result_table(job: JobView) -> Table:
    """Make a table of how each task of a job ended."""
    table = new_table("task", "node", "exit", "meaning")
    for task, code in job.tasks.items():
        shown = "" if code is None else str(code)
        meaning = "it runs" if code is None else describe_exit(code)
        table.add_row(task.short, job.nodes[task].short, shown, meaning)
    return table


class GatewayJobs:
    """The jobs of a cluster. See :class:`~ropewalk.launch.found_job.ClusterJobs`.

    Args:
        client: Asks the gateway.
        by_routes: Whether tasks are reached through the gateway, as from machines outside.
    """

    def __init__(self, client: GatewayClient, *, by_routes: bool = True) -> None:
        self.where = client.address
        self._client = client
        self._by_routes = by_routes

    def jobs(self) -> list[ListedJob]:
        """List all jobs that the gateway still knows, the oldest first."""
        return [_listed(job) for job in self._client.jobs()[0]]

    @contextmanager
    def way_to(self, job: str) -> Iterator[str]:
        """Open the way to the chief of a job, until the block ends; gives its address."""
        job_view = self._client.follow(job, 0, wait_s=0, drives=False).job
        if CHIEF not in job_view.cluster or job_view.has_ended:
            raise ConfigurationError(f"{how_it_stands(job_view)}: it has no chief to ask")
        with routes_to(self._client, job_view) if self._by_routes else nullcontext():
            yield job_view.cluster[CHIEF][0]


def _listed(job: JobView) -> ListedJob:
    running = sum(code is None for code in job.tasks.values())
    return ListedJob(
        job.id,
        job.state,
        f"{running} of {len(job.tasks)}" if job.tasks else "",
        job.owner,
        job.started,
        job.ended,
        job.reason or (describe_exit(job.exit_code) if job.has_ended else ""),
        job.model_dir,
    )


@contextmanager
def jobs_of_cluster(cluster: str, settings: Settings) -> Iterator[GatewayJobs]:
    """Open a cluster for a look at its jobs, from outside, until the block ends.

    Args:
        cluster: Address of its gateway, host:port.
        settings: Credentials and deadlines.
    """
    with cluster_client(cluster, settings) as client:
        yield GatewayJobs(client)


@contextmanager
def chief_of_job(job: str, cluster: str, settings: Settings) -> Iterator[tuple[GatewayClient, str]]:
    """Open the cluster's gateway, and the way to the chief of a job, until the block ends.

    Args:
        job: Id or name of the job.
        cluster: Address of the cluster's chief, host:port.
        settings: Credentials and deadlines.

    Raises:
        ConfigurationError: The job has no chief: it waits for its nodes, or has ended.
        RefusedError: There is no such job.
    """
    with cluster_client(cluster, settings) as client, GatewayJobs(client).way_to(job) as address:
        yield client, address
