"""Arrays of the host as arrays of JAX."""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array, DType, size_of
from ...core.arrays.gather_buffer import joined
from ...core.process.accelerators import gpus_in_use
from ...training.extras import require

# device_put takes 20 µs a piece, and three times that after a computation has displaced it from the
# caches: as long as it takes to copy this much. From here on memory is shared.
_SMALL_BYTES = 1024 * 1024
_JOINED_BYTES = 64 * 1024  # to copy as much takes as long as to hand an argument to a function


def on_device(values: Sequence[Any]) -> list[Any]:
    """Make JAX arrays of NumPy arrays. Large ones share memory where JAX can; small ones go in one
    call.

    Args:
        values: Read-only, and they stay as they are.
    """
    arrays = list(values)
    grouping = _grouping_of(tuple([(value.shape, value.dtype) for value in values]))
    for i in grouping.large:
        arrays[i] = require("jax", "jax").device_put(values[i])
    if grouping.order:
        parts = grouping.parted([joined([values[i] for i in group]) for group in grouping.groups])
        for i, part in zip(grouping.order, parts, strict=True):
            arrays[i] = part
    return arrays


def is_traced(array: Any) -> bool:
    """Return whether an array stands for one of a function that JAX is tracing."""
    return isinstance(array, require("jax", "jax").core.Tracer)


def start_copies(arrays: Sequence[Any], *, ahead: bool | None = None) -> None:
    """Start the copies of all arrays to the host, before the first is waited for.

    Args:
        arrays: Arrays of JAX; others are left as they are.
        ahead: Whether to start them. None: unless JAX' default device is the CPU, whose arrays need
            no copy.
    """
    if ahead is None:
        ahead = _has_accelerator()
    if not ahead:
        return
    for array in arrays:
        start = getattr(array, "copy_to_host_async", None)
        if start is not None and not array.is_deleted():
            start()


def to_hosts(arrays: Mapping[str, Any]) -> dict[str, Array]:
    """Convert arrays of JAX to arrays of the host, in their memory where that is the host's.

    JAX copies from a GPU into memory that is not pinned, which takes eight times as long. CuPy,
    where it is in use, copies what is large into buffers that are used again; not what is on
    several devices, of which JAX shares no memory.
    """
    if not _has_accelerator():
        return {name: np.asarray(array) for name, array in arrays.items()}
    pinned = gpus_in_use()
    large = {
        name
        for name, array in arrays.items()
        if pinned and array.nbytes > _SMALL_BYTES and not _is_on_several(array)
    }
    start_copies([array for name, array in arrays.items() if name not in large])
    return {n: to_host(array) if n in large else np.asarray(array) for n, array in arrays.items()}


def _is_on_several(array: Any) -> bool:
    """Return whether an array is on several devices: replicated, or a part on each."""
    sharding = getattr(array, "sharding", None)
    return sharding is not None and len(sharding.device_set) > 1


def name_of(path: Any) -> str:
    """Name a leaf: ``layers/0/kernel`` of JAX's keys."""
    parts = []
    for key in path:
        for attribute in ("key", "name", "idx"):
            if hasattr(key, attribute):
                parts.append(str(getattr(key, attribute)))
                break
        else:
            parts.append(str(key))
    return "/".join(parts) or "value"


@cache
def _has_accelerator() -> bool:
    return bool(require("jax", "jax").default_backend() != "cpu")


class _Grouping(NamedTuple):
    """The way of arrays of certain shapes and dtypes to a device.

    Attributes:
        large: Positions of those that go by themselves.
        groups: Positions of those that are one argument.
        order: The positions of all groups, one after another.
        parted: Makes arrays of JAX of the groups' elements, in this order.
    """

    large: list[int]
    groups: list[list[int]]
    order: list[int]
    parted: Any


@lru_cache(maxsize=64)  # each has compiled functions
def _grouping_of(kinds: tuple[tuple[tuple[int, ...], DType], ...]) -> _Grouping:
    """Plan the grouping of arrays of these shapes and dtypes."""
    large: list[int] = []
    together: dict[object, list[int]] = {}
    for i, (shape, dtype) in enumerate(kinds):
        num_bytes = size_of(shape) * dtype.itemsize
        if num_bytes <= _JOINED_BYTES:
            together.setdefault(dtype, []).append(i)
        elif num_bytes <= _SMALL_BYTES:
            together[i] = [i]
        else:
            large.append(i)
    groups = list(together.values())
    parted = _parted(tuple(tuple(kinds[i][0] for i in group) for group in groups))
    return _Grouping(large, groups, list(chain.from_iterable(groups)), parted)


def _parted(shapes: tuple[tuple[tuple[int, ...], ...], ...]) -> Any:
    """Compile a function of flat arrays, each the elements of several, that returns all of these.

    Of NumPy arrays such a function makes arrays in a fifth of the time of device_put.
    """

    def parts(flat: Sequence[Any]) -> list[Any]:
        parts = []
        for elements, group in zip(map(numpy.asarray, flat), shapes, strict=True):
            start = 0  # arrays of JAX also under jax.disable_jit
            for shape in group:
                stop = start + size_of(shape)
                parts.append(elements[start:stop].reshape(shape))
                start = stop
        return parts

    numpy = require("jax", "jax").numpy
    return require("jax", "jax").jit(parts)
