"""Calls of NCCL, through CuPy: whether it is there, its dtypes, and calls that begin together."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ...core.process.accelerators import load_nccl

_NUMBERS = {
    "int8": "NCCL_INT8",
    "int32": "NCCL_INT32",
    "int64": "NCCL_INT64",
    "uint8": "NCCL_UINT8",
    "uint32": "NCCL_UINT32",
    "uint64": "NCCL_UINT64",
    "float16": "NCCL_FLOAT16",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "bfloat16": "NCCL_BFLOAT16",
}
NCCL_DTYPES = frozenset(_NUMBERS)
"""Names of the dtypes that NCCL adds up."""


def nccl_available() -> bool:
    """Return whether CuPy has NCCL."""
    try:
        return bool(load_nccl().available)
    except ImportError:
        return False


def nccl_dtype(array: Any) -> int:
    """Find NCCL's number for an array's dtype, from ``NCCL_DTYPES``."""
    return int(getattr(load_nccl(), _NUMBERS[array.dtype.name]))


@contextmanager
def nccl_group() -> Iterator[None]:
    """Have NCCL begin the calls of a block together, at its end.

    After a call that NCCL refuses, it begins none. It knows of no other errors, and would wait for
    the calls that were not made: look up all that a call needs before the block.
    """
    nccl = load_nccl()
    nccl.groupStart()
    try:
        yield
    except BaseException:
        with suppress(nccl.NcclError):  # the error of the block again
            nccl.groupEnd()
        raise
    nccl.groupEnd()
