"""The ``windlass`` command."""

import sys
from typing import TYPE_CHECKING, Any

import click

from ..cluster.roles import PS
from ..core.errors import ConfigurationError, PeerLostError, WindlassError
from ..core.exit_codes import ExitCode
from ..core.settings import quiet_grpc
from ..worker.logs import set_up_logging
from ..worker.program import find_program
from .options import (
    TaskFlags,
    explain,
    resolve_task,
    settings_options,
    take_settings,
    task_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..core.task import TaskId
    from .plain import Display

_ROLES = ("chief", "worker", "ps", "evaluator")
# What follows SCRIPT is the script's, as with `python SCRIPT …`.
_SCRIPT_LAST = {"allow_interspersed_args": False}


def _of_script(
    context: click.Context,  # noqa: ARG001
    parameter: click.Parameter,  # noqa: ARG001
    value: tuple[str, ...],
) -> tuple[str, ...]:
    """The script's arguments; a ``--`` between it and them is allowed."""
    return value[1:] if value[:1] == ("--",) else value


def program_arguments(*, required: bool) -> "Callable[[Any], Any]":
    """Add ``[-m] SCRIPT [ARGUMENTS]…``."""

    def add(command: Any) -> Any:
        command = click.argument(
            "arguments", nargs=-1, type=click.UNPROCESSED, callback=_of_script
        )(command)
        command = click.argument("script", required=required)(command)
        return click.option(
            "-m", "module", is_flag=True,
            help="SCRIPT is the name of a module or package, as in `python -m`.",
        )(command)  # fmt: skip

    return add


def _show_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001
    """As click's version option, but looks the version up only when asked."""
    if value and not context.resilient_parsing:
        from ..core.versions import package_version

        click.echo(f"windlass, version {package_version()}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
    help="Show the version and exit.",
)  # fmt: skip
def windlass() -> None:
    """Parameter-server training: run tasks of a cluster, or a whole cluster here.

    Every setting is a flag of the daemons and a variable WINDLASS_NAME. Exit codes: 0 done, 1-127
    permanent (1 program, 2 usage), 128 and above worth a restart; docs/exit-codes.md lists them.
    """


@windlass.command("run", context_settings=_SCRIPT_LAST)
@program_arguments(required=False)
@click.option("--role", type=click.Choice(_ROLES), help="Instead of TF_CONFIG's task.type.")
@click.option(
    "--print-tf-config", is_flag=True, help="Show what was resolved and where from, and exit."
)
@task_options
@settings_options
def run_command(
    script: str | None,
    arguments: tuple[str, ...],
    module: bool,
    print_tf_config: bool,
    **flags: Any,
) -> None:
    """Run SCRIPT in the role that TF_CONFIG (or the flags) give this process.

    A ps serves and does not run it. Without TF_CONFIG this process is the whole cluster.
    """
    _run(script, arguments, module=module, print_tf_config=print_tf_config, **flags)


def _role_command(role: str, text: str, *, takes_script: bool) -> None:
    def command(
        print_tf_config: bool,
        script: str | None = None,
        arguments: tuple[str, ...] = (),
        module: bool = False,
        **flags: Any,
    ) -> None:
        _run(script, arguments, module=module, print_tf_config=print_tf_config, role=role, **flags)

    command.__doc__ = text
    decorated: Any = settings_options(task_options(command))
    decorated = click.option(
        "--print-tf-config", is_flag=True, help="Show what was resolved and where from, and exit."
    )(decorated)
    if takes_script:
        decorated = program_arguments(required=True)(decorated)
    windlass.command(role, context_settings=_SCRIPT_LAST)(decorated)


_role_command("ps", "Serve variables until the job is over.", takes_script=False)
_role_command(
    "chief", "Run SCRIPT as the chief: lead the job, train, save checkpoints.", takes_script=True
)
_role_command("worker", "Run SCRIPT as a worker.", takes_script=True)
_role_command(
    "evaluator", "Run SCRIPT as the evaluator: evaluate each new checkpoint.", takes_script=True
)


def _run(
    script: str | None,
    arguments: tuple[str, ...],
    *,
    module: bool,
    print_tf_config: bool,
    **flags: Any,
) -> None:
    settings = take_settings(flags)
    set_up_logging(settings)
    task = resolve_task(TaskFlags(**flags))
    if print_tf_config:
        from rich.console import Console
        from rich.table import Table

        click.echo(task.tf_config())
        table = Table(show_header=True, header_style="bold")
        for name in ("what", "value", "from"):
            table.add_column(name, overflow="fold")
        for row in explain(task):
            table.add_row(*row)
        Console(stderr=True).print(table)
        return
    # Imported late: the daemon loads grpc, which printing the cluster does not need.
    from ..worker.daemon import run_task

    is_ps = task.task.type == PS
    program = find_program(script, module=module) if script is not None and not is_ps else None
    sys.exit(run_task(task, settings, program, arguments))


@windlass.command("local", context_settings=_SCRIPT_LAST)
@program_arguments(required=True)
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
    "--plain", is_flag=True, help="Plain lines instead of a progress bar (default in a pipe)."
)
@settings_options
def local_command(
    script: str,
    arguments: tuple[str, ...],
    module: bool,
    workers: int,
    ps: int,
    chief: bool,
    evaluator: bool,
    plain: bool,
    **flags: Any,
) -> None:
    """Run SCRIPT on a cluster of processes on this machine.

    Checkpoints go to --model-dir (default: a new folder in runs/), every 2 s unless told otherwise.
    Arguments after SCRIPT are the script's.
    """
    from .local import LocalCluster, LocalJob, default_model_dir

    if not chief and not workers:
        raise ConfigurationError("--no-chief needs at least one worker, which then acts as chief")
    if evaluator and not ps:
        raise ConfigurationError("--evaluator needs --ps: it reads the checkpoints that ps write")
    program = find_program(script, module=module)
    if flags.get("save_every_s") is None and flags.get("save_every_steps") is None:
        flags["save_every_s"] = 2.0
    if not flags.get("model_dir"):
        flags["model_dir"] = default_model_dir(program)
    settings = take_settings(flags)
    cluster = LocalCluster(workers, ps, chief, evaluator)
    display = _display(cluster.tasks(), plain=plain or not sys.stdout.isatty())
    try:
        job = LocalJob(cluster, program, arguments, settings, display)
        with job.signals():
            result = job.run()
    finally:
        display.close()
    job.show_result(result)
    sys.exit(result.exit_code)


