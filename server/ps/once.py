"""Pushes that are applied once, whichever task makes them.

A push may *advance* a row of an int64 variable to a number, which says how far a piece of work has
come, say a range of examples. Where the row has that number already, or a larger one, another task
has pushed the same before: nothing of this push is applied, and it is answered as if it were. The
row is a part of the push, so a follower, a checkpoint and a share that moves have it with the rest
(ADR 114).

Two conditions make it exact. All of such a push is read before any of it is applied: a worker that
is lost on the way leaves nothing half done. And of pushes to one row one is applied after the
other, so that two workers that push the same do not both find the row behind.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.wire.steps import Advanced
from .change_stream import Push
from .layout import NOTHING, LayoutRange

_LOCKS = 64  # rows that share a lock wait for each other's pushes

Fetch = Callable[[int], memoryview]


class Turns:
    """Lets pushes that advance a row be applied one after the other. Thread-safe."""

    def __init__(self) -> None:
        self._locks = tuple(threading.Lock() for _ in range(_LOCKS))

    @contextmanager
    def take(self, push: Push, advance: Advanced, fetch: Fetch) -> Iterator[tuple[Push, Fetch]]:
        """Lend what is to be applied of a push, and what fetches its values, until it is applied.

        Args:
            push: The push.
            advance: Rows that it advances.
            fetch: Fetches the next bytes of its values.
        """
        values = fetch(push.layout.num_bytes([rows.size for rows in push.rows]))
        with self._locks[advance.row % _LOCKS]:
            if _position(push.layout.gate, advance.row) >= advance.to:
                yield replace(push, layout=NOTHING, rows=(), step_increment=0), fetch
            else:
                rows, numbers = _advanced(advance)
                push = replace(push, rows=(*push.rows, rows))
                yield push, _Taken(values, numbers).take


def _position(gate: LayoutRange | None, row: int) -> int:
    if gate is None:
        raise RuntimeError("a push without a gate has no row")
    with gate.block.lock:
        return int(gate.array.value[gate.where.start + row])


def _advanced(advance: Advanced) -> tuple[Array, Array]:
    """Make the rows that a push advances, ascending, and the numbers that they are raised to."""
    row, to, settled_row, settled_to = advance
    if not settled_to or settled_row == row:
        return np.array((row,), np.int64), np.array((max(to, settled_to),), np.int64)
    pairs = sorted(((row, to), (settled_row, settled_to)))
    rows, numbers = np.array(pairs, np.int64).T
    return np.ascontiguousarray(rows), np.ascontiguousarray(numbers)


class _Taken:
    """Values of a push that were read; behind them the numbers that its rows are raised to."""

    def __init__(self, values: memoryview, numbers: Array) -> None:
        self._values, self._numbers = values, numbers.view(np.uint8).data
        self._start = 0

    def take(self, count: int) -> memoryview:
        """Take the next bytes."""
        start, self._start = self._start, self._start + count
        if start < len(self._values) or not count:
            return self._values[start : self._start]
        return self._numbers
