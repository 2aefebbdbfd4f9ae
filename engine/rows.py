"""Work of a sparse step on row numbers and rows, apart from the update itself.

An embedding step looks up ids that repeat. It asks for each row once (``deduplicate``), copies the
rows out of the table and spreads them to all ids (``gather_rows``), and adds up their gradients
(``sum_duplicates``). Used by a ps and by workers.

Large arrays go through kernels. While these load (a second where nothing is cached), and for small
ones, NumPy does the same, slower and with the same bits; so nobody waits for Numba here.
"""

from collections.abc import Callable

import numpy as np

from ..core.arrays.buffers import BufferPools
from ..core.arrays.dtypes import Array, DType
from ..core.arrays.gather_buffer import split
from .library import ROW_KERNELS, library

_SMALL_BYTES = 64 * 1024  # of rows to copy; below, a kernel saves less than 20 us
# Ids. NumPy takes a dozen calls, whose code a framework's computation has displaced from the
# caches: 80 us for hundreds of ids, where kernels take 40.
_SMALL_COUNT = 128
# A bitmap costs by the rows of the table, a sort by the ids: they are level at about so many rows
# per id.
_ROWS_PER_ID = 24
_WORD_BITS = 64  # an id and its position, where they are sorted
_MAX_BITMAP_ROWS = 1 << 24  # and beyond this, unless there are very many ids, also by its memory
_BYTE, _INT64, _UINT64 = (np.dtype(kind) for kind in (np.uint8, np.int64, np.uint64))


def prepare() -> None:
    """Load every kernel of this module, and wait for it."""
    for name, dtypes in ROW_KERNELS.items():
        for dtype in dtypes:
            library.row_kernel(name, dtype)


