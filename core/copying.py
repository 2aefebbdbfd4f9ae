"""Copying large arrays with several cores: one alone does not saturate memory bandwidth."""

import contextlib
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from .arrays import Array, DType

_PARALLEL_BYTES = 8 * 1024 * 1024  # below, handing work to a thread costs more than it saves
_TEMPORARY_BYTES = 2 * 1024 * 1024
_MAX_THREADS = 8
_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)


def copy_into(target: Array, source: Array) -> None:
    """``target[:] = source`` for flat byte arrays of one size; large ones by several threads."""

    def part(start: int, stop: int) -> None:
        np.copyto(target[start:stop], source[start:stop])

    split(part, target.nbytes, itemsize=1)


def temporary_buffer(count: int, dtype: DType) -> Array:
    """Memory for a short-lived copy, returned to the system when it is dropped.

    Memory from the heap would be kept: after a large block is freed, malloc raises its mmap
    threshold.
    """
    num_bytes = count * dtype.itemsize
    if num_bytes < _TEMPORARY_BYTES:
        return np.empty(count, dtype)
    memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if _HUGE is not None:
        # A page fault per 2 MiB: the first use of 64 MiB costs 6 ms instead of 20.
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(_HUGE)
    return np.frombuffer(memory, dtype)


def split(work: Callable[[int, int], None], count: int, *, itemsize: int) -> None:
    """Call ``work(start, stop)`` for parts of ``range(count)``, in threads if it is large.

    Args:
        work: Should release the GIL. Parts begin at multiples of 16 elements.
        count: Elements.
        itemsize: Bytes per element.
    """
    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    if threads < 2 or count * itemsize < _PARALLEL_BYTES:
        work(0, count)
        return
    step = (count // threads // 16 + 1) * 16
    starts = range(0, count, step)
    # The caller is one of the threads.
    others = [_pool().submit(work, start, min(start + step, count)) for start in starts[1:]]
    work(0, min(step, count))
    for other in others:
        other.result()


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="copy")
