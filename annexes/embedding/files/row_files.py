"""Rows of embedding tables, with their keys, in files of other programs, by pieces.

``.npy`` is one array of records, ``key`` and ``value``; ``.safetensors`` has the arrays ``keys``
and ``values``; ``.parquet`` has the columns ``key`` and ``value``. However large a table is, a
piece of it is in memory.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ....core.arrays.dtypes import Array, DType, as_bytes
from ....core.checkpoint.export import write_tensors
from ....core.checkpoint.tensor_file import TensorSpec
from ....core.errors import CheckpointError, ShapeMismatchError
from ....training.export_formats import mapped, mapped_npy
from ....training.extras import require

FORMATS = {".npy": "npy", ".safetensors": "safetensors", ".parquet": "parquet"}
"""Formats by the ending of a file."""
PIECE_BYTES = 16 << 20
"""Values of a piece."""
_NPY_HEAD = 192  # bytes of a header that is written again when the number of rows is known
_SPOOL_BYTES = 4 << 20

Piece = tuple[Array, Array]
"""Keys, int64 of shape ``(n,)``, and their rows, of shape ``(n, dim)``."""


def format_of_table(path: Path, requested: str | None) -> str:
    """Choose the format of a file of rows, as requested or as its ending says.

    Raises:
        ValueError: There is none of that name, or the ending says none.
        MissingExtraError: It is Parquet, and pyarrow is not installed.
    """
    chosen = requested if requested is not None else FORMATS.get(path.suffix, "")
    if chosen not in FORMATS.values():
        wanted = f"format={requested!r}" if requested is not None else str(path)
        raise ValueError(
            f"{wanted} is no format of rows; it is one of {', '.join(FORMATS.values())}, which the "
            f"endings {', '.join(FORMATS)} say"
        )
    if chosen == "parquet":
        _parquet()
    return chosen


# -- writing ---------------------------------------------------------------------------------


class RowWriter(Protocol):
    """Writes the rows of a table."""

    def write(self, keys: Array, values: Array) -> None:
        """Write a piece."""


def new_row_file(
    path: Path, kind: str, dim: int, dtype: DType
) -> AbstractContextManager[RowWriter]:
    """Open a writer of rows, whose file is complete when the block has ended.

    Args:
        path: Path of the file.
        kind: A format.
        dim: Elements of a row.
        dtype: Dtype of the rows. In formats that do not know it they are float32.
    """
    return _WRITERS[kind](path, dim, dtype)


class _Npy:
    def __init__(self, stream: Any, record: Any) -> None:
        self._stream, self._record = stream, record
        self.rows = 0

    def write(self, keys: Array, values: Array) -> None:
        """Write rows as records."""
        records = np.empty(keys.size, self._record)
        records["key"], records["value"] = keys, values
        self._stream.write(as_bytes(records.view(np.uint8)))
        self.rows += keys.size


@contextlib.contextmanager
def _npy(path: Path, dim: int, dtype: DType) -> Iterator[RowWriter]:
    record = np.dtype([("key", "<i8"), ("value", _plain(dtype), (dim,))])
    with path.open("wb") as stream:
        stream.write(b" " * _NPY_HEAD)
        writer = _Npy(stream, record)
        yield writer
        fields = {"descr": record.descr, "fortran_order": False, "shape": (writer.rows,)}
        text = repr(fields).encode()
        room = _NPY_HEAD - 10
        stream.seek(0)
        stream.write(b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little"))
        stream.write(text + b" " * (room - 1 - len(text)) + b"\n")


class _Spools:
    """Keys and values in files of their own, until their number is known."""

    def __init__(self, keys: Any, values: Any, dtype: DType) -> None:
        self._keys, self._values, self._dtype = keys, values, dtype
        self.rows = 0

    def write(self, keys: Array, values: Array) -> None:
        """Write keys and values at the ends of both files."""
        self._keys.write(as_bytes(np.ascontiguousarray(keys)))
        self._values.write(as_bytes(np.ascontiguousarray(values, self._dtype)))
        self.rows += keys.size


@contextlib.contextmanager
def _safetensors(path: Path, dim: int, dtype: DType) -> Iterator[RowWriter]:
    parts = {name: path.with_name(f"{path.name}-{name}") for name in ("keys", "values")}
    try:
        with parts["keys"].open("wb") as keys, parts["values"].open("wb") as values:
            writer = _Spools(keys, values, dtype)
            yield writer
        specs = [
            TensorSpec("keys", (writer.rows,), np.dtype(np.int64)),
            TensorSpec("values", (writer.rows, dim), dtype),
        ]
        write_tensors(path, specs, lambda name: _blocks(parts[name]))
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def _blocks(path: Path) -> Iterator[memoryview]:
    with path.open("rb") as stream:
        while block := stream.read(_SPOOL_BYTES):
            yield memoryview(block)


class _Parquet:
    def __init__(self, writer: Any, dim: int, dtype: DType) -> None:
        self._writer, self._dim, self._dtype = writer, dim, dtype

    def write(self, keys: Array, values: Array) -> None:
        """Write rows as a group."""
        arrow = require("pyarrow", "parquet")
        flat = arrow.array(np.ascontiguousarray(values, self._dtype).reshape(-1))
        rows = arrow.FixedSizeListArray.from_arrays(flat, self._dim)
        columns = [arrow.array(keys), rows]
        self._writer.write_table(arrow.Table.from_arrays(columns, schema=self._writer.schema))


@contextlib.contextmanager
def _parquet_file(path: Path, dim: int, dtype: DType) -> Iterator[RowWriter]:
    arrow, plain = require("pyarrow", "parquet"), _plain(dtype)
    element = arrow.list_(arrow.from_numpy_dtype(plain), dim)
    schema = arrow.schema([("key", arrow.int64()), ("value", element)])
    with _parquet().ParquetWriter(path, schema) as writer:
        yield _Parquet(writer, dim, plain)


_WRITERS: dict[str, Callable[[Path, int, DType], AbstractContextManager[RowWriter]]] = {
    "npy": _npy,
    "safetensors": _safetensors,
    "parquet": _parquet_file,
}


# -- reading ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table, wherever they are.

    Attributes:
        where: Name of their place, for messages.
        count: Number of rows.
        dim: Elements of a row.
        pieces: Returns them in pieces of at most so many rows, in order; may be called again.
    """

    where: str
    count: int
    dim: int
    pieces: Callable[[int], Iterator[Piece]]


