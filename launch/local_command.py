"""``windlass local``."""

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import ConfigurationError
from ..core.settings import Settings
from ..worker.program import Program, find_program
from .options import settings_options, take_settings
from .program_options import SCRIPT_LAST, program_arguments

if TYPE_CHECKING:
    from ..core.task import TaskId
    from .plain import Display

_SAVE_EVERY_S = 2.0  # a run at a desk is short, and Ctrl-C frequent


@click.command("local", context_settings=SCRIPT_LAST)
@program_arguments(required=False)
@click.option(
    "--workers", type=click.IntRange(0), default=1, show_default=True, help="Worker tasks."
)
@click.option(
    "--ps",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Parameter servers; 0: synchronous training (MultiWorkerMirroredStrategy).",
)
@click.option(
    "--chief/--no-chief",
    default=True,
    show_default=True,
    help="A chief task; without one worker 0 is the chief.",
)
@click.option(
    "--evaluator/--no-evaluator", default=False, show_default=True, help="An evaluator task."
)
@click.option(
    "--coordinator",
    is_flag=True,
    help="The chief alone runs SCRIPT; workers run what its ClusterCoordinator schedules.",
)
@click.option(
    "--standalone",
    is_flag=True,
    help="Run no SCRIPT, but a standalone cluster that waits for `windlass submit`, until Ctrl-C.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Of the standalone cluster; 0: any free one.",
)
@click.option(
    "--plain", is_flag=True, help="Plain lines instead of a progress bar (default in a pipe)."
)
@settings_options(
    defaults={
        "model_dir": "a new folder in runs/",
        "save_every_s": f"{_SAVE_EVERY_S:g}, or 0 with --save-every-steps",
    },
    hidden=["host", "insecure", "health_port", "log_format"],  # the launcher decides
    without=["standalone"],
)
def local_command(
    script: str | None,
    arguments: tuple[str, ...],
    module: bool,
    workers: int,
    ps: int,
    chief: bool,
    evaluator: bool,
    coordinator: bool,
    standalone: bool,
    port: int,
    plain: bool,
    **flags: Any,
) -> None:
    """Run SCRIPT on a cluster of processes on this machine.

    What follows SCRIPT is the script's.
    """
    if standalone:
        if script is not None:
            raise ConfigurationError(
                f"--standalone waits for jobs, so leave out {script} and send it with "
                "`windlass submit`"
            )
        sys.exit(_run_standalone(workers, ps, port, take_settings(flags)))
    if script is None:
        raise click.UsageError("Missing argument 'SCRIPT'.")
    from .cluster import LocalCluster
    from .local import LocalJob

    if not chief and not workers:
        raise ConfigurationError("--no-chief needs at least one worker, which then acts as chief")
    if coordinator and not (chief and workers and ps):
        raise ConfigurationError(
            "--coordinator needs a chief, at least one worker to run closures, and at least one ps "
            f"to hold the variables; this has {'a' if chief else 'no'} chief, {workers} workers "
            f"and {ps} ps"
        )
    program = find_program(script, module=module)
    settings = _for_a_desk(take_settings(flags), program)
    cluster = LocalCluster(workers, ps, chief, evaluator, coordinator)
    display = _display(cluster.tasks(), plain=plain or not sys.stdout.isatty())
    resume = _command_to_resume(sys.argv[1:], settings.model_dir)
    try:
        job = LocalJob(cluster, program, arguments, settings, display, resume)
        with job.signals():
            result = job.run()
    finally:
        display.close()
    job.show_result(result)
    sys.exit(result.exit_code)


def _run_standalone(workers: int, ps: int, port: int, settings: Settings) -> int:
    from ..worker.interrupts import handle_signals
    from ..worker.logs import set_up_logging
    from .standalone.daemon import LocalStandaloneCluster

    set_up_logging(settings)
    cluster = LocalStandaloneCluster(workers, ps, f"127.0.0.1:{port}", settings)
    handle_signals(cluster.stop)
    cluster.start()
    click.echo(f"the cluster is at {cluster.address}; send it a program from this machine with\n")
    click.echo(f"    windlass submit SCRIPT --cluster {cluster.address}\n")
    click.echo("Ctrl-C ends it, and its jobs")
    return cluster.wait()


def _for_a_desk(settings: Settings, program: Program) -> Settings:
    """Settings with what is different for a local job, unless the user has said so."""
    from .cluster import default_model_dir

    said, changes = settings.model_fields_set, dict[str, object]()
    if not said & {"save_every_s", "save_every_steps"}:
        changes["save_every_s"] = _SAVE_EVERY_S
    elif "save_every_s" not in said:
        changes["save_every_s"] = 0.0
    if not settings.model_dir:
        changes["model_dir"] = default_model_dir(program)
    return settings.model_copy(update=changes)


def _command_to_resume(arguments: Sequence[str], model_dir: str) -> str:
    """The command line that goes on in the same model directory; empty if this is another."""
    if arguments[:1] != ["local"]:
        return ""
    rest = list(arguments[1:])
    named = any(word.partition("=")[0] == "--model-dir" for word in rest)
    where = [] if named else ["--model-dir", model_dir]
    return shlex.join(["windlass", "local", *where, *rest])


def _display(tasks: "Sequence[TaskId]", *, plain: bool) -> "Display":
    from .plain import PlainDisplay

    if plain:
        return PlainDisplay(tasks)
    from .display import RichDisplay

    return RichDisplay(tasks)
