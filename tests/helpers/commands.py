"""Commands of ``ropewalk``, with the annexes that bring them."""

from collections.abc import Sequence
from typing import Any

import pytest

_BROUGHT_BY = {
    "attach": "service",
    "jobs": "service",
    "k8s": "kubernetes",
    "logs": "service",
    "move": "replication",
    "scale": "replication",
    "stop": "service",
    "submit": "service",
}


def command_case(command: Sequence[str], *values: Any, name: str) -> Any:
    """A case of a parametrized test that runs a command, where the annexes that it needs are.

    Args:
        command: Words of the command.
        values: Values of the case.
        name: Name of the case.
    """
    needed = {_BROUGHT_BY[command[0]]} if command[0] in _BROUGHT_BY else set[str]()
    if "--supervise" in command:  # a container's setting
        needed.add("kubernetes")
    on_standing = "--cluster" in command and command[0] in ("status", "scale")
    of_service = not {"--max-jobs", "--max-node-tasks"}.isdisjoint(command)
    if on_standing or of_service or (command[0] == "ps" and "--standalone" in command):
        needed.add("service")
    return pytest.param(*values, id=name, marks=[pytest.mark.annex(*needed)] if needed else ())
