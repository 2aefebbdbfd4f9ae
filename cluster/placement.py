"""Placement: how many parts a variable is cut into, and which ps holds which. Pure."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..core.arguments import real_number
from ..core.arrays.dtypes import DType, as_dtype, size_of
from ..core.public_face import public_getattr

# -- Partitioners: how many parts a variable is cut into. Pure ---------------------------------
# Names, arguments and results are those of ``tf.distribute.experimental.partitioners``: a callable
# that returns one number per axis, 1 everywhere but on ``axis``. A function will do.


PartitionFunction = Callable[[Sequence[int], DType], Sequence[int]]


class Partitioner:
    """Base class of partitioners. As ``tf.distribute.experimental.partitioners.Partitioner``."""

    def __call__(self, shape: Sequence[int], dtype: object, axis: int = 0) -> Sequence[int]:
        """Compute the parts per axis for a variable of ``shape`` and ``dtype``; of a subclass.

        Raises:
            NotImplementedError: The subclass does not define it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define __call__(shape={shape}, dtype={dtype}, axis={axis})"
        )


def _positive(name: str, value: int) -> int:
    if real_number(value, name) < 1:
        raise ValueError(f"Argument `{name}` must be positive, got {value}")
    return value


def _element_bytes(dtype: object, bytes_per_string: int) -> int:
    """Count the bytes of one element. Strings are NumPy's (``str``, ``bytes``, ``object``) or
    ``tf.string``; no variable has such a dtype, but partitioners are called by programs, too.
    """
    is_string = "string" in (dtype, getattr(dtype, "name", ""))
    if not is_string and dtype is not None:
        with contextlib.suppress(TypeError):
            is_string = np.dtype(dtype).kind in "USO"  # type: ignore[call-overload]
    return bytes_per_string if is_string else as_dtype(dtype).itemsize


def _result(shape: Sequence[int], axis: int, parts: int) -> list[int]:
    result = [1] * len(shape)
    result[axis] = parts
    return result


def _check_axis(shape: Sequence[int], axis: int) -> None:
    if not 0 <= axis < len(shape):
        raise ValueError(f"axis {axis} is out of range for shape {tuple(shape)}")


class FixedShardsPartitioner(Partitioner):
    """Always ``num_shards`` parts, or as many as there are rows if those are fewer."""

    def __init__(self, num_shards: int) -> None:
        self._num_shards = _positive("num_shards", num_shards)

    def __call__(self, shape: Sequence[int], dtype: object, axis: int = 0) -> list[int]:  # noqa: ARG002
        """Compute the parts per axis for a variable of ``shape``."""
        _check_axis(shape, axis)
        return _result(shape, axis, max(1, min(self._num_shards, shape[axis])))


class MinSizePartitioner(Partitioner):
    """A partitioner into as many parts as keep each at about ``min_shard_bytes`` or more, at most
    ``max_shards``.

    As TensorFlow's: the default ``max_shards=1`` never splits, and the count is rounded up, so
    parts can be smaller than ``min_shard_bytes``. An element of a string dtype counts as
    ``bytes_per_string``.
    """

    def __init__(
        self, min_shard_bytes: int = 256 << 10, max_shards: int = 1, bytes_per_string: int = 16
    ) -> None:
        self._min_shard_bytes = _positive("min_shard_bytes", min_shard_bytes)
        self._max_shards = _positive("max_shards", max_shards)
        self._bytes_per_string = _positive("bytes_per_string", bytes_per_string)

    def __call__(self, shape: Sequence[int], dtype: object, axis: int = 0) -> list[int]:
        """Compute the parts per axis for a variable of ``shape`` and ``dtype``."""
        _check_axis(shape, axis)
        total = size_of(tuple(shape)) * _element_bytes(dtype, self._bytes_per_string)
        wanted = math.ceil(total / self._min_shard_bytes)
        return _result(shape, axis, max(1, min(shape[axis], self._max_shards, wanted)))


class MaxSizePartitioner(Partitioner):
    """A partitioner into as few parts as keep each at ``max_shard_bytes`` or less, at most
    ``max_shards`` (None: no cap). An element of a string dtype counts as ``bytes_per_string``.
    """

    def __init__(
        self, max_shard_bytes: int, max_shards: int | None = None, bytes_per_string: int = 16
    ) -> None:
        self._max_shard_bytes = _positive("max_shard_bytes", max_shard_bytes)
        self._max_shards = _positive("max_shards", max_shards) if max_shards else None
        self._bytes_per_string = _positive("bytes_per_string", bytes_per_string)

    def __call__(self, shape: Sequence[int], dtype: object, axis: int = 0) -> list[int]:
        """Compute the parts per axis for a variable of ``shape`` and ``dtype``."""
        _check_axis(shape, axis)
        extent = shape[axis]
        total = size_of(tuple(shape)) * _element_bytes(dtype, self._bytes_per_string)
        if extent == 0 or total == 0:
            return _result(shape, axis, 1)
        # Integer arithmetic: bytes of one slice are total / extent exactly.
        slices = max(1, self._max_shard_bytes * extent // total)
        parts = math.ceil(extent / slices)
        if self._max_shards is not None:
            parts = min(parts, self._max_shards)
        return _result(shape, axis, max(1, parts))


def parts_of(partitioner: PartitionFunction | None, shape: tuple[int, ...], dtype: DType) -> int:
    """Count the parts along axis 0 into which a variable is cut.

    Raises:
        ValueError: The partitioner asks for another axis, or returns no list of numbers.
    """
    if partitioner is None or not shape:
        return 1
    result = partitioner(shape, dtype)
    if (
        not isinstance(result, list | tuple)
        or not result
        or result[0] < 1
        or any(extent != 1 for extent in result[1:])
    ):
        raise ValueError(
            "variable_partitioner must return a list/tuple whose elements are 1 besides the first "
            f"element (non-zero), got {result!r} for shape {shape}"
        )
    return min(int(result[0]), max(1, shape[0]))


if not TYPE_CHECKING:
    __getattr__ = public_getattr("ropewalk.distribute.partitioners", globals())


# -- Placement: which ps holds which shard. Pure: sizes and loads in, choices out --------------
# TensorFlow places variables round-robin whatever their size, which can overload one ps; the
# default here gives each shard to the ps with the fewest bytes. Round-robin remains for
# comparison.

Placement = Callable[[Sequence[int], Sequence[int], int], list[int]]
"""``place(sizes, loads, placed) -> ps per shard``.

``sizes``: bytes per shard, in creation order. ``loads``: bytes on each ps already. ``placed``:
shards placed before on all of them.
"""


def greedy_by_bytes(sizes: Sequence[int], loads: Sequence[int], placed: int = 0) -> list[int]:  # noqa: ARG001
    """Give each shard, in order, to the ps with the fewest bytes; ties to the lowest index.

    No ps ends with more than the mean plus the largest shard. Graham, "Bounds on Multiprocessing
    Timing Anomalies", 1969.
    """
    filled = list(loads)
    choices = []
    for size in sizes:
        ps = filled.index(min(filled))
        filled[ps] += size
        choices.append(ps)
    return choices


def round_robin(sizes: Sequence[int], loads: Sequence[int], placed: int = 0) -> list[int]:
    """Give each shard to the next ps in turn, counting every shard, as TensorFlow does."""
    return [(placed + i) % len(loads) for i in range(len(sizes))]


if not TYPE_CHECKING:
    __getattr__ = public_getattr("ropewalk.distribute.placement", globals())
