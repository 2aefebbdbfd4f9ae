"""``ropewalk submit``: run a program on a standalone cluster, from anywhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ....core.errors import ConfigurationError
from ....core.settings import Settings
from ....launch.options.program import program_arguments
from ....launch.options.settings import caller_options, refuse_said, take_settings
from ....launch.screen.echo import echo
from ....launch.screen.plain import choose_display
from .cluster_client import cluster_client
from .cluster_option import cluster_option

if TYPE_CHECKING:
    from ..client.calls import GatewayClient

_PATIENCE_S = 30.0  # with a gateway that has just taken the package
_LARGE_BYTES = 4 * 1024 * 1024


@click.command("submit")
@program_arguments(required=True)
@cluster_option
@click.option("--workers", type=click.IntRange(0), help="Worker tasks. [default: one per node]")
@click.option("--ps", type=click.IntRange(0), help="Parameter servers. [default: one per node]")
@click.option(
    "--coordinator",
    is_flag=True,
    help="The chief alone runs SCRIPT; workers run what its ClusterCoordinator schedules.",
)
@click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder that is sent, without what .gitignore leaves out. [default: the current one, "
    "or SCRIPT's if that is not in it]",
)
@click.option(
    "--model",
    help="Folder of the model below the cluster's --model-dir: a job goes on from the last "
    "checkpoint there. [default: a new one, called as the job]",
)
@click.option("--name", help="Of the job, for people. [default: SCRIPT's]")
@click.option("--detach", is_flag=True, help="Leave the job running, and return when it is sent.")
@click.option(
    "--grace-s", type=click.FloatRange(1, 86_400), default=30.0, show_default=True,
    help="Without --detach the job ends when nothing was heard of this command for so long.",
)  # fmt: skip
@click.option("--set", "said", multiple=True, metavar="NAME=VALUE", help="A setting of the tasks.")
@click.option("--plain", is_flag=True, help="Plain lines instead of colours.")
@caller_options
def submit_command(
    script: str,
    arguments: tuple[str, ...],
    module: bool,
    cluster: str,
    workers: int | None,
    ps: int | None,
    coordinator: bool,
    project: Path | None,
    model: str | None,
    name: str | None,
    detach: bool,
    grace_s: float,
    said: tuple[str, ...],
    plain: bool,
    **flags: Any,
) -> None:
    """Run SCRIPT on the standalone cluster whose chief is at --cluster.

    The project folder is sent there, SCRIPT runs as the chief and the workers of a job, and its
    lines and its result come back here. Ctrl-C stops the job. What follows -- is the script's.
    """
    from ....proto.v1 import gateway_pb2
    from ....shipping import own_environment, pack
    from ..cluster.submission import ALL, new_id

    if detach:
        refuse_said(["grace_s", "plain"], "with --detach nothing is followed from here")
    settings = take_settings(flags)
    folder, program = _program(script, project, module=module)
    name = name or (script.partition(":")[0] if module else Path(script).stem)
    package = pack(folder)
    request = gateway_pb2.SubmitRequest(
        id=new_id(name),
        name=name,
        digest=package.digest,
        program=program,
        arguments=arguments,
        workers=ALL if workers is None else workers,
        ps=ALL if ps is None else ps,
        coordinator=coordinator,
        detached=detach,
        grace_s=grace_s,
        settings=_settings(said),
        environment=own_environment(),
        model=model or "",
    )
    with cluster_client(cluster, settings) as client:
        with _sending(package.size) as on_progress:
            client.put_package(package.digest, package.data, on_progress)
        job = client.submit(request, _PATIENCE_S)
        echo(
            f"job {job.id}: {package.files} files, {package.size / 1024:.0f} KiB, "
            f"package {package.digest[:12]}",
            err=True,
        )
        for warning in job.warnings:
            echo(f"ropewalk: {warning}", err=True)
        if detach:
            echo(job.id)
            echo(f"ropewalk attach {job.id} --cluster {cluster} shows it", err=True)
            return
        sys.exit(follow_to_end(client, job.id, settings, plain=plain))


@contextmanager
def _sending(size: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr, if it is a terminal, for packages that may take a while."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    from ....launch.screen.terminal import TerminalConsole

    columns = ("sending", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = TerminalConsole(stderr=True)
    hidden = size < _LARGE_BYTES or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        row = progress.add_task("sending", total=size)

        def show(held: int) -> None:
            progress.update(row, completed=held)

        yield show


def follow_to_end(client: "GatewayClient", job: str, settings: Settings, *, plain: bool) -> int:
    """Show a job until it ends, and its result; returns its exit code."""
    from .following import Following, tasks_of
    from .tables import result_table

    first = client.follow(job, 0, wait_s=0, drives=True).job
    display = choose_display(tasks_of(first), plain=plain)
    following = Following(client, first.id, display, settings)
    try:
        with following.signals():
            ended = following.run()
        if ended.reason:
            display.say(f"{ended.id}: {ended.reason}", is_error=bool(ended.exit_code))
        display.table(result_table(ended))
    finally:
        display.close()
    return int(ended.exit_code)


def _program(script: str, project: Path | None, *, module: bool) -> tuple[Path, list[str]]:
    """Find the folder to send, and the program in it."""
    here = Path.cwd()
    if module:
        return (project or here).resolve(), ["-m", script]
    if not Path(script).exists() and ":" in script:
        return (project or here).resolve(), [script]  # package.module:function
    path = Path(script).resolve()
    if not path.is_file():
        raise ConfigurationError(
            f"{script} does not exist (looked in {here}); give the path of a Python file, or -m "
            "and the name of a module",
            script=script,
        )
    folder = (project or (here if path.is_relative_to(here.resolve()) else path.parent)).resolve()
    if not path.is_relative_to(folder):
        raise ConfigurationError(
            f"{script} is not in the project {folder}, so it would not be sent; give --project a "
            "folder that holds it",
            script=script,
        )
    return folder, [str(path.relative_to(folder))]


def _settings(assignments: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in Settings.model_fields:
            raise ConfigurationError(
                f"--set {assignment}: give NAME=VALUE, with the name of a setting"
            )
        settings[name] = value
    return settings
