"""New rows: which keys get one, and its first values, which its key and the table's seed decide.

So any order of training and any number of ps give the same model. A row is drawn by Philox4x32-10
(Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): its key is the seed, its
counter the row's key and the number of a block of four elements. A 32-bit word ``n`` becomes ``(n +
0.5) / 2**32``; a normal draw is the normal distribution's quantile there (Wichura, AS 241 PPND7,
1988: seven digits), a truncated one the quantile between those of two deviations. Everything is
computed in float64 from operations that every processor rounds alike, the logarithm included, so
the bits are the same with and without Numba, and on any machine.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import xxhash

from ....core.arrays.dtypes import Array, DType
from ....core.errors import ConfigurationError
from ....core.rules.initializers import CONSTANT, INITIALIZERS, Initializer
from ....engine.library import library
from ..options import Admission, Chance, Sightings, SketchedSightings
from .index import INT64, KeyIndex
from .index_arrays import mixed

_U64 = np.uint64
_LOW, _HALF = _U64(0xFFFFFFFF), _U64(32)
_BELOW_TWO_DEVIATIONS = 0.022750131948179195  # the normal distribution at -2
KNOWN = (*CONSTANT, "random_normal", "random_uniform", "truncated_normal")


@dataclass(frozen=True, slots=True)
class Draws:
    """The distribution from which a table's rows are drawn.

    Attributes:
        constant: The value of every element; None: they are drawn.
        seed: Seed in [0, 2**64).
        normal: Whether quantiles are taken.
        scalars: float64: offset and span of what goes into the quantiles; offset and factor of the
            result.
    """

    constant: float | None
    seed: int
    normal: bool
    scalars: Array

    def fill(self, out: Array, keys: Array, rows: Array, first_block: int = 0) -> None:
        """Write the first values of these keys into rows of ``out``.

        Args:
            out: float array, contiguous, shape ``(num_rows, width)``. Modified.
            keys: int64, shape ``(n,)``.
            rows: int64, shape ``(n,)``, each in ``[0, num_rows)``.
            first_block: First block of the counter; another one gives other draws for the same key.
        """
        if self.constant is not None:
            out[rows] = self.constant
            return
        kernel = library.row_kernel_if_ready("draw_rows", out.dtype)
        if kernel is None:
            out[rows] = self._by_numpy(keys, out.shape[1], first_block)
            return
        counter = np.array([self.seed, first_block], np.uint64)
        kernel(keys, rows, out.reshape(-1), out.shape[1], counter, int(self.normal), self.scalars)

    def of(self, keys: Array, width: int, dtype: DType) -> Array:
        """Draw the first values of these keys, shape ``(n, width)``."""
        out = np.empty((keys.size, width), dtype)
        self.fill(out, keys, np.arange(keys.size))
        return out

    def _by_numpy(self, keys: Array, width: int, first_block: int) -> Array:
        blocks = [philox(keys, self.seed, first_block + block) for block in range(-(-width // 4))]
        words = np.concatenate(blocks, axis=1)[:, :width]
        first, span, offset, factor = self.scalars.tolist()
        x = first + span * ((words.astype(np.float64) + 0.5) * 2.0**-32)
        return np.asarray(offset + factor * (_normal_quantiles(x) if self.normal else x))


def draws_of(table: str, initializer: Initializer) -> Draws:
    """Find the distribution of a table's rows; the table's name is part of the seed.

    Raises:
        ConfigurationError: The initializer needs the number of rows, which grows.
    """
    name = initializer.name
    if name not in KNOWN:
        raise ConfigurationError(
            f"table {table!r}: the initializer {name} depends on the number of rows, and this "
            f"table grows; write one of {', '.join(KNOWN)}",
            table=table,
        )
    arguments = INITIALIZERS[name] | initializer.arguments
    seed = xxhash.xxh64_intdigest(table.encode(), seed=initializer.seed)
    if name in CONSTANT:
        constant = arguments.get("value", float(name == "ones"))
        return Draws(constant, seed, False, np.zeros(4))
    if name == "random_uniform":
        low, high = arguments["minval"], arguments["maxval"]
        return Draws(None, seed, False, np.array([0.0, 1.0, low, high - low]))
    below = _BELOW_TWO_DEVIATIONS if name == "truncated_normal" else 0.0
    scalars = np.array([below, 1.0 - 2 * below, arguments["mean"], arguments["stddev"]])
    return Draws(None, seed, True, scalars)


def uniform_of(seed: int) -> Draws:
    """Make draws from [0, 1)."""
    return Draws(None, seed, False, np.array([0.0, 1.0, 0.0, 1.0]))


def philox(keys: Array, seed: int, block: int) -> Array:
    """Compute Philox4x32-10 of each key's counter.

    Args:
        keys: int64, shape ``(n,)``: the first two words of the counter.
        seed: The two words of the key.
        block: The third word of the counter; the fourth is zero.

    Returns:
        uint64, shape ``(n, 4)``, each below ``2**32``.
    """
    words = keys.view(np.uint64)
    c0, c1 = words & _LOW, words >> _HALF
    c2, c3 = np.full(keys.shape, _U64(block)), np.zeros(keys.shape, np.uint64)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = _U64(0xD2511F53) * c0, _U64(0xCD9E8D57) * c2
        c0, c2 = (p1 >> _HALF) ^ c1 ^ _U64(k0), (p0 >> _HALF) ^ c3 ^ _U64(k1)
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1)


def _normal_quantiles(p: Array) -> Array:
    q = p - 0.5
    r = 0.180625 - q * q
    above = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179
    below = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0
    inner = q * above / below
    r = np.sqrt(-_logs(np.where(q < 0, p, 1.0 - p))) - 1.6
    above = ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777
    below = (0.12021132975 * r + 0.73700164250) * r + 1.0
    outer = above / below
    return np.where(np.abs(q) <= 0.425, inner, np.where(q < 0, -outer, outer))


def _logs(x: Array) -> Array:
    mantissa, exponent = np.frexp(x)
    small = mantissa < math.sqrt(0.5)
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    f = (mantissa - 1.0) / (mantissa + 1.0)
    s = f * f
    series = np.full(x.shape, 1.0 / 17.0)
    for divisor in (15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        series = series * s + 1.0 / divisor
    return np.asarray((exponent - small) * math.log(2) + 2.0 * f * series)


# -- Admission of keys to a table: all get a row, those seen often enough, or some by chance ---
# A sighting of a key is a push that has it. Decisions follow from the pushes in their order and
# from nothing else: not from time, the process or where an index keeps a key. So a copy of a table
# that gets the same pushes decides the same.

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
