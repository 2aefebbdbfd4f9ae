"""``ropewalk scale``: has a running job have more or fewer ps, and waits until it does."""

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from ...cluster.roles import PS
from ...core import annexes
from ...core.errors import ConfigurationError, PeerLostError
from ...core.settings import CLUSTER_VARIABLE, read_environment
from ...core.states import State
from ...launch.as_driver import chief_client
from ...launch.options.settings import caller_options, refuse_said, take_settings
from ...launch.screen.echo import echo

if TYPE_CHECKING:
    from ...client.chief.calls import ChiefClient, JobStatus

_LOOK_S = 0.1
_ANSWER_S = 5.0


@click.command("scale")
@click.argument("job", metavar="HOST:PORT|JOB")
@click.option("--ps", type=click.IntRange(1), required=True, help="How many ps it is to have.")
@click.option(
    "--cluster",
    metavar="HOST:PORT",
    help="The chief of a standalone cluster, of which JOB is a job. A JOB that is no address is "
    f"looked for at the cluster of {CLUSTER_VARIABLE}.",
)
@click.option("--wait/--no-wait", default=True, help="Wait until it has.  [default: wait]")
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="How long to wait.",
)
@caller_options
def scale_command(
    job: str, cluster: str | None, ps: int, wait: bool, timeout_s: float, **flags: Any
) -> None:
    """Have a job with ps_shares have more or fewer ps: that whose chief is at HOST:PORT, or JOB.

    Training goes on. `ropewalk local` and a standalone cluster, whose JOB is named, start and stop
    them; on Kubernetes `ropewalk k8s scale` does. A ps that is started is given its part of the
    shares, and one that leaves hands over.
    """
    if not wait:
        refuse_said(["timeout_s"], "with --no-wait nothing is waited for")
    settings = take_settings(flags)
    if cluster is None and ":" not in job:
        cluster = read_environment(CLUSTER_VARIABLE)
        if not cluster:
            raise ConfigurationError(
                f"{job} is no address; give the HOST:PORT of the chief, or for a job of a "
                f"standalone cluster name that with --cluster or {CLUSTER_VARIABLE}"
            )
    with ExitStack() as opened:
        address, gateway = job, None
        if cluster is not None:
            service = annexes.the("standing_cluster", "service", "--cluster")
            found = service.chief_of_job(job, cluster, settings)
            gateway, address = opened.enter_context(found)
        chief = opened.enter_context(chief_client(address, settings))
        chief.scale_ps(ps, timeout_s=_ANSWER_S)  # it knows how many there can be
        if gateway is not None:
            gateway.scale(job, ps)
        if wait:
            _wait(chief, ps, time.monotonic() + timeout_s, timeout_s)


def _wait(client: "ChiefClient", count: int, deadline: float, timeout_s: float) -> None:
    """Wait until as many ps lead shares, and no other has any."""
    shown = ""
    while why := missing(status := client.status(timeout_s=_ANSWER_S), count):
        if status.phase.is_over:
            raise PeerLostError(f"the job is {status.phase}, before it had {count} ps: {why}")
        if time.monotonic() >= deadline:
            raise PeerLostError(
                f"after {timeout_s:g} s (--timeout-s) {why}. `ropewalk local` starts and stops ps "
                "by itself, a standalone cluster those of a JOB that is named, on Kubernetes "
                "`ropewalk k8s scale`; elsewhere start them, or end them with SIGTERM"
            )
        if why != shown:
            echo(why)
            shown = why
        time.sleep(_LOOK_S)
    echo(f"the job has {count} ps")


def missing(status: "JobStatus", count: int) -> str:
    """Say what is not yet as it is to be, for people; empty: nothing.

    Args:
        status: The job's.
        count: Number of ps that it is to have.
    """
    alive = {
        item.task for item in status.tasks if item.task.type == PS and item.state is State.ALIVE
    }
    if come := [f"{PS}:{i}" for i in range(count) if i not in {task.index for task in alive}]:
        return f"{', '.join(come)} has not come yet"
    leads = {share.leader for share in status.shares}
    has_any = leads | {task for share in status.shares for task in share.followers}
    if leave := sorted(task.index for task in has_any | alive if task.index >= count):
        return f"{', '.join(f'{PS}:{index}' for index in leave)} has not left yet"
    idle = sorted(task.short for task in alive - leads)
    return f"{', '.join(idle)} leads no share yet" if idle else ""
