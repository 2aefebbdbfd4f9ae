"""A group of commands that are loaded when they are asked for."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from ..core.errors import ConfigurationError


class LazyGroup(click.Group):
    """A group that imports a command when its name is used, or all of them for its help.

    Args:
        members: Places of the commands by name: ``".module:attribute"``, relative to this package.
        arguments: Arguments of :class:`click.Group`.
    """

    def __init__(self, *, members: Mapping[str, str], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._members = dict(members)

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
        return sorted({*self._members, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Find the command of a name; None: there is none."""
        if cmd_name not in self.commands and cmd_name in self._members:
            module, _, attribute = self._members[cmd_name].partition(":")
            self.add_command(getattr(import_module(module, __package__), attribute), cmd_name)
        return self.commands.get(cmd_name)
