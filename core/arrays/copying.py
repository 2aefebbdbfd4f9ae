"""Copying large arrays by several cores, since one does not saturate memory bandwidth; and many
small ones by one call.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from .dtypes import Array

_PARALLEL_BYTES = 8 * 1024 * 1024  # below, handing work to a thread costs more than it saves
_MAX_THREADS = 8


def copy_into(target: Array, source: Array) -> None:
    """Do ``target[:] = source`` for flat byte arrays of one size; large ones by several threads."""

    def part(start: int, stop: int) -> None:
        np.copyto(target[start:stop], source[start:stop])

    split(part, target.nbytes, itemsize=1)


def joined(arrays: Sequence[Array]) -> Array:
    """Join arrays of one dtype, one after another, to be read.

    Args:
        arrays: Arrays of any shapes, at least one.

    Returns:
        1-D; of a single array its own memory where that is contiguous.
    """
    if len(arrays) == 1:
        return arrays[0].reshape(-1)
    try:
        elements = b"".join(arrays)  # type: ignore[arg-type] # fastest for many
    except (BufferError, TypeError, ValueError):  # not contiguous, or bfloat16, which is no buffer
        return np.concatenate(arrays, axis=None)
    return np.frombuffer(elements, arrays[0].dtype)


def split(
    work: Callable[[int, int], None], count: int, *, itemsize: int, aligned: int = 16
) -> None:
    """Call ``work(start, stop)`` for parts of ``range(count)``, in threads if it is large.

    Args:
        work: Should release the GIL.
        count: Elements.
        itemsize: Bytes per element.
        aligned: Parts begin at multiples of so many elements.
    """
    threads = 1
    if is_split(count, itemsize):  # what the kernel is asked takes as long as a small one
        threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    if threads < 2:
        work(0, count)
        return
    step = -(-count // (threads * aligned)) * aligned
    starts = range(0, count, step)
    # The caller is one of the threads.
    others = [_pool().submit(work, start, min(start + step, count)) for start in starts[1:]]
    work(0, min(step, count))
    for other in others:
        other.result()


def is_split(count: int, itemsize: int) -> bool:
    """Return whether :func:`split` asks for more threads than the caller's.

    Args:
        count: Elements.
        itemsize: Bytes per element.
    """
    return count * itemsize >= _PARALLEL_BYTES


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="copy")
