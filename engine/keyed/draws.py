"""Initial values of rows: numbers that the table's seed and the row's key decide, and nothing else.

So any order of training and any number of ps give the same model. A row is drawn by Philox4x32-10
(Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): its key is the seed, its
counter the row's key and the number of a block of four elements. A 32-bit word ``n`` becomes ``(n +
0.5) / 2**32``; a normal draw is the normal distribution's quantile there (Wichura, AS 241 PPND7,
1988: seven digits), a truncated one the quantile between those of two deviations. Everything is
computed in float64 from operations that every processor rounds alike, the logarithm included, so
the bits are the same with and without Numba, and on any machine.
"""

import math
from dataclasses import dataclass

import numpy as np
import xxhash

from ...core.arrays.dtypes import Array, DType
from ...core.errors import ConfigurationError
from ...core.rules.initializers import CONSTANT, INITIALIZERS, Initializer
from ..library import library

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
