"""The ``windlass`` command."""

import sys
from collections.abc import Container
from typing import Any

import click

from ..cluster.roles import CHIEF, PS
from ..core.errors import ConfigurationError, WindlassError
from ..core.exit_codes import ExitCode
from ..core.loading import quick_loading
from ..core.settings import quiet_grpc
from ..worker.logs import set_up_logging
from ..worker.program import find_program
from .certs_command import certs_command
from .doctor_command import doctor_command
from .echo import echo
from .export_command import export_command
from .k8s.command import k8s_command
from .kernels_command import warm_kernels_command
from .launchers.commands import compose_command, job_command, slurm_command
from .local_command import local_command
from .options import (
    TaskFlags,
    explain,
    resolve_task,
    settings_options,
    take_settings,
    task_options,
)
from .program_options import SCRIPT_LAST, program_arguments
from .standalone.jobs_commands import attach_command, jobs_command, logs_command, stop_command
from .standalone.submit_command import submit_command
from .standard_streams import output_failure, prepare_standard_streams, say_error
from .status_command import status_command
from .tensorboard_command import tensorboard_command
from .token_command import token_command

_ROLES = ("chief", "worker", "ps", "evaluator")


def _show_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001
    """As click's version option, but looks the version up only when asked."""
    if value and not context.resilient_parsing:
        from ..core.versions import package_version

        echo(f"windlass, version {package_version()}")
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


@windlass.command("run", context_settings=SCRIPT_LAST)
@program_arguments(required=False)
@click.option("--role", type=click.Choice(_ROLES), help="Instead of TF_CONFIG's task.type.")
@click.option(
    "--print-tf-config", is_flag=True, help="Show what was resolved and where from, and exit."
)
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
    _run(script, arguments, module=module, print_tf_config=print_tf_config, **flags)


def _role_command(
    role: str,
    text: str,
    *,
    takes_script: bool,
    needs_script: bool = True,
    hidden: Container[str] = (),
) -> None:
    def command(
        print_tf_config: bool,
        script: str | None = None,
        arguments: tuple[str, ...] = (),
        module: bool = False,
        **flags: Any,
    ) -> None:
        _run(script, arguments, module=module, print_tf_config=print_tf_config, role=role, **flags)

    command.__doc__ = text
    decorated: Any = settings_options(hidden=hidden)(task_options(command))
    decorated = click.option(
        "--print-tf-config", is_flag=True, help="Show what was resolved and where from, and exit."
    )(decorated)
    if takes_script:
        decorated = program_arguments(required=needs_script)(decorated)
    windlass.command(role, context_settings=SCRIPT_LAST)(decorated)


# A ps runs no program, waits for nobody, and is told when to write.
_NOT_OF_PS = (
    "join_timeout_s", "wait_for_workers", "heartbeat_s", "lease_s", "reconnect_timeout_s",
    "request_timeout_s", "nonfinite_gradients", "nonfinite_limit", "save_every_steps",
    "save_every_s", "keep_checkpoints", "tensorboard",
)  # fmt: skip
_role_command("ps", "Serve variables until the job is over.", takes_script=False, hidden=_NOT_OF_PS)
_role_command(
    "chief",
    "Run SCRIPT as the chief: lead the job, train, save checkpoints. Without one, be the door of a "
    "standalone cluster, to which `windlass submit` sends jobs.",
    takes_script=True,
    needs_script=False,
)
_role_command(
    "worker",
    "Run SCRIPT as a worker; without one, run what the coordinator schedules.",
    takes_script=True,
    needs_script=False,
)
_role_command(
    "evaluator", "Run SCRIPT as the evaluator: evaluate each new checkpoint.", takes_script=True
)


@windlass.command("lead", hidden=True)
@task_options
@settings_options()
def lead_command(**flags: Any) -> None:
    """Lead a job whose program runs elsewhere."""
    settings = take_settings(flags)
    set_up_logging(settings)
    task = resolve_task(TaskFlags(role=CHIEF, **flags))
    from ..worker.daemon import run_leader

    sys.exit(run_leader(task, settings))


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
    role = flags.get("role")
    task = resolve_task(TaskFlags(**flags))
    if print_tf_config:
        from rich.table import Table

        from .terminal import TerminalConsole

        echo(task.tf_config())
        table = Table(show_header=True, header_style="bold")
        for name in ("what", "value", "from"):
            table.add_column(name, overflow="fold")
        for row in explain(task):
            table.add_row(*row)
        TerminalConsole(stderr=True).print(table)
        return
    if settings.standalone or (script is None and role == CHIEF):
        from .standalone.daemon import run_standalone

        if script is not None:
            raise ConfigurationError(
                f"a standalone cluster runs what drivers submit, so leave out {script}, or "
                "--standalone"
            )
        sys.exit(run_standalone(task, settings))
    # Imported late: the daemon loads grpc, which printing the cluster does not need.
    with quick_loading():
        from ..worker.daemon import run_task

    is_ps = task.task.type == PS
    program = find_program(script, module=module) if script is not None and not is_ps else None
    sys.exit(run_task(task, settings, program, arguments))


windlass.add_command(certs_command)
windlass.add_command(compose_command)
windlass.add_command(doctor_command)
windlass.add_command(export_command)
windlass.add_command(job_command)
windlass.add_command(k8s_command)
windlass.add_command(local_command)
windlass.add_command(jobs_command)
windlass.add_command(attach_command)
windlass.add_command(logs_command)
windlass.add_command(stop_command)
windlass.add_command(submit_command)
windlass.add_command(slurm_command)
windlass.add_command(status_command)
windlass.add_command(tensorboard_command)
windlass.add_command(token_command)
windlass.add_command(warm_kernels_command)


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Windlass's own errors print one line and set the exit code, no traceback."""
    quiet_grpc()
    try:
        prepare_standard_streams()
        windlass.main(args=arguments, prog_name="windlass", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(int(ExitCode.USAGE))
    except click.Abort:
        sys.exit(int(ExitCode.DRAINED))
    except WindlassError as error:
        say_error(error.message)
        sys.exit(int(error.exit_code))
    except OSError:
        failure = output_failure()
        if failure is None:
            raise
        say_error(failure.message)
        sys.exit(int(failure.exit_code))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "start new thread" not in str(error):
            raise
        say_error(
            f"this process gets no more {'threads' if error.args else 'memory'}: look at its "
            "limits (ulimit -a) and its cgroup's (memory.max, pids.max)"
        )
        sys.exit(int(ExitCode.USAGE))


if __name__ == "__main__":
    main()
