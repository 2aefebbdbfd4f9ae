"""Rows that a session looks up, and what its own pushes change of them.

Rows may be looked up before the step that needs them. A worker's own pushes are all made by its
session, so it knows which of these rows they change. Only those are looked up again; what other
workers have trained meanwhile shows with the next lookup.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import RLock
from typing import Protocol

import numpy as np

from ...core import annexes
from ...core.arrays.dtypes import Array, DType, row_shape, size_of
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.arrays.scaled_rows import INT8, SCALE_BYTES, unpack_rows
from ...core.task import Incarnation
from ...core.wire.steps import PullTarget, StepRequest
from ...engine.rows import gather_rows
from .definer import PlacedVariable
from .distinct_rows import DistinctRows, DistinctRowsCache, Rows, RowSums, WantedRows, row_pulls
from .plan_cache import PlanCache
from .step import Write

_MOST_NOTED = 16  # pushed rows, per row that was looked up: beyond, all are looked up again
_NO_ROWS = np.empty(0, np.int64)


class PushWatcher(Protocol):
    """Keeps rows of a growing table, which this worker's own gradients change, too."""

    def pushed(self, rows: DistinctRows, sums: RowSums, step: int) -> None:
        """Take note of a gradient that was sent.

        Args:
            rows: Keys of the gradient's rows.
            sums: The sum of the gradients of each key.
            step: Global step of the values from which it was computed.
        """
        ...

    def forget(self) -> None:
        """Discard what was shown: the push was refused, or answered as a repeated one, and may not
        be applied.
        """
        ...


class RowsAhead:
    """Rows of several variables and tables, as they were at one moment. The session locks.

    Attributes:
        rows: Rows that were looked up.
    """

    def __init__(self, rows: Sequence[WantedRows]) -> None:
        self.rows = tuple(rows)
        self._changed: dict[str, list[Array] | None] = {wanted.name: [] for wanted in rows}

    def note(self, variable: str, changed: Array | None) -> None:
        """Note that this worker changes rows.

        Args:
            variable: Name of the variable; it need not be one of these.
            changed: int64: the numbers of the rows, or keys; None: any.
        """
        noted = self._changed.get(variable)
        if noted is None:
            return
        count = sum(numbers.size for numbers in noted) + (0 if changed is None else changed.size)
        most = _MOST_NOTED * sum(wanted.distinct.unique.size for wanted in self.rows)
        if changed is None or count > most:
            self._changed[variable] = None
        else:
            noted.append(changed)

    def note_all(self) -> None:
        """Note that this worker may have changed anything."""
        self._changed = dict.fromkeys(self._changed)

    def stale(self) -> list[Array]:
        """Find the distinct rows that have changed: ascending positions, per variable."""
        return [
            _changed(wanted.distinct.unique, self._changed[wanted.name]) for wanted in self.rows
        ]


def changes_of(writes: Sequence[Write]) -> Iterator[tuple[str, Array | None]]:
    """List the changes that a push makes: (name of the variable, its rows or keys; None: any of
    them).
    """
    for write in writes:
        for name, value in write.values.items():
            yield name, value.indices if isinstance(value, IndexedSlices) else None


def part_of(rows: DistinctRows, positions: Array) -> DistinctRows:
    """Select distinct rows by their positions.

    Args:
        rows: Rows of a variable or table.
        positions: int64, ascending.
    """
    unique, bounds = rows.unique[positions], None
    if rows.bounds is not None:
        bounds = tuple(np.searchsorted(positions, rows.bounds).tolist())
    return DistinctRows(unique, unique, None, bounds)


def _changed(unique: Array, changed: list[Array] | None) -> Array:
    if changed is None:
        return np.arange(unique.size)
    if not changed:
        return _NO_ROWS
    keyed = annexes.the("keyed.distinct", "embedding", "looking rows up ahead")
    before = np.concatenate(changed)
    # Numbered in the order in which they first stand: those of `before` come first.
    _, numbers = keyed.distinct("", np.concatenate([before, unique]))
    last = numbers[: before.size].max(initial=-1)
    return np.flatnonzero(numbers[before.size :] <= last)


_UINT8 = np.dtype(np.uint8)  # of rows that came with their scales


class RowSession(Protocol):
    """The session that asks the ps for rows.

    Attributes:
        lock: Lock of the session, which does nothing else while it is held.
        global_step: The last one that this task has seen.
    """

    lock: RLock
    global_step: int

    def between_steps(self) -> AbstractContextManager[None]:
        """Wait for the step under way, and let no other begin meanwhile."""
        ...

    def exchange(self, requests: dict[int, StepRequest], targets: dict[int, PullTarget]) -> None:
        """Send to all and receive from all."""
        ...


