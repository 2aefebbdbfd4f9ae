"""Kernels of growing tables, for the library that compiles them."""

from typing import Any

import numpy as np

from ...core.arrays.dtypes import DType

_WORDS, _INTEGERS = np.dtype(np.uint32), np.dtype(np.int64)
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
KERNELS: dict[str, tuple[DType, ...]] = {
    "find_keys": (_INTEGERS,),
    "count_segments": (_INTEGERS,),
    "insert_keys": (_INTEGERS,),
    "remove_keys": (_INTEGERS,),
    "move_entries": (_INTEGERS,),
    "distinct_keys": (_INTEGERS,),
    "divide_keys": (_INTEGERS,),
    "join_keys": (_INTEGERS,),
    "mark_rows": (_WORDS,),
    "touch_rows": (_WORDS,),
    "kth_smallest": (_WORDS,),
    "draw_rows": _FLOATS,
    "square_rows": _FLOATS,
    "adam_rows": _FLOATS,
    "rowwise_adagrad": _FLOATS,
    "group_ftrl": _FLOATS,
}
"""Name of a kernel → dtypes it is compiled for."""


def functions() -> dict[str, Any]:
    """List the kernels before they are compiled, by name. Loads Numba."""
    from .keyed import index_kernels, value_kernels

    return index_kernels.FUNCTIONS | value_kernels.FUNCTIONS
