"""The ``ropewalk`` command."""

import sys

import click

from ..core.errors import RopewalkError
from ..core.exit_codes import ExitCode
from ..core.settings import quiet_grpc
from .lazy_group import LazyGroup
from .screen.echo import echo
from .screen.standard_streams import output_failure, prepare_standard_streams, say_error

# Each is loaded when it is asked for: a task of a cluster is at work sooner without the others.
_COMMANDS = {
    "chief": "launch.commands.roles:chief_command",
    "checkpoint": "launch.commands.checkpoint:checkpoint_group",
    "doctor": "launch.commands.doctor:doctor_command",
    "evaluator": "launch.commands.roles:evaluator_command",
    "export": "launch.commands.export:export_command",
    "lead": "launch.commands.roles:lead_command",
    "local": "launch.commands.local:local_command",
    "ps": "launch.commands.roles:ps_command",
    "run": "launch.commands.roles:run_command",
    "status": "launch.commands.status:status_command",
    "token": "launch.commands.token:token_command",
    "warm-kernels": "launch.commands.kernels:warm_kernels_command",
    "worker": "launch.commands.roles:worker_command",
}
_BROUGHT_BY = {
    "attach": ("service",),
    "certs": ("certificates",),
    "compose": ("jobfile",),
    "job": ("jobfile",),
    "jobs": ("service",),
    "k8s": ("kubernetes", "jobfile"),
    "logs": ("service",),
    "move": ("replication",),
    "scale": ("replication",),
    "slurm": ("jobfile",),
    "stop": ("service",),
    "submit": ("service",),
    "tensorboard": ("tensorboard",),
}
"""Annexes of a command, for the message where one is not installed."""


def _show_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001
    """Show the version as click's version option does, but look it up only when asked."""
    if value and not context.resilient_parsing:
        from ..core.versions import package_version

        echo(f"ropewalk, version {package_version()}")
        context.exit()


@click.group(
    cls=LazyGroup,
    members=_COMMANDS,
    point="commands",
    brought_by=_BROUGHT_BY,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
    help="Show the version and exit.",
)  # fmt: skip
def ropewalk() -> None:
    """Train with parameter servers: run tasks of a cluster, or a whole cluster here.

    Every setting is a flag of the daemons and a variable ROPEWALK_NAME. Exit codes: 0 done, 1-127
    permanent (1 program, 2 usage), 128 and above worth a restart; docs/exit-codes.md lists them.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line: the entry point. Ropewalk's own errors print one line and set the exit
    code, no traceback.
    """
    quiet_grpc()
    try:
        prepare_standard_streams()
        ropewalk.main(args=arguments, prog_name="ropewalk", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(int(ExitCode.USAGE))
    except click.Abort:
        sys.exit(int(ExitCode.DRAINED))
    except RopewalkError as error:
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
