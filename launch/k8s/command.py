"""``ropewalk k8s``: render, apply, status, list, logs, scale and delete a job on Kubernetes."""

import click

from ..lazy_group import LazyGroup

_LOOK, _CHANGE = ".k8s.look_commands", ".k8s.change_commands"
_COMMANDS = {
    "apply": f"{_CHANGE}:apply_command",
    "delete": f"{_CHANGE}:delete_command",
    "list": f"{_LOOK}:list_command",
    "logs": f"{_LOOK}:logs_command",
    "render": f"{_CHANGE}:render_command",
    "scale": f"{_CHANGE}:scale_command",
    "status": f"{_LOOK}:status_command",
}


@click.group("k8s", cls=LazyGroup, members=_COMMANDS)
def k8s_command() -> None:
    """Run a job file on Kubernetes: no operator, no definitions, plain objects.

    Needs the extra `k8s` (pip install 'ropewalk[k8s]'); `render` works without.
    """
