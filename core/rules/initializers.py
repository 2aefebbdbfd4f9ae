"""Initial values, computed where the variable lives.

The value of an element depends on the seed and on its place in the *whole* variable, never on how
the variable is cut into shards: rows are drawn in fixed blocks, each with a generator of its own
(Philox, keyed by seed and block number), so 1 ps or 7 give the same model and no 100 GB table
travels.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ..arrays.dtypes import Array, DType, num_rows, row_shape, size_of

_BLOCK_ELEMENTS = 1 << 16  # per generator: large enough that keying one costs nothing


@dataclass(frozen=True, slots=True, init=False)
class Initializer:
    """A named way to fill a variable, where it lives.

    ::

        rw.Initializer("random_normal", seed=1, stddev=0.01)

    ==================== ======================================= ==================================
    name                 arguments and their defaults            values
    ==================== ======================================= ==================================
    ``zeros``, ``ones``                                          0, 1
    ``constant``         ``value=0.0``                           the value
    ``random_normal``    ``mean=0.0``, ``stddev=0.05``           N(mean, stddev²)
    ``random_uniform``   ``minval=-0.05``, ``maxval=0.05``       uniform in [minval, maxval)
    ``truncated_normal`` ``mean=0.0``, ``stddev=0.05``           normal, drawn again beyond two
                                                                 deviations
    ``glorot_uniform``,                                          variance 2 / (fan_in + fan_out);
    ``glorot_normal``                                            Glorot and Bengio, AISTATS 2010
    ``he_uniform``,                                              variance 2 / fan_in;
    ``he_normal``                                                He et al., ICCV 2015
    ==================== ======================================= ==================================

    The fans are those of Keras: of a table of shape ``(rows, dim)`` they are ``rows`` and ``dim``.

    Args:
        name: Name of the initializer, from ``INITIALIZERS``.
        seed: Same seed, same values, however the variable is cut. In [0, 2**64).
        arguments: Arguments of that initializer, by name.
        keywords: Further arguments of that initializer.

    Raises:
        ValueError: Unknown initializer, an argument that it lacks or that is given twice, or a
            seed out of range; NaN or infinity for a random one.
        TypeError: An argument is not a number.
    """

    name: str
    seed: int
    arguments: dict[str, float]

    def __init__(
        self,
        name: str,
        seed: int = 0,
        arguments: Mapping[str, float] | None = None,
        **keywords: float,
    ) -> None:
        if name not in INITIALIZERS:
            raise ValueError(f"no initializer {name!r}; those are {', '.join(INITIALIZERS)}")
        merged: dict[str, Any] = dict(arguments or {})
        if twice := merged.keys() & keywords:
            raise ValueError(f"{name} was given {', '.join(sorted(twice))} twice")
        merged |= keywords
        if unknown := merged.keys() - INITIALIZERS[name]:
            raise ValueError(
                f"{name} has no argument {', '.join(sorted(unknown))}; "
                f"it has {', '.join(INITIALIZERS[name]) or 'none'}"
            )
        for argument, value in merged.items():
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{argument} of {name} must be a number, got {value!r}")
            # A constant may be NaN or infinite, as the best loss so far is at first.
            if name not in CONSTANT and not abs(float(value)) <= _LARGEST:
                raise ValueError(f"{argument} of {name} must be finite, got {value!r}")
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed must be in [0, 2**64), got {seed}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "arguments", merged)

    def rows(self, full_shape: tuple[int, ...], dtype: DType, start: int, stop: int) -> Array:
        """Compute rows ``[start, stop)`` of the variable.

        Args:
            full_shape: Shape of the whole variable.
            dtype: Dtype of the result.
            start: First row.
            stop: End of the rows: the last one plus 1.

        Returns:
            Array of shape ``(stop - start, *full_shape[1:])``; a scalar's is ``()``.
        """
        shape = (stop - start, *row_shape(full_shape)) if full_shape else ()
        out = np.empty(shape, dtype)
        self.fill(out, full_shape, start)
        return out

    def fill(self, out: Array, full_shape: tuple[int, ...], start: int) -> None:
        """Write the rows from ``start`` on into ``out``, in place: memory beyond it is one block of
        rows.

        Args:
            out: C-contiguous, shape ``(rows, *full_shape[1:])``; a scalar's is ``()``. Modified.
            full_shape: Shape of the whole variable.
            start: First row.
        """
        arguments = {**INITIALIZERS[self.name], **self.arguments}
        if self.name in CONSTANT:
            out[...] = arguments.get("value", float(self.name == "ones"))
            return
        draw = _random(self.name, full_shape, arguments)
        stop = start + num_rows(out.shape)
        out = out.reshape(stop - start, size_of(row_shape(full_shape)))
        per_row = max(1, out.shape[1])
        block_rows = max(1, _BLOCK_ELEMENTS // per_row)
        for block in range(start // block_rows, -(-stop // block_rows)):
            first = block * block_rows
            count = min(block_rows, num_rows(full_shape) - first)
            generator = np.random.Generator(
                np.random.Philox(key=np.array([self.seed, block], np.uint64))
            )
            values = draw(generator, (count, out.shape[1]))
            low, high = max(start, first), min(stop, first + count)
            out[low - start : high - start] = values[low - first : high - first]


# Name -> its arguments with their defaults. Names and formulas as Keras.
INITIALIZERS: dict[str, dict[str, float]] = {
    "zeros": {},
    "ones": {},
    "constant": {"value": 0.0},
    "random_normal": {"mean": 0.0, "stddev": 0.05},
    "random_uniform": {"minval": -0.05, "maxval": 0.05},
    "truncated_normal": {"mean": 0.0, "stddev": 0.05},
    "glorot_uniform": {},
    "glorot_normal": {},
    "he_uniform": {},
    "he_normal": {},
}
CONSTANT = ("zeros", "ones", "constant")
"""Initializers that give every element one number."""
_LARGEST = sys.float_info.max / 2  # the difference of two is finite
# A standard normal cut at ±2 has this deviation; dividing by it restores the one asked for.
_TRUNCATED_STDDEV = 0.87962566103423978

_Draw = Callable[[np.random.Generator, tuple[int, int]], Array]


def _random(name: str, full_shape: tuple[int, ...], arguments: dict[str, float]) -> _Draw:
    if name == "random_normal":
        return lambda rng, shape: rng.normal(arguments["mean"], arguments["stddev"], shape)
    if name == "random_uniform":
        return lambda rng, shape: rng.uniform(arguments["minval"], arguments["maxval"], shape)
    if name == "truncated_normal":
        return _truncated(arguments["mean"], arguments["stddev"])
    fan_in, fan_out = _fans(full_shape)
    scale = 2.0 / (fan_in + fan_out) if name.startswith("glorot") else 2.0 / fan_in
    if name.endswith("normal"):
        return _truncated(0.0, np.sqrt(scale) / _TRUNCATED_STDDEV)
    limit = np.sqrt(3.0 * scale)
    return lambda rng, shape: rng.uniform(-limit, limit, shape)


def _truncated(mean: float, stddev: float) -> _Draw:
    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
        values = rng.standard_normal(shape)
        outside = np.abs(values) > 2
        while count := int(np.count_nonzero(outside)):
            values[outside] = rng.standard_normal(count)
            outside = np.abs(values) > 2
        return mean + stddev * values

    return draw


def _fans(shape: tuple[int, ...]) -> tuple[float, float]:
    """Compute (fan_in, fan_out) as Keras does."""
    if len(shape) < 2:
        fan = float(max(1, shape[0])) if shape else 1.0
        return fan, fan
    receptive = size_of(shape[:-2])
    return float(max(1, shape[-2] * receptive)), float(max(1, shape[-1] * receptive))
