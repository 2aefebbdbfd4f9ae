"""Command-line arguments that name the user's program: ``[-m] SCRIPT [ARGUMENTS]…``."""

from collections.abc import Callable
from typing import Any

import click

# What follows SCRIPT is the script's, as with `python SCRIPT …`.
SCRIPT_LAST = {"allow_interspersed_args": False}


def _of_script(
    context: click.Context,  # noqa: ARG001
    parameter: click.Parameter,  # noqa: ARG001
    value: tuple[str, ...],
) -> tuple[str, ...]:
    """Check the script's arguments; a ``--`` between it and them is allowed."""
    return value[1:] if value[:1] == ("--",) else value


def program_arguments(*, required: bool) -> Callable[[Any], Any]:
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