def deduplicate(
    ids: Array, num_rows: int, memory: BufferPools | None = None
) -> tuple[Array, Array]:
    """Find the distinct ids, and the position of each id among them.

    Memory beyond the result: 16 bytes per 64 rows of the table, or, of a table with many more rows
    than ids, 16 bytes per id.

    Args:
        ids: int64, shape ``(n,)``, each in ``[0, num_rows)``. May repeat.
        num_rows: Number of rows of the table.
        memory: Memory for the result and the work; None: fresh memory, whose first use costs more
            than the work.

    Returns:
        (the distinct ids, ascending, int64, shape ``(count,)``;
        int64, shape ``(n,)``: ``unique[inverse]`` is ``ids``)

    Raises:
        ValueError: An id is out of range, or ``ids`` is not a vector of int64.
    """
    ids = _vector("deduplicate", "ids", ids)
    name = "deduplicate_bitmap" if _takes_bitmap(ids.size, num_rows) else "deduplicate_radix"
    kernel = None
    if ids.size >= _SMALL_COUNT and num_rows.bit_length() + ids.size.bit_length() <= _WORD_BITS:
        kernel = library.row_kernel_if_ready(name, _INT64)
    if kernel is None:
        return _deduplicate_by_numpy(ids, num_rows)
    memory = memory if memory is not None else BufferPools()
    unique, inverse = (memory.take_array(ids.shape, _INT64) for _ in range(2))
    if name == "deduplicate_bitmap":
        words = memory.take_array((2 * -(-num_rows // 64),), _UINT64)
        words[:] = 0
        count = kernel(ids, num_rows, words, unique, inverse)
    else:
        work = memory.take_array((2, ids.size), _UINT64)
        count = kernel(ids, num_rows, *work, unique, inverse)
    if count < 0:
        raise ValueError(
            f"deduplicate: id {ids[-1 - count]} is out of range; the table has {num_rows} rows"
        )
    return unique[:count], inverse


def _deduplicate_by_numpy(ids: Array, num_rows: int) -> tuple[Array, Array]:
    """Find unique ids as ``np.unique`` does with its inverse, which takes twice as long for
    hundreds of ids.
    """
    if not ids.size:
        return ids, ids
    order = ids.argsort(kind="stable")
    ascending = ids[order]
    if ascending[0] < 0 or ascending[-1] >= num_rows:
        _check_range("deduplicate", "id", ids, num_rows)
    is_new = np.empty(ids.size, np.bool_)
    is_new[0] = True
    np.not_equal(ascending[1:], ascending[:-1], out=is_new[1:])
    inverse = np.empty(ids.size, np.int64)
    inverse[order] = is_new.cumsum() - 1
    return ascending[is_new], inverse


def _takes_bitmap(count: int, num_rows: int) -> bool:
    return num_rows <= _ROWS_PER_ID * count and (
        num_rows <= _MAX_BITMAP_ROWS or num_rows <= 8 * count
    )


def sum_duplicates(values: Array, inverse: Array, out: Array, first: int = 0) -> Array:
    """Add up the rows that belong together.

    Args:
        values: shape ``(n, width)``.
        inverse: int64, shape ``(n,)``: to which row each is added, counted from ``first``; those
            that are not in ``out`` are left out.
        out: contiguous array of the values' dtype, shape ``(count, width)``. Modified: sums in the
            values' dtype, in the order in which the rows stand; zero where no row belongs.
        first: Number of the first row of ``out``.

    Returns:
        ``out``.

    Raises:
        ValueError: Shapes do not fit.
    """
    inverse = _vector("sum_duplicates", "inverse", inverse)
    if values.ndim != 2 or values.shape[0] != inverse.size:
        raise ValueError(
            f"sum_duplicates: values have shape {values.shape}, expected {inverse.size} rows"
        )
    values = _aligned(np.ascontiguousarray(values))
    count, width = out.shape[0], values.shape[1]
    _check_out("sum_duplicates", out, (count, width), values.dtype)
    kernel = None
    many = inverse.size >= _SMALL_COUNT
    if many and out.flags.aligned and values.dtype in ROW_KERNELS["sum_rows"]:
        kernel = library.row_kernel_if_ready("sum_rows", values.dtype)
    if kernel is None:
        return _sum_by_numpy(values, inverse - first, out)
    seen = bytearray(count)  # which is looked through in a fraction of the time of an array
    marks = np.frombuffer(seen, np.uint8)
    kernel(values.reshape(-1), inverse, first, out.reshape(-1), marks, width)
    if 0 in seen:
        out[marks == 0] = 0
    return out


def _sum_by_numpy(values: Array, numbers: Array, out: Array) -> Array:
    inside = (numbers >= 0) & (numbers < out.shape[0])
    if not inside.all():
        numbers, values = numbers[inside], values[inside]
    if not numbers.size:
        out[...] = 0
        return out
    first = np.full(out.shape[0], -1, np.int64)
    # The last write stays: from the end, that is the first occurrence.
    first[numbers[::-1]] = np.arange(numbers.size - 1, -1, -1)
    # Copied, not added to zero: the sum of nothing but -0.0 is -0.0.
    np.take(values, first, axis=0, out=out, mode="clip")
    again = np.ones(numbers.size, np.bool_)
    again[first] = False  # where there is no first, the last is marked, and seen to below
    has_none = np.flatnonzero(first < 0)
    if has_none.size:
        out[has_none] = 0
        again[-1] = first[numbers[-1]] != numbers.size - 1
    repeated = np.flatnonzero(again)
    if repeated.size:
        np.add.at(out, numbers[repeated], values[repeated])
    return out


def gather_rows(table: Array, rows: Array, out: Array | None = None) -> Array:
    """Copy rows of a table, by several threads if there are many.

    Args:
        table: contiguous array, shape ``(num_rows, width)``, of any dtype.
        rows: int64, shape ``(n,)``, each in ``[0, num_rows)``, in any order.
        out: contiguous array of the table's dtype, shape ``(n, width)``. Modified. None: a new one.

    Returns:
        ``out``.

    Raises:
        ValueError: Shapes, dtypes or layouts do not fit, or a row is out of range.
    """
    rows = _vector("gather_rows", "rows", rows)
    if table.ndim != 2 or not table.flags.c_contiguous:
        raise ValueError(
            f"gather_rows: the table has shape {table.shape}; expected contiguous rows of one axis"
        )
    wanted = (rows.size, table.shape[1])
    if out is None:
        out = np.empty(wanted, table.dtype)
    _check_out("gather_rows", out, wanted, table.dtype)
    _check_range("gather_rows", "row", rows, table.shape[0])
    if not out.size:
        return out
    kernel = library.row_kernel_if_ready("gather", _BYTE) if out.nbytes >= _SMALL_BYTES else None
    if kernel is None:
        # "clip" leaves out NumPy's own check, and with it a copy.
        np.take(table, rows, axis=0, out=out, mode="clip")
        return out
    width = table.shape[1] * table.itemsize
    _gather(kernel, table.reshape(-1).view(_BYTE), rows, out.reshape(-1).view(_BYTE), width)
    return out


def _gather(
    kernel: Callable[..., object], table: Array, rows: Array, out: Array, width: int
) -> None:
    def part(start: int, stop: int) -> None:
        kernel(table, rows[start:stop], out[start * width : stop * width], width)

    split(part, rows.size, itemsize=2 * max(width, 64))


def _vector(kernel: str, what: str, numbers: Array) -> Array:
    if numbers.ndim != 1 or numbers.dtype != _INT64:
        raise ValueError(
            f"{kernel}: {what} is {numbers.dtype}{list(numbers.shape)}, expected a vector of int64"
        )
    return _aligned(np.ascontiguousarray(numbers))


def _aligned(array: Array) -> Array:
    return array if array.flags.aligned else array.copy()


def _check_out(kernel: str, out: Array, shape: tuple[int, ...], dtype: DType) -> None:
    if out.shape != shape or out.dtype != dtype:
        raise ValueError(
            f"{kernel}: out is {out.dtype}{list(out.shape)}, expected {dtype}{list(shape)}"
        )
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"{kernel}: out is not contiguous, or read-only")


def _check_range(kernel: str, what: str, numbers: Array, count: int) -> None:
    if not numbers.size:
        return
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= count:
        raise ValueError(
            f"{kernel}: {what} {low if low < 0 else high} is out of range; there are {count} rows"
        )
