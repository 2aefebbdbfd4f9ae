"""Memory for what pushes will change after a cut, made before any of them waits for it.

Nearly all of the time that a copy to fresh memory takes goes to page faults: 64 MiB take 10 ms to
copy, and up to ten times as long if the memory is not there yet. The first push after a cut would
take that time under the lock of its block.
"""

import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np

from ....core.arrays.dtypes import Array
from ....core.arrays.memory_pool import present_buffer
from ....core.errors import CutVoidError
from ....core.task import TaskId
from ....engine.block import Block
from ....server.ps.block_reader import plan_of

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


class KeptMemory:
    """The memory of what a cut keeps until it is read, and whether the cut holds. Thread-safe.

    Args:
        task: The ps, for messages.
        number: Number of the cut.
        room: Most bytes of all copies.
        unread_s: Longest time between two reads. Unit: seconds.

    Attributes:
        held: Bytes of all copies that are there.
        void_because: Why the cut is void; empty: it holds.
    """

    def __init__(self, task: TaskId, number: int, room: int, unread_s: float) -> None:
        self._task = task
        self._number = number
        self._room = room
        self._unread_s = unread_s
        self._read_at = time.monotonic()
        self._lock = threading.Lock()
        self.held = 0
        self.void_because = ""

    def take(self, num_bytes: int) -> bool:
        """Count the memory of copies; returns whether the cut holds still."""
        with self._lock:
            self.held += num_bytes
            if self.held > self._room:
                self.void_because = (
                    f"{self._task} has no memory to keep {self.held} bytes that changed before "
                    f"they were read: {self._room} are left of max_ps_bytes"
                )
            elif time.monotonic() - self._read_at > self._unread_s:
                self.void_because = (
                    f"{self._task} was not asked for its values for {self._unread_s:g} s"
                )
            return not self.void_because

    def free(self, num_bytes: int) -> None:
        """Note that so many bytes were given back. Called for each piece that was read.

        Raises:
            CutVoidError: The values were not kept.
        """
        with self._lock:
            self.held -= num_bytes
            self._read_at = time.monotonic()
        self.check()

    def drop(self, why: str) -> None:
        """Make the cut void, if it is not."""
        with self._lock:
            self.void_because = self.void_because or why

    def check(self) -> None:
        """Go on only if the values were kept.

        Raises:
            CutVoidError: They were not.
        """
        if self.void_because:
            raise CutVoidError(
                f"cut {self._number} is void: {self.void_because}",
                number=self._number,
                task=self._task,
            )