class RowLookups:
    """Looks up rows of variables and tables. Thread-safe.

    Args:
        session: Asks the ps.
        who: Incarnation of the calling task.
        place: A variable by its name, and where its shards are.
        plans: Plans of what lookups mean in bytes.

    Attributes:
        distinct: The rows of the last lookups, for gradients of them.
    """

    def __init__(
        self,
        session: RowSession,
        who: Incarnation,
        place: Callable[[str], PlacedVariable],
        plans: PlanCache,
    ) -> None:
        self._session = session
        self._place = place
        self._plans = plans
        self.distinct = DistinctRowsCache(who)
        self._ahead: weakref.WeakSet[RowsAhead] = weakref.WeakSet()
        self._watchers: dict[str, PushWatcher] = {}

    def lookup(self, variable: str, indices: Array) -> Array:
        """Look up rows of a variable, in the order of ``indices``; repeated ones are fetched once.

        Args:
            variable: Name of the variable.
            indices: integer array of any shape.

        Returns:
            Array of shape ``(*indices.shape, *variable.shape[1:])``.

        Raises:
            ShapeMismatchError: An index is out of range.
        """
        with self._session.lock:
            ids = np.ascontiguousarray(indices).reshape(-1).astype(np.int64, copy=False)
            rows, inverse = self.lookup_rows({variable: ids})[variable]
            shape = (*np.shape(indices), *row_shape(self._place(variable).definition.shape))
            if inverse is None:
                return rows.reshape(shape)
            spread = self.distinct.memory.take_array((ids.size, rows.shape[1]), rows.dtype)
            return gather_rows(rows, inverse, spread).reshape(shape)

    def lookup_rows(self, wanted: Mapping[str, Array]) -> dict[str, Rows]:
        """Look up rows of several variables and tables, in one round trip; each row is fetched
        once.

        Args:
            wanted: Numbers of rows by name of the variable, or keys of a table; int64, shape
                ``(n,)``. May repeat.

        Returns:
            The rows by name: (the distinct rows, shape ``(count, elements of a row)``; int64, shape
            ``(n,)``: which of them belongs to each id. None: one after the other)
            ``(n,)``: which of them belongs to each id. None: one after the other)

        Raises:
            ShapeMismatchError: The number of a row is out of range.
        """
        return self.lookup_states(wanted, {})[0]

    def lookup_states(
        self, wanted: Mapping[str, Array], states: Mapping[str, Array]
    ) -> tuple[dict[str, Rows], dict[str, Rows]]:
        """Look up rows as :meth:`lookup_rows` does, and rows of tables with their slots and counts.

        Args:
            wanted: Ids of the rows, as for :meth:`lookup_rows`.
            states: Keys by name of the table, int64, shape ``(n,)``.

        Returns:
            (the rows by name, as :meth:`lookup_rows` returns them; the same for ``states``, whose
            rows are those of ``RowsByKey.read_states``)
        """
        with self._session.between_steps():
            rows = self._wanted(self._distinct_ids(wanted))
            whole = self._wanted(self._distinct_ids(states), with_state=True)
            self._fetch([*rows, *whole])
            return _found(rows), _found(whole)

    def watch_pushes(self, table: str, watcher: PushWatcher) -> None:
        """Have gradients that this session pushes to a growing table shown to a watcher.

        Args:
            table: Name of the table; it may not be defined yet.
            watcher: Called under the session's lock.
        """
        with self._session.lock:
            self._watchers[table] = watcher

    def look_up_ahead(self, wanted: Mapping[str, Array]) -> RowsAhead:
        """Look up rows for a later step. Arguments and errors: :meth:`lookup_rows`."""
        with self._session.between_steps():
            rows = self._wanted(self._distinct_ids(wanted))
            self._fetch(rows)
            ahead = RowsAhead(rows)
            self._ahead.add(ahead)
            return ahead

    def catch_up(self, ahead: RowsAhead) -> dict[str, Rows]:
        """Bring rows that were looked up ahead up to date: those that this task has changed are
        read again.

        Returns:
            Rows, as :meth:`lookup_rows` returns them.
        """
        with self._session.between_steps():
            self._ahead.discard(ahead)
            stale = ahead.stale()
            if any(positions.size for positions in stale):
                # All of them are asked for, so that the layout is that of the lookup.
                changed = self._wanted(
                    (wanted.placed, part_of(wanted.distinct, positions))
                    for wanted, positions in zip(ahead.rows, stale, strict=True)
                )
                self._fetch(changed)
                for wanted, positions, now in zip(ahead.rows, stale, changed, strict=True):
                    wanted.out[positions] = now.out
            return _found(ahead.rows)

    def note_changed(self) -> None:
        """Note that variables were changed by other means than steps of this session."""
        with self._session.lock:
            for ahead in self._ahead if self._ahead else ():  # a WeakSet is slow to begin
                ahead.note_all()

    def keep_lookups(self, count: int) -> None:
        """Remember the rows of so many lookups of each table, until gradients of them are pushed.

        Args:
            count: Number of lookups, at least 1, the default.
        """
        with self._session.lock:
            self.distinct.per_table = count

    def _distinct_ids(
        self, wanted: Mapping[str, Array]
    ) -> list[tuple[PlacedVariable, DistinctRows]]:
        placed = [self._place(name) for name in wanted]
        distinct = self.distinct.of_all(list(zip(placed, wanted.values(), strict=True)))
        return list(zip(placed, distinct, strict=True))

    def _wanted(
        self, several: Iterable[tuple[PlacedVariable, DistinctRows]], *, with_state: bool = False
    ) -> list[WantedRows]:
        """Prepare rows to be filled, of all variables in one piece of memory."""
        shapes = []
        for placed, distinct in several:
            definition = placed.definition
            elements = size_of(row_shape(definition.shape))
            if with_state and definition.table is not None:
                elements = definition.table.state_elements(elements)
            shapes.append((placed, distinct, (distinct.unique.size, elements)))
        out = self.distinct.memory.take_arrays(
            [(shape, placed.definition.dtype) for placed, _, shape in shapes]
        )
        return [
            WantedRows(placed, distinct, rows, with_state)
            for (placed, distinct, _), rows in zip(shapes, out, strict=True)
        ]

    def _fetch(self, rows: Sequence[WantedRows]) -> None:
        plan = self._plans.row_plan(rows)
        arriving = [self._arriving(*pair) for pair in zip(rows, plan.dtypes, strict=True)]
        session = self._session
        session.exchange(*row_pulls(tuple(arriving), plan.layouts, session.global_step))
        for wanted, arrived in zip(rows, arriving, strict=True):
            if arrived is not wanted:
                wanted.out[...] = _widened(arrived.out, wanted.out.dtype)

    def _arriving(self, rows: WantedRows, dtype: DType | None) -> WantedRows:
        """Prepare rows to be filled in the dtype in which they travel."""
        if dtype is None:
            return rows
        (count, width), memory = rows.out.shape, self.distinct.memory
        if dtype == INT8:
            return replace(rows, out=memory.take_array((count, SCALE_BYTES + width), _UINT8))
        return replace(rows, out=memory.take_array((count, width), dtype))

    def note_push(self, writes: Sequence[Write]) -> None:
        """Note which rows a push changes, for those that were looked up ahead; under the lock."""
        if not self._ahead:
            return
        for variable, rows in changes_of(writes):
            changed = rows
            if rows is not None:
                placed = self._place(variable)
                changed = self.distinct.of(placed, rows).unique
            for ahead in self._ahead:
                ahead.note(variable, changed)

    def show_push(self, writes: Sequence[Write], step: int) -> None:
        """Show watchers a push that was sent, computed at global step ``step``; under the lock."""
        if not self._watchers:
            return
        for write in writes:
            for name in write.values.keys() & self._watchers.keys():
                rows = write.values[name]
                if not isinstance(rows, IndexedSlices):
                    continue
                distinct = self.distinct.of(self._place(name), rows.indices)
                values = np.ascontiguousarray(rows.values).reshape(distinct.ids.size, -1)
                sums = distinct.sums(values, self.distinct.memory)
                self._watchers[name].pushed(distinct, sums, step)

    def forget_shown(self) -> None:
        """Tell watchers that a push may not have been applied; under the lock."""
        for watcher in self._watchers.values():
            watcher.forget()


def _found(rows: Sequence[WantedRows]) -> dict[str, Rows]:
    return {wanted.name: (wanted.out, wanted.distinct.inverse) for wanted in rows}


def _widened(rows: Array, dtype: DType) -> Array:
    """Convert rows that came in a narrower dtype."""
    return unpack_rows(rows, dtype) if rows.dtype == _UINT8 else rows
