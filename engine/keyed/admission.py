"""Admission of keys to a table: all get a row, those seen often enough, or some by chance.

A sighting of a key is a push that has it. Decisions follow from the pushes in their order and from
nothing else: not from time, the process or where an index keeps a key. So a copy of a table that
gets the same pushes decides the same.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import ConfigurationError
from ...core.rules.tables import Admission, Chance, Sightings, SketchedSightings
from .draws import uniform_of
from .hashing import mixed
from .index import INT64, KeyIndex

_UINT32 = np.dtype(np.uint32)
_DEPTH = 4  # rows of a sketch
_SIGHTINGS_PER_COUNTER = 8  # then a sketch halves its counters: old sightings fade


class Admitter(Protocol):
    """Decides for one table."""

    def admit(self, keys: Array, push: int) -> Array:
        """Count a sighting of each key, none of which has a row, and say which get one now.

        Args:
            keys: int64, shape ``(n,)``, each once.
            push: Number of the push that has them.

        Returns:
            bool, shape ``(n,)``.
        """
        ...

    def state(self) -> dict[str, Array]:
        """Return what the admission remembers, for a copy."""
        ...

    def load(self, state: Mapping[str, Array]) -> None:
        """Remember, too, what another one does, which has seen other keys."""
        ...


def admitter(table: str, admission: Admission | None, seed: int) -> Admitter:
    """Make the admission of a table.

    Args:
        table: Name of the table.
        admission: Kind of admission; None: every key gets a row.
        seed: The table's.

    Raises:
        ConfigurationError: A number is out of range.
    """
    match admission:
        case None:
            return _Everybody()
        case Sightings(count, candidates):
            _check(table, "count", count, 1 <= count < 1 << 31, "in [1, 2**31)")
            _check(table, "max_candidates", candidates, candidates >= 2, "at least 2")
            return _Exact(table, count, candidates)
        case SketchedSightings(count, counters):
            _check(table, "count", count, 1 <= count < 1 << 31, "in [1, 2**31)")
            usable = 2 <= counters <= 1 << 30 and counters & (counters - 1) == 0
            _check(table, "counters", counters, usable, "a power of two up to 2**30")
            return _Sketch(count, counters, seed)
        case Chance(probability):
            _check(table, "probability", probability, 0 < probability <= 1, "in (0, 1]")
            return _Random(probability, seed)


def _check(table: str, what: str, value: float, is_usable: bool, expected: str) -> None:
    if not is_usable:
        raise ConfigurationError(
            f"table {table!r}: {what} of its admission is {value}; it must be {expected}",
            table=table,
        )


class _Everybody:
    def admit(self, keys: Array, push: int) -> Array:  # noqa: ARG002
        return np.ones(keys.size, np.bool_)

    def state(self) -> dict[str, Array]:
        return {}

    def load(self, state: Mapping[str, Array]) -> None:
        pass


class _Exact:
    def __init__(self, table: str, count: int, max_candidates: int) -> None:
        self._table, self._count, self._most = table, count, max_candidates
        self._seen = KeyIndex(table, max_candidates)

    def admit(self, keys: Array, push: int) -> Array:  # noqa: ARG002
        counts = np.maximum(self._seen.find(keys), 0) + 1
        admitted = counts >= self._count
        self._seen.remove(keys[admitted & (counts > 1)])
        self._insert(keys[~admitted], counts[~admitted])
        return admitted

    def state(self) -> dict[str, Array]:
        parts = [np.stack(pair) for pair in self._seen.items()]
        seen = np.concatenate([np.empty((2, 0), INT64), *parts], axis=1)
        keys, counts = seen[:, np.argsort(seen[0])]
        return {"candidate_keys": keys, "candidate_counts": counts}

    def load(self, state: Mapping[str, Array]) -> None:
        keys, counts = state["candidate_keys"], state["candidate_counts"]
        self._insert(keys, counts + np.maximum(self._seen.find(keys), 0))

    def _insert(self, keys: Array, counts: Array) -> None:
        self._seen.insert(keys, counts)
        if len(self._seen) <= self._most:
            return
        state = self.state()
        keys, counts = state["candidate_keys"], state["candidate_counts"]
        stay = np.lexsort((keys, -counts))[: self._most // 2]
        self._seen = KeyIndex(self._table, self._most)
        self._seen.insert(keys[stay], counts[stay])


class _Sketch:
    def __init__(self, count: int, counters: int, seed: int) -> None:
        self._count = count
        self._counters = np.zeros((_DEPTH, counters), _UINT32)
        self._seeds = mixed(np.arange(1, _DEPTH + 1, dtype=np.uint64) ^ np.uint64(seed))
        self._shift = np.uint64(64 - counters.bit_length() + 1)
        self._since = 0

    def admit(self, keys: Array, push: int) -> Array:  # noqa: ARG002
        lowest = np.full(keys.size, 2**32 - 1, np.uint32)
        for counters, seed in zip(self._counters, self._seeds, strict=True):
            places = (mixed(keys.view(np.uint64) ^ seed) >> self._shift).view(np.int64)
            np.add.at(counters, places, 1)
            np.minimum(lowest, counters[places], out=lowest)
        self._since += keys.size
        if self._since >= _SIGHTINGS_PER_COUNTER * self._counters.shape[1]:
            self._counters >>= np.uint32(1)
            self._since //= 2
        return np.asarray(lowest >= self._count)

    def state(self) -> dict[str, Array]:
        return {"sketch": self._counters.copy(), "sketch_since": np.array([self._since])}

    def load(self, state: Mapping[str, Array]) -> None:
        # A key was counted on one ps alone: the larger counter has all of its sightings. A sum
        # would count it once for each ps that has loaded the same sketch before.
        np.maximum(self._counters, state["sketch"], out=self._counters)
        self._since = max(self._since, int(state["sketch_since"][0]))


class _Random:
    def __init__(self, probability: float, seed: int) -> None:
        self._probability = probability
        self._draws = uniform_of(seed ^ 0x5BD1E995)  # other words than those of first values

    def admit(self, keys: Array, push: int) -> Array:
        block = push & 0xFFFFFFFF
        out = np.empty((keys.size, 1))
        self._draws.fill(out, keys, np.arange(keys.size), block)
        return np.asarray(out[:, 0] < self._probability)

    def state(self) -> dict[str, Array]:
        return {}

    def load(self, state: Mapping[str, Array]) -> None:
        pass
