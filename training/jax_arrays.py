"""Arrays of the host as arrays of JAX."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from .extras import require

# device_put takes 20 µs a piece, and three times that after a computation has displaced it from the
# caches: as long as it takes to copy this much. From here on memory is shared.
_SMALL_BYTES = 1024 * 1024


def on_device(values: Sequence[Any]) -> list[Any]:
    """JAX arrays of NumPy arrays. Large ones share memory where JAX can; small ones go in one call.

    Args:
        values: Read-only, and they stay as they are.
    """
    small = [i for i, value in enumerate(values) if value.nbytes <= _SMALL_BYTES]
    arrays = list(values)
    if small:
        copied = _copy()([values[i] for i in small])
        for i, array in zip(small, copied, strict=True):
            arrays[i] = array
    for i, value in enumerate(values):
        if value.nbytes > _SMALL_BYTES:
            arrays[i] = require("jax", "jax").device_put(value)
    return arrays


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


def name_of(path: Any) -> str:
    """The name of a leaf: ``layers/0/kernel`` of JAX's keys."""
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


@cache
def _copy() -> Any:
    # Of NumPy arrays a jitted function makes arrays in a fifth of the time of device_put.
    return require("jax", "jax").jit(lambda values: values)
