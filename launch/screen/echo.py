"""Printing by the commands: text of others goes to the terminal through here, and cannot steer it.

Tables and progress go through :mod:`~ropewalk.launch.screen.terminal`, which loads rich.
"""

import click

from ...core.terminal import terminal_text


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text, with its colours where there is a terminal.

    Args:
        text: Maybe a stranger's, or with one's in it.
        err: Whether to print to stderr.
        nl: Whether to end the line.
    """
    click.echo(terminal_text(text, colours=True), err=err, nl=nl)
