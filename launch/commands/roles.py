"""The commands that have the name of a role: ``chief``, ``worker``, ``ps`` and ``evaluator``."""

import sys
from typing import Any

import click

from ...cluster.resolvers.resolved import ResolvedTask
from ...cluster.spec import CHIEF, EVALUATOR, PS, WORKER
from ...core import annexes
from ...core.errors import ConfigurationError
from ...core.process.frameworks import quick_loading
from ...core.setting_groups import Concern, RestartSettings
from ...core.settings import settings_of
from ...worker.process.program import find_program, has_parent, take_error_report
from ...worker.process.surroundings import set_up_logging
from ..options import (
    SCRIPT_LAST,
    TaskFlags,
    explain,
    program_arguments,
    refuse_said,
    resolve_task,
    settings_options,
    take_settings,
    task_options,
)
from ..screen.plain import echo

# -- The commands that make this process a task of any role: ``run``, and ``lead`` -------------


ROLES = ("chief", "worker", "ps", "evaluator")

print_tf_config_option = click.option(
    "--print-tf-config", is_flag=True, help="Show what was resolved and where from, and exit."
)


@click.command("run", context_settings=SCRIPT_LAST)
@program_arguments(required=False)
@click.option("--role", type=click.Choice(ROLES), help="Instead of TF_CONFIG's task.type.")
@print_tf_config_option
@task_options
@settings_options()
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
    run_as_task(script, arguments, module=module, print_tf_config=print_tf_config, **flags)


@click.command("lead", hidden=True)
@task_options
@settings_options()
def lead_command(**flags: Any) -> None:
    """Lead a job whose program runs elsewhere."""
    settings = take_settings(flags)
    set_up_logging(settings)
    task = resolve_task(TaskFlags(role=CHIEF, **flags))
    from ...worker.daemon import run_leader

    sys.exit(run_leader(task, settings))


def run_as_task(
    script: str | None,
    arguments: tuple[str, ...],
    *,
    module: bool,
    print_tf_config: bool,
    **flags: Any,
) -> None:
    """Run a task as its command line asks, and end the process.

    Args:
        script: The program, if there is one.
        arguments: Arguments of the program.
        module: Whether ``script`` names a module.
        print_tf_config: Show the cluster, and return.
        flags: Flags of the task and of its settings.
    """
    settings = take_settings(flags)
    set_up_logging(settings)
    role = flags.get("role")
    task = resolve_task(TaskFlags(**flags))
    if print_tf_config:
        from rich.table import Table

        from ..screen.display import TerminalConsole

        echo(task.tf_config())
        table = Table(show_header=True, header_style="bold")
        for name in ("what", "value", "from"):
            table.add_column(name, overflow="fold")
        for row in explain(task):
            table.add_row(*row)
        TerminalConsole(stderr=True).print(table)
        return
    is_daemon = settings.asks_for("standalone") or (script is None and role == CHIEF)
    _refuse_useless(task, is_daemon=is_daemon)
    if settings.asks_for("supervise") and not has_parent():
        container = annexes.the("container", "kubernetes", "the setting supervise")
        sys.exit(container.run_supervised(task, sys.argv[1:], settings))
    if is_daemon:
        if script is not None:
            raise ConfigurationError(
                f"a standalone cluster runs what drivers submit, so leave out {script}, or "
                "--standalone"
            )
        take_error_report()  # of this daemon, not of the tasks it starts
        service = annexes.the("standing_cluster", "service", "--standalone")
        sys.exit(service.run_standalone(task, settings))
    # Imported late: the daemon loads grpc, which printing the cluster does not need.
    with quick_loading():
        from ...worker.daemon import run_task

    is_ps = task.task.type == PS
    program = find_program(script, module=module) if script is not None and not is_ps else None
    sys.exit(run_task(task, settings, program, arguments))


def _refuse_useless(task: ResolvedTask, *, is_daemon: bool) -> None:
    """Refuse flags that have no effect for this process.

    Raises:
        ConfigurationError: The command line has one of them.
    """
    if is_daemon:
        refuse_said(
            RestartSettings.fields(),
            "a standalone cluster knows which lost tasks of a job are started again",
        )
        if task.task.type != CHIEF:
            refuse_said(
                ["model_dir", *settings_of(Concern.GATEWAY)],
                "the chief of a standalone cluster has it",
            )
        return
    refuse_said(
        settings_of(Concern.STANDALONE), "it belongs to a standalone cluster, and to --standalone"
    )
    if not task.spec and task.task.type != PS:
        refuse_said(["host"], "without a cluster this process is alone, and serves loopback")


_TEXTS = {
    "ps": "Serve variables until the job is over.",
    "chief": "Run SCRIPT as the chief: lead the job, train, save checkpoints. Without one, be the "
    "door of a standalone cluster, to which `ropewalk submit` sends jobs.",
    "worker": "Run SCRIPT as a worker; without one, run what the coordinator schedules.",
    "evaluator": "Run SCRIPT as the evaluator: evaluate each new checkpoint.",
}
_NOT_OF_PS = "a ps runs no program, waits for no task, and is told when to write"


def _role_command(role: str) -> click.Command:
    def command(
        print_tf_config: bool,
        script: str | None = None,
        arguments: tuple[str, ...] = (),
        module: bool = False,
        **flags: Any,
    ) -> None:
        run_as_task(
            script, arguments, module=module, print_tf_config=print_tf_config, role=role, **flags
        )

    command.__doc__ = _TEXTS[role]
    useless = dict.fromkeys(settings_of(Concern.PROGRAM), _NOT_OF_PS) if role == PS else None
    decorated: Any = settings_options(useless=useless)(task_options(command))
    decorated = print_tf_config_option(decorated)
    if role != PS:
        decorated = program_arguments(required=role == EVALUATOR)(decorated)
    of_role: click.Command = click.command(role, context_settings=SCRIPT_LAST)(decorated)
    return of_role


chief_command = _role_command(CHIEF)
worker_command = _role_command(WORKER)
ps_command = _role_command(PS)
evaluator_command = _role_command(EVALUATOR)
