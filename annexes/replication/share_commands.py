"""``ropewalk move`` and ``ropewalk scale``: change who leads shares, and wait until it is done."""

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from ...cluster.replication.configuration import MovePhase
from ...cluster.spec import PS
from ...core import annexes
from ...core.errors import ConfigurationError, PeerLostError, RefusedError
from ...core.outside_text import parse_number
from ...core.settings import CLUSTER_VARIABLE, read_environment
from ...core.task import MAX_TASK_INDEX, State, TaskId
from ...launch.options import caller_options, chief_client, refuse_said, take_settings
from ...launch.screen.plain import echo

if TYPE_CHECKING:
    from ...client.chief.calls import ChiefClient, JobStatus
    from ...cluster.replication.configuration import Move

# -- Moves: another ps leads a share -----------------------------------------------------------

_LOOK_S = 0.1
_ANSWER_S = 5.0


@click.command("move")
@click.argument("address", metavar="HOST:PORT")
@click.argument("share", type=click.IntRange(min=0))
@click.option(
    "--to", required=True, metavar="PS", help="The ps that is to lead it: ps-2, ps:2 or 2."
)
@click.option("--wait/--no-wait", default=True, help="Wait until it leads.  [default: wait]")
@caller_options
def move_command(address: str, share: int, to: str, wait: bool, **flags: Any) -> None:
    """Have another ps lead SHARE, in the job with replicas whose chief is at HOST:PORT.

    Training goes on. If that ps does not follow the share yet, it is copied to first.
    """
    settings = take_settings(flags)
    target = _ps_of(to)
    with chief_client(address, settings) as client:
        move = client.move_share(share, target, timeout_s=_ANSWER_S)
        echo(f"share {share} moves from {move.source.short} to {target.short}")
        if wait:
            _tell_end(_wait_for_move(client, move))


def _ps_of(name: str) -> TaskId:
    """Find the ps of a name: ``ps-2``, as pods and logs are called, ``ps:2`` or ``2``."""
    index = name.removeprefix("ps").lstrip("-:")
    number = parse_number(index, MAX_TASK_INDEX)
    if number is None:
        raise ConfigurationError(f"--to {name!r:.200} names no ps; write --to ps-2")
    return TaskId("ps", number)


def _wait_for_move(client: "ChiefClient", begun: "Move") -> "Move":
    """Wait until a move is over, telling how far it has come."""
    from ...launch.screen.status_table import human_bytes

    shown = 0
    while True:
        now = client.status(timeout_s=_ANSWER_S).move
        if now is None or (now.number, now.share, now.to) != (begun.number, begun.share, begun.to):
            raise PeerLostError(
                f"the chief knows nothing of {begun} any more: it was started again, or another "
                "move has begun since; `ropewalk status` says who leads"
            )
        if now.phase.is_over:
            return now
        if now.copied_bytes > shown:
            shown = now.copied_bytes
            echo(f"copied {human_bytes(shown)} of {human_bytes(now.total_bytes)}")
        time.sleep(_LOOK_S)


def _tell_end(move: "Move") -> None:
    if move.phase is MovePhase.FAILED:
        raise RefusedError(
            f"{move} failed after {move.seconds:.1f} s, and nothing has changed: {move.reason}"
        )
    echo(f"{move.to.short} leads share {move.share}, after {move.seconds:.2f} s")


# -- ``ropewalk scale``: has a running job have more or fewer ps, and waits until it does ------


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
            _wait_for_scale(chief, ps, time.monotonic() + timeout_s, timeout_s)


def _wait_for_scale(client: "ChiefClient", count: int, deadline: float, timeout_s: float) -> None:
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
