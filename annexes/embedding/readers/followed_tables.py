"""Rows of one table that a reader keeps, for as long as it hears of their changes.

A round asks each ps which rows of its shard changed since the round before, and pulls those that
are kept. So a copy has every change that a ps had made when it was asked: the age of a copy is the
time since the oldest question of its last whole round. Rows that are gone count as changed: pulled
again, they read as a key without a row does. Where a ps does not know all changes, since it has
taken over a share or the reader was away, all rows that are kept are pulled again.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from ....core.arrays.dtypes import Array, DType
from ....core.rules.definitions import ShardDefinition, VariableDefinition
from ....core.terminal import counted
from ....telemetry.catalogue import (
    READER_BYTES,
    READER_CHANGES,
    READER_HITS,
    READER_LAG,
    READER_MISSES,
    READER_RENEWED,
    READER_ROWS,
    Sample,
)
from ..features.row_cache import CachedLookup, RowCache, rows_of
from ..keyed.index_arrays import ps_of_keys
from .followed_rows import MAX_RANGES, FollowAnswer, FollowRequest, Position, within

_ALWAYS = 1 << 62  # lookups: how long a row is kept that did not change
_PULLED_AT_ONCE = 1 << 16  # rows; lookups of the program go between
_NO_KEYS = np.empty(0, np.int64)

Ranges = tuple[tuple[int, int], ...]


class RowSource(Protocol):
    """A source of rows, as a :class:`~.reader_session.ReaderSession` is one."""

    def shards(self, name: str) -> list[tuple[int, ShardDefinition]]:
        """List the shards of a table, in order, as (index of the ps, shard)."""
        ...

    def changed(self, ps: int, request: FollowRequest) -> tuple[FollowAnswer, Array]:
        """Fetch some rows of a shard that changed, and their keys."""
        ...

    def lookup_rows(self, wanted: dict[str, Array]) -> dict[str, tuple[Array, Array | None]]:
        """Look up rows as they are now."""
        ...


class KeptTableRows(RowCache):
    """Rows that stay until they change. Thread-safe.

    Args:
        name: The table's, for messages.
        dim: Elements of a row.
        dtype: Dtype of the rows.
        max_bytes: Most memory of rows and all that is kept beside them.
        chosen: Says which of some keys may be kept.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        dtype: DType,
        max_bytes: int,
        chosen: Callable[[Array], Array],
    ) -> None:
        super().__init__(name, dim, dtype, _ALWAYS, max_bytes)
        self._chosen = chosen
        self._in_round, self._ended_at = False, 0

    def keys(self) -> Array:
        """List all keys whose rows are kept, int64."""
        with self._lock:
            return self._keys[: self._used].copy()

    @property
    def room(self) -> int:
        """Number of further rows that can be kept before others have to go."""
        return self._keys.size - self._used

    def begin_round(self) -> None:
        """Begin a round: a lookup that is under way from now on may have rows of before a
        change.
        """
        with self._lock:
            self._in_round = True

    def end_round(self) -> None:
        """End a round: what later lookups pull is as new as what is kept."""
        with self._lock:
            self._in_round, self._ended_at = False, self._lookups

    def holds(self, keys: Array) -> Array:
        """Find the keys that have their rows here, bool."""
        with self._lock:
            return np.asarray(self._index.find(keys) >= 0)

    def renew(self, keys: Array, rows: Array) -> None:
        """Write rows; of keys that are not here as many as there is room for.

        Args:
            keys: int64, each once.
            rows: Shape ``(n, dim)``.
        """
        with self._lock:
            places = self._index.find(keys)
            is_kept = places >= 0
            self._values[places[is_kept]] = rows[is_kept]
            new = np.flatnonzero(~is_kept)[: self.room]
            fresh = np.arange(self._used, self._used + new.size)
            self._used += new.size
            self._keys[fresh] = keys[new]
            self._index.insert(keys[new], fresh)
            self._write(fresh, rows[new], self._lookups)

    def _may_keep(self, lookup: CachedLookup) -> bool:
        return not self._in_round and lookup.number > self._ended_at

    def _choose(self, keys: Array, new: Array) -> tuple[Array, Array]:
        return super()._choose(keys, new[self._chosen(keys[new])])


