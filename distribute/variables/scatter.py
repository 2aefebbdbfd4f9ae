"""Scatter: the kinds of changes of rows, and the changes themselves."""

from enum import StrEnum
from typing import Any

import numpy as np

from ...core.arrays.any_framework import is_on_gpu, to_host
from ...core.arrays.dtypes import Array
from ...core.process.accelerators import load_cupy


class Scatter(StrEnum):
    """The kind of a change to rows of a variable; the names of TensorFlow's ``scatter_``
    methods.
    """

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    MIN = "min"
    MAX = "max"
    UPDATE = "update"


_UFUNCS: dict[Scatter, np.ufunc] = {
    Scatter.ADD: np.add,
    Scatter.SUB: np.subtract,
    Scatter.MUL: np.multiply,
    Scatter.DIV: np.divide,
    Scatter.MIN: np.minimum,
    Scatter.MAX: np.maximum,
}


def change_rows(kind: Scatter, table: Any, rows: Array, values: Array) -> None:
    """Change rows of an array in place; repeated ones count each, and of overwritten ones the last.

    Args:
        kind: Kind of the change.
        table: array, shape ``(rows, *row)``. Modified.
        rows: integer array, shape ``(n,)``.
        values: array, shape ``(n, *row)``.
    """
    if is_on_gpu(table):
        _change_rows_on_gpu(kind, table, rows, values)
    elif kind is Scatter.UPDATE:
        table[rows] = values
    else:
        _UFUNCS[kind].at(table, rows, values)


def _change_rows_on_gpu(kind: Scatter, table: Any, rows: Array, values: Array) -> None:
    """Have the host change copies of these rows, where what is given is.

    CuPy changes repeated rows in any order, so that copies of a variable would come to differ, and
    knows neither products nor all dtypes.
    """
    touched, places = np.unique(rows, return_inverse=True)
    with table.device:
        where = load_cupy().asarray(touched)
        picked = to_host(table[where])
        change_rows(kind, picked, places, values)
        table[where] = load_cupy().asarray(picked)
