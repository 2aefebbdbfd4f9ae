"""Slurm's lists: hosts as ``n[01-03,7],login1``, tasks per node as ``2(x3),1``.

A range keeps the width of its lower bound: ``n[08-10]`` is n08, n09, n10. An item may have several
brackets, which vary like the digits of a number, the last one fastest, and text behind them:
``rack[0-1]node[1-2].hpc``. The order of a list is kept: it is the order of the nodes in the step.

Source: slurm.conf(5), "NodeName", and srun(1), ``SLURM_STEP_NODELIST`` and
``SLURM_STEP_TASKS_PER_NODE``. TensorFlow's resolver reads one bracket at the end of an item.
"""

import re
from itertools import product
from math import prod
from typing import NoReturn

from ...core.errors import ConfigurationError

MAX_ITEMS = 65_536
"""More hosts or tasks than that are a typing error: Slurm's own limit of nodes is the same."""

_ITEM = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_PARTS = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_COUNT = re.compile(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?")


def expand_host_list(text: str, name: str = "host list") -> list[str]:
    """List the hosts of a Slurm host list, in its order.

    Args:
        text: Slurm's list, for instance ``"n[1-2],m5,o[3-4,6]"``.
        name: Name of the variable or flag that the list comes from, for errors.

    Raises:
        ConfigurationError: It does not read as a host list, or has more than :data:`MAX_ITEMS`.
    """
    hosts: list[str] = []
    position = 0
    while True:
        item = _ITEM.match(text, position)
        if item is None:
            _refuse(name, text, f"a host is expected at character {position + 1}")
        choices = [
            [plain] if plain else _numbers(inside, name, text)
            for inside, plain in _PARTS.findall(item[0])
        ]
        if len(hosts) + prod(len(choice) for choice in choices) > MAX_ITEMS:
            _refuse(name, text, f"more than {MAX_ITEMS} hosts")
        hosts += ["".join(parts) for parts in product(*choices)]
        position = item.end()
        if position == len(text):
            return hosts
        if text[position] != ",":
            _refuse(name, text, f"unexpected {text[position]!r} at character {position + 1}")
        position += 1


def _numbers(inside: str, name: str, text: str) -> list[str]:
    """List the numbers in a bracket, as they are written in host names."""
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            _refuse(name, text, f"{part!r} in brackets is neither a number nor a range like 1-4")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            _refuse(name, text, f"the range {part} runs backwards")
        if len(numbers) + int(high) - int(low) >= MAX_ITEMS:
            _refuse(name, text, f"more than {MAX_ITEMS} hosts")
        numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return numbers


def expand_counts(text: str, name: str = "tasks per node") -> list[int]:
    """List the tasks per node, node by node: ``"2(x3),1"`` is ``[2, 2, 2, 1]``.

    Args:
        text: Slurm's list.
        name: Name of the variable or flag that the list comes from, for errors.

    Raises:
        ConfigurationError: It does not read so, or is of more than :data:`MAX_ITEMS` nodes.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            _refuse(name, text, f"{part!r} is neither a count nor COUNT(xNODES), e.g. 2(x3),1")
        nodes = int(match[2] or 1)
        if len(counts) + nodes > MAX_ITEMS:
            _refuse(name, text, f"more than {MAX_ITEMS} nodes")
        counts += [int(match[1])] * nodes
    return counts


def _refuse(name: str, text: str, why: str) -> NoReturn:
    shown = text if len(text) <= 200 else text[:200] + "…"
    raise ConfigurationError(f"{name}={shown!r}: {why}", variable=name)