class FollowedTable:
    """The rows of one table that a reader keeps, and up to where it knows their changes.

    Args:
        definition: The table, or variable.
        keys: Keys whose rows are kept: ranges of keys, ``last`` included; an array of keys; None:
            those that lookups bring, by how often they do.
        max_bytes: Most memory. Unit: bytes.
        source: Source of the rows.

    Attributes:
        rows: Rows that are kept.
        as_of: Time up to which all changes are in it, on the clock of ``time.monotonic``.
        changes: Number of rows that the ps named: as changed, or as there when following began.
        renewed: Number of those that were pulled.
    """

    def __init__(
        self,
        definition: VariableDefinition,
        keys: Ranges | Array | None,
        max_bytes: int,
        source: RowSource,
    ) -> None:
        self._name, self._source = definition.name, source
        self._ranges: Ranges = keys if isinstance(keys, tuple) else ()
        self._list = np.unique(keys) if isinstance(keys, np.ndarray) else None
        self._shards = source.shards(definition.name)
        self._is_keyed = definition.table is not None
        self._positions = [Position() for _ in self._shards]
        dim = int(np.prod(definition.shape[1:], dtype=np.int64))
        self.rows = KeptTableRows(
            definition.name, dim, definition.dtype, max_bytes, self._is_chosen
        )
        self.as_of = float("-inf")
        self.changes = self.renewed = 0

    def _is_chosen(self, keys: Array) -> Array:
        if self._list is not None:
            at = np.minimum(np.searchsorted(self._list, keys), self._list.size - 1)
            return np.asarray(self._list[at] == keys)
        return within(keys, self._ranges)

    def follow(self) -> None:
        """Go one round: have every change that the ps have made until now.

        Raises:
            PeerLostError: A ps does not answer. What was heard so far is kept.
        """
        began = time.monotonic()
        self.rows.begin_round()
        try:
            for number in range(len(self._shards)):
                self._follow_shard(number)
        finally:
            self.rows.end_round()
        self.as_of = began

    def _follow_shard(self, number: int) -> None:
        ps, shard = self._shards[number]
        before = self._positions[number]
        position, parts, unknown = self._changed(ps, shard, before)
        if unknown:
            parts = [self._own_keys(shard)]
            if self._ranges:
                position, rows, still = self._changed(ps, shard, Position(position.log, 0))
                parts += [] if still else rows
        self._pull(np.unique(np.concatenate([_NO_KEYS, *parts])))
        self._positions[number] = position

    def _changed(
        self, ps: int, shard: ShardDefinition, since: Position
    ) -> tuple[Position, list[Array], bool]:
        """Ask for changes; returns (where to go on, keys, whether all may have changed)."""
        parts, cursor, position = list[Array](), 0, Position()
        while True:
            request = FollowRequest(self._name, shard.part, since, cursor, self._ranges)
            answer, keys = self._source.changed(ps, request)
            if not cursor:
                position = answer.position
            if answer.unknown:
                return answer.position, [], True
            parts.append(keys)
            self.changes += keys.size
            cursor = answer.next
            if not cursor:
                return position, parts, False

    def _own_keys(self, shard: ShardDefinition) -> Array:
        """List the keys of a shard that are kept, or are to be."""
        keys = self.rows.keys()
        if self._list is not None:
            keys = np.union1d(keys, self._list)
        mine: Array
        if self._is_keyed:
            mine = ps_of_keys(keys, shard.num_parts) == shard.part
        else:
            mine = (keys >= shard.row_offset) & (keys < shard.row_offset + shard.rows)
        return np.asarray(keys[mine])

    def _pull(self, keys: Array) -> None:
        for part in _pieces(keys[self._is_wanted(keys)]):
            rows, inverse = self._source.lookup_rows({self._name: part})[self._name]
            self.rows.renew(part, rows_of(rows, inverse))
            self.renewed += part.size

    def _is_wanted(self, keys: Array) -> Array:
        held = self.rows.holds(keys)
        if not self.rows.room or not (self._ranges or self._list is not None):
            return held  # others are not brought here by a change
        wanted: Array = held | self._is_chosen(keys)
        return wanted


def followed_samples(tables: Mapping[str, FollowedTable]) -> Iterator[Sample]:
    """Yield what a reader keeps of each table, for Prometheus."""
    now = time.monotonic()
    for name, table in tables.items():
        for metric, value in (
            (READER_LAG, now - table.as_of),
            (READER_ROWS, len(table.rows)),
            (READER_BYTES, table.rows.num_bytes),
            (READER_HITS, table.rows.hits),
            (READER_MISSES, table.rows.misses),
            (READER_CHANGES, table.changes),
            (READER_RENEWED, table.renewed),
        ):
            yield Sample(metric, value, (name,))


def _pieces(keys: Array) -> Iterator[Array]:
    for start in range(0, keys.size, _PULLED_AT_ONCE):
        yield keys[start : start + _PULLED_AT_ONCE]


def ranges_of(table: str, keys: Sequence[tuple[int, int]]) -> Ranges:
    """Check ranges of keys.

    Raises:
        ValueError: One is empty or no range of int64, or there are too many.
    """
    ranges = tuple((int(first), int(last)) for first, last in keys)
    if not 0 < len(ranges) <= MAX_RANGES:
        raise ValueError(
            f"table {table!r}: {counted(len(ranges), 'range')} of keys; 1 to {MAX_RANGES} can be"
        )
    for first, last in ranges:
        if not -(2**63) <= first <= last < 2**63:
            raise ValueError(
                f"table {table!r}: ({first}, {last}) is no range of keys: (first, last), both "
                "int64 and both in it"
            )
    return ranges
