"""``rw.embedding.export_table``: the rows of a checkpoint's table, with their keys, in a file."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ....core.arrays.dtypes import as_dtype, row_shape
from ....core.checkpoint import CheckpointReader
from ....core.errors import CheckpointError, StorageError, UnknownVariableError
from ....core.files.new_path import new_path
from ....distribute.reading import load_checkpoint
from ..keyed.definition import used_places
from .row_files import PIECE_BYTES, Piece, format_of_table, new_row_file


def export_table(
    source: str | Path | CheckpointReader,
    table: str,
    target: str | Path,
    *,
    format: str | None = None,  # noqa: A002 - as people say it
    overwrite: bool = False,
    piece_bytes: int = PIECE_BYTES,
) -> int:
    """Write the rows of an embedding table of a checkpoint to a file, with their keys.

    ``npy``: an array of records, ``key`` and ``value``, for ``numpy.load``. ``safetensors``: the
    arrays ``keys`` and ``values``. ``parquet``: the columns ``key`` and ``value``, the latter a
    list of fixed length. Slots are left out: this is for using rows, and for beginning another
    table with them (:func:`import_tables`).

    Everything is read and written a piece at a time, and verified on the way. The file appears
    whole or not at all. Call it in one process. A key may be there twice if the checkpoint was
    written while its row was evicted and made again: the later row counts.

    Args:
        source: A checkpoint, or a model directory, whose newest one it is: a path or fsspec URL.
        table: Name of the table: one that grows, or one of a vocabulary_size, whose keys are the
            numbers of its rows.
        target: A path of this machine. Its folder exists.
        format: Format of the file; None: as the target's ending says: ``.npy``, ``.safetensors`` or
            ``.parquet``.
        overwrite: Whether to replace what is there.
        piece_bytes: Values of a table with a vocabulary_size that are in memory at a time; of one
            that grows it is what the ps has written at a time, at most 32 MiB with its slots.

    Returns:
        The number of rows in the file.

    Raises:
        ValueError: The format is not known.
        FileExistsError: The target is there, and is not to be replaced.
        UnknownVariableError: The checkpoint has no such table.
        MissingExtraError: The format is Parquet, and pyarrow is not installed: it is in
            ``ropewalk[parquet]``.
        CheckpointError: The checkpoint is missing or damaged.
        StorageError: The target cannot be written.
    """
    path = Path(target)
    kind = format_of_table(path, format)
    reader = source if isinstance(source, CheckpointReader) else load_checkpoint(str(source))
    dim, dtype, pieces = _rows_of(reader, table, piece_bytes)
    rows = 0
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} is there already; to replace it give overwrite=True")
    try:
        with (
            new_path(path, overwrite=overwrite) as temporary,
            new_row_file(temporary, kind, dim, dtype) as writer,
        ):
            for keys, values in pieces:
                writer.write(keys, values)
                rows += keys.size
    except FileExistsError:
        raise
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}; its folder must exist, be "
            "writable, and have room for the rows twice",
            path=path,
        ) from error
    return rows


def _rows_of(
    reader: CheckpointReader, table: str, piece_bytes: int
) -> tuple[int, "np.dtype[np.generic]", Iterator[Piece]]:
    """Find the rows of a table; returns (elements of a row, their dtype, the rows)."""
    grows, fixed = reader.table(table), reader.variable(table)
    if grows is not None:
        return grows.dim, as_dtype(grows.dtype), _growing(reader, table)
    if fixed is not None and len(fixed.shape) == 2:
        return fixed.shape[1], as_dtype(fixed.dtype), _fixed(reader, table, piece_bytes)
    tables = [name for name, record in reader.manifest.variables.items() if len(record.shape) == 2]
    names = ", ".join(map(repr, [*sorted(reader.manifest.tables), *sorted(tables)][:8]))
    raise UnknownVariableError(
        f"{reader.path} has no table {table!r}; tables there are {names or 'none'}",
        variable=table,
    )


def _growing(reader: CheckpointReader, table: str) -> Iterator[Piece]:
    for columns in reader.columns(table):
        if "keys" in columns:
            if {"values", "last"} - columns.keys():
                raise CheckpointError(
                    f"{reader.path} is damaged: a piece of table {table!r} has the columns "
                    f"{', '.join(columns)}",
                    path=reader.path,
                    variable=table,
                )
            used = used_places(columns)
            yield columns["keys"][used], columns["values"][used]


def _fixed(reader: CheckpointReader, table: str, piece_bytes: int) -> Iterator[Piece]:
    record = reader.manifest.variables[table]
    row_bytes = as_dtype(record.dtype).itemsize * int(np.prod(row_shape(record.shape)))
    step = max(1, piece_bytes // row_bytes)
    for start in range(0, record.shape[0], step):
        stop = min(start + step, record.shape[0])
        yield np.arange(start, stop), reader.read_rows(table, start, stop)
