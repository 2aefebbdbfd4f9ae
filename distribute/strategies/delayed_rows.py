"""Gradients of rows of growing tables that wait for some steps, to travel as one. Pure."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from ...client.ps.step import Write
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import RopewalkError
from ...core.wire.steps import Operation


@dataclass(slots=True)
class _DelayedTable:
    """The gradients that wait for one table. ``since``: the step of the oldest of it."""

    name: str
    steps: int
    max_bytes: int
    waiting: list[IndexedSlices] = field(default_factory=list)
    num_bytes: int = 0
    since: int = 0

    def add(self, rows: IndexedSlices, step: int) -> None:
        if not self.waiting:
            self.since = step
        self.waiting.append(rows.copy())  # the program may change its array
        self.num_bytes += rows.nbytes

    def is_due(self, step: int) -> bool:
        late = step - self.since >= self.steps or self.num_bytes > self.max_bytes
        return bool(self.waiting) and late

    def take(self) -> Write:
        """Take all of it as one gradient, in order: its rows are added up where it is sent."""
        waiting, self.waiting, self.num_bytes = self.waiting, [], 0
        values = np.concatenate([rows.values for rows in waiting])
        indices = np.concatenate([rows.indices for rows in waiting])
        return Write(Operation.APPLY, {self.name: IndexedSlices(values, indices)})


class DelayedRows:
    """Gradients of one worker that wait. Not thread-safe."""

    def __init__(self) -> None:
        self._tables: dict[str, _DelayedTable] = {}
        self._step = 0

    def delay(self, table: str, steps: int, max_bytes: int) -> None:
        """Have gradients of a table wait.

        Args:
            table: Name of the table.
            steps: Number of this worker's steps to wait, at least 1.
            max_bytes: Most bytes to wait; when more waits, all of it travels.
        """
        self._tables[table] = _DelayedTable(table, steps, max_bytes)

    @contextmanager
    def due(self, writes: Sequence[Write], *, is_new_step: bool) -> Iterator[list[Write]]:
        """Lend what travels with a push: writes to other tables, and what has waited long enough.

        If the push is refused before it is sent, what waited goes on waiting.

        Args:
            writes: Writes of the push.
            is_new_step: Whether the push is the first one of a step.
        """
        self._step += is_new_step
        with self._unless_refused():
            yield [*self._put_aside(writes), *self._due()]

    def _put_aside(self, writes: Sequence[Write]) -> list[Write]:
        now = []
        for write in writes:
            delayed = self._tables.keys() & write.values.keys()
            if not delayed:
                now.append(write)
            for name in delayed:
                rows = write.values[name]
                assert isinstance(rows, IndexedSlices)  # noqa: S101 - of a growing table
                self._tables[name].add(rows, self._step)
        return now

    def _due(self) -> list[Write]:
        return [each.take() for each in self._tables.values() if each.is_due(self._step)]

    @contextmanager
    def everything(self) -> Iterator[list[Write]]:
        """Lend all that waits; see :meth:`due`."""
        with self._unless_refused():
            yield [each.take() for each in self._tables.values() if each.waiting]

    @contextmanager
    def _unless_refused(self) -> Iterator[None]:
        before = {
            name: replace(each, waiting=each.waiting.copy()) for name, each in self._tables.items()
        }
        try:
            yield
        except RopewalkError:
            self._tables = before
            raise
