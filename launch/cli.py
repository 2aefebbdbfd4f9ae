"""The ``ropewalk`` command, and groups of commands that are loaded when they are asked for."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ..core import annexes
from ..core.errors import ConfigurationError, RopewalkError
from ..core.exit_codes import ExitCode
from ..core.public_face import load_place
from ..core.settings import quiet_grpc
from .screen.plain import echo
from .screen.standard_streams import output_failure, prepare_standard_streams, say_error

# -- A group of commands that are loaded when they are asked for -------------------------------


class LazyGroup(click.Group):
    """A group that imports a command when its name is used, or all of them for its help.

    Args:
        members: Places of the commands by name: ``"module.path:attribute"``, below ``ropewalk``.
        point: Point at which annexes add members, which is looked at for other names; empty: none.
        brought_by: Annexes of such names, for the message about one that is not installed.
        arguments: Arguments of :class:`click.Group`.
    """

    def __init__(
        self,
        *,
        members: Mapping[str, str],
        point: str = "",
        brought_by: Mapping[str, Sequence[str]] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self._members = dict(members)
        self._point = point
        self._brought_by = brought_by or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments as click does; they can be paths, names and addresses.

        Raises:
            ConfigurationError: One has a NUL, which would be a ValueError where it is used.
        """
        for argument in args:
            if "\0" in argument:
                raise ConfigurationError(f"the argument {argument!r:.200} has a NUL; take it out")
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """List the names, in order."""
        self._add_annexes()
        return sorted({*self._members, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find the command of a name; None: there is none.

        Raises:
            MissingExtraError: It belongs to an annex that is not installed.
        """
        if cmd_name not in self.commands:
            if cmd_name not in self._members:
                self._add_annexes()
            if cmd_name not in self._members:
                for annex in self._brought_by.get(cmd_name, ()):
                    annexes.require(annex, f"`{ctx.command_path} {cmd_name}`")
                return None
            self.add_command(load_place(self._members[cmd_name]), cmd_name)
        return self.commands[cmd_name]

    def _add_annexes(self) -> None:
        if self._point:
            for module in annexes.at(self._point):
                self._members.update(module.COMMANDS)
            self._point = ""


# -- The ``ropewalk`` command ------------------------------------------------------------------


# Each is loaded when it is asked for: a task of a cluster is at work sooner without the others.
_COMMANDS = {
    "chief": "launch.commands.roles:chief_command",
    "checkpoint": "launch.commands.checkpoint:checkpoint_group",
    "doctor": "launch.commands.doctor:doctor_command",
    "evaluator": "launch.commands.roles:evaluator_command",
    "export": "launch.commands.checkpoint:export_command",
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
    "dashboard": ("dashboard",),
    "job": ("jobfile",),
    "log-level": ("diagnosis",),
    "report": ("diagnosis",),
    "stacks": ("diagnosis",),
    "jobs": ("service",),
    "k8s": ("kubernetes", "jobfile"),
    "logs": ("service",),
    "move": ("replication",),
    "scale": ("replication",),
    "slurm": ("jobfile",),
    "stop": ("service",),
    "submit": ("service",),
    "tensorboard": ("tensorboard",),
    "top": ("dashboard",),
    "trace": ("traces",),
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
