"""Reading a ps's memory while it may be writing: each block under its sequence lock."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...core.arrays.dtypes import Array

# A block that is always being written is asked for over the connection instead.
READ_TIMEOUT_S = 0.25


@dataclass(frozen=True, slots=True)
class Copy:
    """``run`` copies ``num_bytes``, valid if ``sequence`` of their block did not move meanwhile."""

    sequence: Array
    num_bytes: int
    run: Callable[[], object]


class MemoryReading:
    """A pull under way.

    Args:
        copies: Copies to make.
        last: Sequences of what is there already, if anything is.
        remember: Told the sequences of what was read.
    """

    def __init__(
        self,
        copies: Sequence[Copy],
        last: Sequence[int] | None = None,
        remember: Callable[[list[int]], None] = lambda _: None,
    ) -> None:
        self._copies = copies
        self._last = last
        self._remember = remember
        self._seen: list[int] = []
        self._moved = 0

    def go_on(
        self,
        may_read: Callable[[int], bool] = lambda _: True,
        is_open: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Read on, to the end or to the first copy that may not be read.

        Args:
            may_read: Given the number of a copy; may wait.
            is_open: Asked while the memory is written: whether to wait on.

        Returns:
            Whether all was read; False also if a block was being written all the time.
        """
        for index in range(len(self._seen), len(self._copies)):
            if not may_read(index):
                return False
            copy = self._copies[index]
            last = self._last[index] if self._last is not None else -1
            sequence = _read(copy, last, is_open)
            if sequence is None:
                return False
            self._moved += copy.num_bytes if sequence != last else 0
            self._seen.append(sequence)
        return True

    def finish(self) -> int:
        """Check that all was read.

        Returns:
            Bytes that were copied.
        """
        self._remember(self._seen)
        return self._moved


def _read(copy: Copy, last: int, is_open: Callable[[], bool]) -> int | None:
    """Make one copy under a sequence lock: repeated while the memory is written, for a while.

    Returns:
        The sequence of what is there now, ``last`` if that is there already; None: no luck in time.
    """
    deadline = time.monotonic() + READ_TIMEOUT_S
    while True:
        before = int(copy.sequence[0])
        if before == last:
            return last
        if not before & 1:
            copy.run()
            if int(copy.sequence[0]) == before:
                return before
        if time.monotonic() > deadline or not is_open():
            return None
        time.sleep(0)  # let the writer on