def _display(tasks: "Sequence[TaskId]", *, plain: bool) -> "Display":
    from .plain import PlainDisplay

    if plain:
        return PlainDisplay(tasks)
    from .display import RichDisplay

    return RichDisplay(tasks)


@windlass.command("status")
@click.argument("address")
@click.option("--timeout-s", default=5.0, show_default=True, help="How long to wait for an answer.")
def status_command(address: str, timeout_s: float) -> None:
    """Show the job of the chief at ADDRESS, or the last status in model directory ADDRESS."""
    from pathlib import Path

    from rich.console import Console

    from ..client.chief.calls import ChiefClient
    from ..core.settings import load_settings
    from ..worker.status import read_status
    from .display import status_table

    if Path(address).is_dir():
        status = read_status(address)
        if status is None:
            raise ConfigurationError(f"{address} holds no status.json: no job has ended there")
    else:
        client = ChiefClient(address, load_settings())
        try:
            status = client.status(timeout_s=timeout_s)
        except PeerLostError as error:
            raise PeerLostError(
                f"no chief answers at {address}: {error.message}. Is the job running, and is "
                "this the chief's address?",
                peer=address,
            ) from error
        finally:
            client.close()
    # In a pipe lines are not cut, so that they can be searched.
    width = None if sys.stdout.isatty() else 1000
    Console(width=width, highlight=False).print(status_table(status))


@windlass.command("warm-kernels")
@click.option(
    "--kernel-cache",
    help="Folder of the cache. Default: WINDLASS_KERNEL_CACHE, or the folder a ps chooses.",
)
def warm_kernels_command(kernel_cache: str | None) -> None:
    """Compile all kernels into the cache ahead of time, e.g. while an image is built.

    Run it as the user who will run the tasks: files of other users are not loaded.
    """
    from ..core.settings import load_settings
    from ..engine.library import KernelLibrary

    library = KernelLibrary(load_settings({"kernel_cache": kernel_cache}).kernel_cache)
    folder = library.folder
    for refusal in folder.refused:
        click.echo(f"not used: {refusal}", err=True)
    if folder.path is None:
        raise ConfigurationError(
            "there is no folder to keep kernels in; name one with --kernel-cache that belongs to "
            "this user and can be written to"
        )
    count = compiled = 0
    for kernel in library.load_all():
        count += 1
        compiled += not kernel.from_cache
        what = "was there" if kernel.from_cache else f"compiled in {kernel.took_s:.1f} s"
        click.echo(f"{kernel.name} {kernel.dtype.name}: {what}")
    click.echo(f"{count} kernels, {compiled} compiled, in {folder.copied_from or folder.path}")


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Windlass's own errors print one line and set the exit code, no traceback."""
    quiet_grpc()
    try:
        windlass.main(args=arguments, prog_name="windlass", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(int(ExitCode.USAGE))
    except click.Abort:
        sys.exit(int(ExitCode.DRAINED))
    except WindlassError as error:
        click.echo(f"windlass: {error.message}", err=True)
        sys.exit(int(error.exit_code))


if __name__ == "__main__":
    main()