def rows_of_file(path: Path, requested: str | None = None) -> Rows:
    """Open the rows of a file that :func:`new_row_file` wrote, or of an array of rows without keys.

    Without keys, as ``numpy.save`` writes the weights of an embedding, row ``i`` has the key ``i``.

    Raises:
        ValueError: The format is not known.
        MissingExtraError: It is Parquet, and pyarrow is not installed.
        CheckpointError: The file is missing, damaged, or has other columns.
    """
    kind = format_of_table(path, requested)
    try:
        return _READERS[kind](path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, CheckpointError | ShapeMismatchError):
            raise
        raise CheckpointError(f"{path} has no rows to read: {error}", path=path) from error


def rows_of_arrays(where: str, keys: Any, values: Any) -> Rows:
    """Yield the rows of two arrays.

    Args:
        where: Description of the rows, for messages.
        keys: integers, shape ``(n,)``; None: 0 to n - 1.
        values: Shape ``(n, dim)``.

    Raises:
        ShapeMismatchError: They do not fit together.
    """
    fits = values.ndim == 2 and values.dtype.kind in "fV"
    if keys is not None:
        fits = fits and keys.shape == values.shape[:1] and keys.dtype.kind in "iu"
    if not fits:
        own = "none" if keys is None else f"{keys.dtype}{list(keys.shape)}"
        raise ShapeMismatchError(
            f"{where}: keys are {own} and values {values.dtype}{list(values.shape)}; write "
            "integers of shape (n,) and floating-point numbers of shape (n, dim)"
        )

    def pieces(most: int) -> Iterator[Piece]:
        for start in range(0, len(values), most):
            stop = min(start + most, len(values))
            own = np.arange(start, stop) if keys is None else keys[start:stop]
            yield np.asarray(own).astype(np.int64), np.asarray(values[start:stop])

    return Rows(where, len(values), values.shape[1], pieces)


def _npy_rows(path: Path) -> Rows:
    array = mapped_npy(path)
    if array.dtype.names == ("key", "value"):
        return rows_of_arrays(str(path), array["key"], array["value"])
    return rows_of_arrays(str(path), None, array)


def _safetensors_rows(path: Path) -> Rows:
    with mapped(path) as arrays:
        both = dict(arrays)
    if both.keys() != {"keys", "values"}:
        raise CheckpointError(
            f"{path} has the arrays {', '.join(sorted(both)[:8])}, and not keys and values; give "
            "one of them as an array: safetensors.numpy.load_file(path)[name]",
            path=path,
        )
    return rows_of_arrays(str(path), both["keys"], both["values"])


def _parquet_rows(path: Path) -> Rows:
    file = _parquet().ParquetFile(path)
    names = file.schema_arrow.names
    if not {"key", "value"} <= set(names):
        raise CheckpointError(
            f"{path} has the columns {', '.join(names[:8])}, and needs key and value", path=path
        )
    first = next(file.iter_batches(1, columns=["value"]), None)
    dim = 0 if first is None else len(first.column(0)[0])

    def pieces(most: int) -> Iterator[Piece]:
        for batch in _parquet().ParquetFile(path).iter_batches(most, columns=["key", "value"]):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            keys = columns["key"].to_numpy(zero_copy_only=False)
            values = columns["value"].flatten().to_numpy(zero_copy_only=False)
            if values.size != keys.size * dim:
                raise CheckpointError(f"{path} has rows of different lengths", path=path)
            yield keys.astype(np.int64), values.reshape(-1, dim)

    return Rows(str(path), file.metadata.num_rows, dim, pieces)


_READERS: dict[str, Callable[[Path], Rows]] = {
    "npy": _npy_rows,
    "safetensors": _safetensors_rows,
    "parquet": _parquet_rows,
}


def _parquet() -> Any:
    return require("pyarrow.parquet", "parquet", "a Parquet file")


def _plain(dtype: DType) -> DType:
    """Return the dtype, if NumPy has it by itself; else float32."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(np.float32)
