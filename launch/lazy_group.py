"""A group of commands that are loaded when they are asked for."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from ..core import annexes
from ..core.errors import ConfigurationError
from ..core.public_face import load_place


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
