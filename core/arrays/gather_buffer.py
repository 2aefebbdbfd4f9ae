"""Copying large arrays by several cores, since one does not saturate memory bandwidth; and many
small ones by one call.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from .dtypes import BFLOAT16, Array, DType, as_bytes

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


# -- Parts of a payload: what is written where it travels, and not before ----------------------
# Many small gradients cost one call into NumPy instead of one each.

_dtype_of = attrgetter("dtype")


class PayloadPart(Protocol):
    """A part of a payload: some values."""

    @property
    def num_bytes(self) -> int:
        """Size in the payload. Unit: bytes."""
        ...

    @property
    def is_plain(self) -> bool:
        """Whether writing it takes no memory."""
        ...

    def write(self, out: Array) -> None:
        """Write it into ``out``, ``num_bytes`` of uint8."""
        ...

    def buffer(self) -> memoryview:
        """View the bytes of the values; those of the program's array where nothing is gathered or
        cast.
        """
        ...

    def detached(self) -> "GatherBuffer":
        """Copy the values into memory of their own."""
        ...


@dataclass(frozen=True, slots=True)
class GatherBuffer:
    """Consecutive arrays of any shapes, flat, in one dtype. See :class:`PayloadPart`.

    Attributes:
        arrays: Arrays in order. Their sizes add up to ``num_bytes``; the plan that made it saw to
            that.
        dtype: Dtype in the payload; arrays of another one are cast.
        num_bytes: Size in the payload. Unit: bytes.
        uniform: All arrays are known to be of ``dtype``.
    """

    arrays: Sequence[Array]
    dtype: DType
    num_bytes: int
    uniform: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it is one array as it travels, so that writing it takes no memory."""
        if len(self.arrays) != 1:
            return False
        array = self.arrays[0]
        return array.dtype == self.dtype and array.flags.c_contiguous

    def write(self, out: Array) -> None:
        """Gather into ``out``, ``num_bytes`` of uint8."""
        if self.is_plain:
            copy_into(out, self.arrays[0].reshape(-1).view(np.uint8))
        elif (joined := self._joined()) is not None:
            out[:] = np.frombuffer(joined, np.uint8)
        else:
            target = out.view(self.dtype) if _is_aligned(out, self.dtype) else None
            gathered = self._gather(target)
            if target is None:
                out[:] = gathered.view(np.uint8)

    def buffer(self) -> memoryview:
        """View the payload's bytes; those of the array itself where nothing is gathered or cast."""
        if self.is_plain:
            return as_bytes(self.arrays[0])
        joined = self._joined()
        return memoryview(joined) if joined is not None else as_bytes(self._gather(None))

    def detached(self) -> "GatherBuffer":
        """Copy the values into memory of their own."""
        own = np.empty(self.num_bytes, np.uint8)
        self.write(own)
        return GatherBuffer([own], np.dtype(np.uint8), self.num_bytes)

    def _joined(self) -> bytes | None:
        """Join all arrays by ``bytes.join``, fastest for many small ones; None where it does not
        apply.
        """
        if self.dtype == BFLOAT16:
            return None  # NumPy does not export it as a buffer
        if not self.uniform and set(map(_dtype_of, self.arrays)) != {self.dtype}:
            return None
        try:
            buffers: Sequence[Any] = self.arrays
            return b"".join(buffers)
        except (BufferError, TypeError):  # one is not contiguous
            return None

    def _gather(self, out: Array | None) -> Array:
        # Overflow was checked together with the values.
        with np.errstate(over="ignore"):
            if out is None:
                return np.concatenate(self.arrays, axis=None, dtype=self.dtype, casting="unsafe")
            return np.concatenate(self.arrays, axis=None, out=out, casting="unsafe")


def _is_aligned(out: Array, dtype: DType) -> bool:
    return out.ctypes.data % dtype.alignment == 0
