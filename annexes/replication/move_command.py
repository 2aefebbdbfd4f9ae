"""``ropewalk move``: has another ps lead a share of a running job, and waits until it does."""

import time
from typing import TYPE_CHECKING, Any

import click

from ...cluster.replication.moves import MovePhase
from ...core.errors import ConfigurationError, PeerLostError, RefusedError
from ...core.outside_text import parse_number
from ...core.task import MAX_TASK_INDEX, TaskId
from ...launch.as_driver import chief_client
from ...launch.options.settings import caller_options, take_settings
from ...launch.screen.echo import echo

if TYPE_CHECKING:
    from ...client.chief.calls import ChiefClient
    from ...cluster.replication.moves import Move

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
            _tell_end(_wait(client, move))


def _ps_of(name: str) -> TaskId:
    """Find the ps of a name: ``ps-2``, as pods and logs are called, ``ps:2`` or ``2``."""
    index = name.removeprefix("ps").lstrip("-:")
    number = parse_number(index, MAX_TASK_INDEX)
    if number is None:
        raise ConfigurationError(f"--to {name!r:.200} names no ps; write --to ps-2")
    return TaskId("ps", number)


def _wait(client: "ChiefClient", begun: "Move") -> "Move":
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
