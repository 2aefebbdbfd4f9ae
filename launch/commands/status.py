"""``ropewalk status``: jobs by address, by model directory, or all of this user on this machine."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...core import annexes
from ...core.errors import (
    ConfigurationError,
    PeerLostError,
    ProtocolMismatchError,
    RopewalkError,
)
from ...core.settings import CLUSTER_VARIABLE, Settings, read_environment
from ..options import caller_options, take_settings
from ..screen.plain import echo

if TYPE_CHECKING:
    from ...client.chief.calls import JobStatus


@click.command("status")
@click.argument("job", required=False)
@click.option(
    "--cluster",
    metavar="HOST:PORT",
    help="The chief of a standalone cluster, of which JOB is a job. A JOB that is neither an "
    f"address nor a folder is looked for at the cluster of {CLUSTER_VARIABLE}.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per job instead of tables.")
@click.option("--timeout-s", default=5.0, show_default=True, help="How long to wait for an answer.")
@caller_options
def status_command(
    job: str | None, cluster: str | None, as_json: bool, timeout_s: float, **flags: Any
) -> None:
    """Show the job whose chief is at JOB (HOST:PORT), or whose model directory JOB is.

    Or that job of a standalone cluster. Without JOB: your jobs whose chief runs on this machine.
    """
    from ...worker.lead.status import status_json

    caller = _Caller(take_settings(flags), timeout_s)
    statuses = _find(job, caller) if cluster is None else [_on_cluster(job, cluster, caller)]
    for number, status in enumerate(statuses):
        if as_json:
            echo(status_json(status))
        else:
            _show(status, first=number == 0)


@dataclass(frozen=True, slots=True)
class _Caller:
    """The caller: its settings, and how long it waits."""

    settings: Settings
    timeout_s: float


def _find(job: str | None, caller: _Caller) -> "list[JobStatus]":
    if job is None:
        from ...net.this_machine import announced_chiefs

        statuses = [status for chief in announced_chiefs() if (status := _try(chief, caller))]
        if not statuses:
            raise ConfigurationError(
                "you have no job with a chief on this machine; give the HOST:PORT of the chief, or "
                "the model directory of the job"
            )
        return statuses
    if Path(job).is_dir():
        return [_in_folder(job, caller)]
    if ":" not in job:
        if cluster := read_environment(CLUSTER_VARIABLE):
            return [_on_cluster(job, cluster, caller)]
        raise ConfigurationError(
            f"{job} is neither a folder (looked in {Path.cwd()}) nor an address; give the "
            "HOST:PORT of the chief, or the model directory of the job; of a job of a standalone "
            f"cluster name that with --cluster or {CLUSTER_VARIABLE}"
        )
    return [_ask(job, caller)]


def _on_cluster(job: str | None, cluster: str, caller: _Caller) -> "JobStatus":
    """Ask for the status of a job of a standalone cluster, through its gateway."""
    if job is None:
        raise ConfigurationError("name the JOB; `ropewalk jobs` lists those of a cluster")
    service = annexes.the("standing_cluster", "service", "--cluster")
    with service.chief_of_job(job, cluster, caller.settings) as (_, address):
        return _ask(address, caller)


def _in_folder(folder: str, caller: _Caller) -> "JobStatus":
    """Ask for the status of the job that writes there, or of the last one that has."""
    from ...worker.lead.status import read_status
    from ..screen.status_table import chief_address

    written = read_status(folder)
    if written is None:
        raise ConfigurationError(f"{folder} holds no status.json: no job has begun there")
    if written.phase.is_over:
        return written
    address = chief_address(written)
    if (status := _try(address, caller)) is not None:
        return status
    raise PeerLostError(
        f"the job of {folder} has not ended in order, and its chief at {address} does not answer; "
        "start it again with the same model directory, and it resumes from the last checkpoint",
        peer=address,
    )


def _try(address: str, caller: _Caller) -> "JobStatus | None":
    try:
        return _ask(address, caller)
    except RopewalkError:
        return None  # gone, or of a version that this one cannot talk to: others are shown


def _ask(address: str, caller: _Caller) -> "JobStatus":
    from ...client.chief.calls import ChiefClient
    from ...cluster.access import READER, Principal

    client = ChiefClient(address, caller.settings, Principal(READER))
    try:
        return client.status(timeout_s=caller.timeout_s)
    except PeerLostError as error:
        raise PeerLostError(
            f"no chief answers at {address}: {error.message}. Is the job running, and is "
            "this the chief's address?",
            peer=address,
        ) from error
    except ProtocolMismatchError as error:
        raise ProtocolMismatchError(
            f"{error.message}. If that is the chief of a standalone cluster, `ropewalk jobs "
            f"--cluster {address}` shows its jobs"
        ) from error
    finally:
        client.close()


def _show(status: "JobStatus", *, first: bool) -> None:
    from ..screen.display import TerminalConsole
    from ..screen.status_table import status_lines, status_table, step_table

    # In a pipe lines are not cut, so that they can be searched.
    console = TerminalConsole(width=None if sys.stdout.isatty() else 1000)
    if not first:
        console.print()
    title, *more = status_lines(status)
    console.print(title, style="bold")
    for line in more:
        console.print(line)
    console.print(status_table(status, console.width))
    if (steps := step_table(status, console.width)) is not None:
        console.print()
        console.print(steps)
