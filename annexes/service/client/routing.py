"""Reaching the tasks of a job through the gateway of its cluster."""

from contextlib import AbstractContextManager

from ....core.errors import RopewalkError
from ....core.task import TaskId
from ....net.routes import open_routes, through_gateway
from ....net.sockets import Connect
from .calls import GatewayClient, JobView


def routes_to(client: GatewayClient, job: JobView) -> AbstractContextManager[None]:
    """Reach every task of a job by its own address, for as long as the block runs."""
    return open_routes(
        {
            job.cluster[task.type][task.index]: _way_to(client, job.id, task)
            for task in job.tasks
            if task.index < len(job.cluster.get(task.type, ()))
        }
    )


def _way_to(client: GatewayClient, job: str, task: TaskId) -> Connect:
    def ask_ticket(timeout_s: float) -> bytes:
        try:
            return client.open_route(job, task, timeout_s)
        except RopewalkError as error:
            raise ConnectionError(error.message) from error

    return through_gateway(client.address, ask_ticket)
