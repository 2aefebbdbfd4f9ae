"""Placement: which ps holds which shard. Pure: sizes and loads in, choices out.

TensorFlow places variables round-robin whatever their size, which can overload one ps; the default
here gives each shard to the ps with the fewest bytes. Round-robin remains for comparison.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...core.public_face import public_getattr

Placement = Callable[[Sequence[int], Sequence[int], int], list[int]]
"""``place(sizes, loads, placed) -> ps per shard``.

``sizes``: bytes per shard, in creation order. ``loads``: bytes on each ps already. ``placed``:
shards placed before on all of them.
"""


def greedy_by_bytes(sizes: Sequence[int], loads: Sequence[int], placed: int = 0) -> list[int]:  # noqa: ARG001
    """Give each shard, in order, to the ps with the fewest bytes; ties to the lowest index.

    No ps ends with more than the mean plus the largest shard. Graham, "Bounds on Multiprocessing
    Timing Anomalies", 1969.
    """
    filled = list(loads)
    choices = []
    for size in sizes:
        ps = filled.index(min(filled))
        filled[ps] += size
        choices.append(ps)
    return choices


def round_robin(sizes: Sequence[int], loads: Sequence[int], placed: int = 0) -> list[int]:
    """Give each shard to the next ps in turn, counting every shard, as TensorFlow does."""
    return [(placed + i) % len(loads) for i in range(len(sizes))]


if not TYPE_CHECKING:
    __getattr__ = public_getattr("ropewalk.distribute.placement", globals())
