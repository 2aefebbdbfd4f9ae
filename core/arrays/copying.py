"""Copying large arrays with several cores: one alone does not saturate memory bandwidth."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from .dtypes import Array

_PARALLEL_BYTES = 8 * 1024 * 1024  # below, handing work to a thread costs more than it saves
_MAX_THREADS = 8


def copy_into(target: Array, source: Array) -> None:
    """``target[:] = source`` for flat byte arrays of one size; large ones by several threads."""

    def part(start: int, stop: int) -> None:
        np.copyto(target[start:stop], source[start:stop])

    split(part, target.nbytes, itemsize=1)


def split(work: Callable[[int, int], None], count: int, *, itemsize: int) -> None:
    """Call ``work(start, stop)`` for parts of ``range(count)``, in threads if it is large.

    Args:
        work: Should release the GIL. Parts begin at multiples of 16 elements.
        count: Elements.
        itemsize: Bytes per element.
    """
    threads = 1
    if count * itemsize >= _PARALLEL_BYTES:  # what the kernel is asked takes as long as a small one
        threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    if threads < 2:
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
