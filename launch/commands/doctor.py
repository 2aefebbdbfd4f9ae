"""``ropewalk doctor``: why a task cannot be reached."""

import sys
from typing import TYPE_CHECKING, Any

import click

from ..options.settings import caller_options, take_settings

if TYPE_CHECKING:
    from .doctor_checks import DoctorStep


@click.command("doctor")
@click.argument("address")
@click.option("--timeout-s", default=3.0, show_default=True, help="For each step.")
@caller_options
def doctor_command(address: str, timeout_s: float, **flags: Any) -> None:
    """Walk the way to the task at ADDRESS (HOST:PORT), and say which step fails and what to do.

    The exit code is 0, or that of the error.
    """
    from .doctor_checks import examine

    settings = take_settings(flags)
    steps = examine(address, settings, timeout_s)
    _show(steps)
    sys.exit(int(next((step.error.exit_code for step in steps if step.error is not None), 0)))


def _show(steps: "list[DoctorStep]") -> None:
    from rich.table import Table

    from ..screen.terminal import TerminalConsole

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for step in steps:
        mark = {True: "ok", False: "FAILS", None: "-"}[step.passed]
        table.add_row(step.name, mark, step.said or "not looked at")
    TerminalConsole().print(table)
