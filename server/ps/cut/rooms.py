"""Memory for what pushes will change after a cut, made before any of them waits for it.

Nearly all of the time that a copy to fresh memory takes goes to page faults: 64 MiB take 10 ms to
copy, and up to ten times as long if the memory is not there yet. The first push after a cut would
take that time under the lock of its block.
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np

from ....core.arrays.dtypes import Array
from ....core.arrays.memory_pool import present_buffer
from ....engine.block import Block
from ..tensor_plan import plan_of

_TOGETHER_BYTES = 32 * 1024 * 1024  # of some pieces, given back when all of them are read

Rooms = dict[int, list[Array]]
"""Memory for each piece of a block from the first one on, by ``id`` of the block: uint8, of the
same size.
"""


def make_rooms(
    blocks: Sequence[Block], most: int, *, with_slots: bool, room: int, until: float
) -> Rooms:
    """Allocate memory for the pieces of blocks that pushes change whole, for as many as there is
    room for.

    Args:
        blocks: Blocks of arrays.
        most: Bytes of a piece.
        with_slots: Whether slots go with the values.
        room: Most bytes of all.
        until: Time of ``time.monotonic`` after which nothing is begun. Unit: seconds.
    """
    rooms: Rooms = {}
    for block in blocks:
        if not block.is_pushed_whole:
            continue
        with block.lock:
            plan = plan_of(block, most, with_slots=with_slots)
        memory = rooms[id(block)] = []
        for sizes in _together([sum(tensor.spec.num_bytes for tensor in group) for group in plan]):
            room -= sum(sizes)
            if room < 0 or time.monotonic() > until:
                return rooms
            memory += np.split(present_buffer(sum(sizes)), np.cumsum(sizes)[:-1])
    return rooms


def _together(sizes: Sequence[int]) -> Iterator[list[int]]:
    group: list[int] = []
    for size in sizes:
        if group and sum(group) + size > _TOGETHER_BYTES:
            yield group
            group = []
        group.append(size)
    if group:
        yield group
