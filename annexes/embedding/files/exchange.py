"""Rows of tables: from a checkpoint to a file, and from elsewhere to a checkpoint to begin with.

Rows come to a job as all that it begins with does: by a checkpoint, which every number of ps
restores, and which followers and restarts know. So nothing of a running job has to change.
"""

import datetime
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....core.arrays.any_framework import to_host
from ....core.arrays.dtypes import Array, DType, as_dtype, row_shape
from ....core.checkpoint import (
    CheckpointReader,
    Manifest,
    TensorFileWriter,
    TensorRecord,
    VariableRecord,
)
from ....core.checkpoint.directory import commit_step
from ....core.checkpoint.folder import Folder
from ....core.checkpoint.manifest import TableRecord
from ....core.checkpoint.storage import open_model_dir
from ....core.checkpoint.tensor_file import TensorSpec
from ....core.errors import (
    CheckpointError,
    ConfigurationError,
    ShapeMismatchError,
    StorageError,
    UnknownVariableError,
)
from ....core.files.new_path import new_path
from ....core.terminal import counted
from ....core.versions import own_versions
from ....distribute.optimizers import SGD
from ....distribute.reading import load_checkpoint
from ....training.export_formats import scratch_array
from ..features.config import TableConfig
from ..keyed.definition import used_places
from ..keyed.row_store import LAST_STEP
from .row_files import (
    PIECE_BYTES,
    Piece,
    Rows,
    format_of_table,
    new_row_file,
    rows_of_arrays,
    rows_of_file,
)

_FILE = "tables.safetensors"


def import_tables(
    model_dir: str,
    tables: Mapping[TableConfig, Any],
    *,
    global_step: int = 0,
    piece_bytes: int = PIECE_BYTES,
) -> str:
    """Write rows from elsewhere as a checkpoint, for a job to begin with.

    ::

        users = rw.embedding.TableConfig("users", dim=16)
        rw.embedding.import_tables("runs/model", {users: "users.parquet"})

    The job resumes from it with ``--model-dir runs/model`` and the same tables. What else its
    program has begins as it would, and so do the slots of the rows, and keys that have no row.

    Rows are read and written a piece at a time; those of a table with a vocabulary_size may come in
    any order, and are put in order on the local disk.

    Args:
        model_dir: Model directory of the job, without a newer checkpoint: a path or fsspec URL.
        tables: Rows of each table: a file of :func:`export_table`, or one of ``numpy.save``; a pair
            ``(keys, values)`` of arrays; or an array of rows, whose keys are 0 to n - 1, as the
            weights of ``torch.nn.Embedding`` and ``keras.layers.Embedding``. Of a key that is there
            twice the later row counts.
        global_step: Global step of the checkpoint.
        piece_bytes: Values that are in memory at a time. Unit: bytes.

    Returns:
        Path of the checkpoint.

    Raises:
        ValueError: The format of a file is not known.
        MissingExtraError: A file is Parquet, and pyarrow is not installed: it is in
            ``ropewalk[parquet]``.
        ShapeMismatchError: Rows have another length than the table's, or keys do not fit them.
        ConfigurationError: A row has NaN or infinity; there are more rows than ``max_rows`` or
            ``max_bytes`` take; or a table with a vocabulary_size lacks rows, or has one that is out
            of range.
        CheckpointError: A file of rows is missing or damaged.
        StorageError: The model directory cannot be written.
    """
    sources = {config: _source_of(config, source) for config, source in tables.items()}

    def write(name: str) -> Manifest:
        folder = open_model_dir(model_dir).subfolder(name)
        return _write_rows(folder, sources, piece_bytes, global_step)

    checkpoint = commit_step(model_dir, global_step, write, "import_tables")
    assert checkpoint is not None  # noqa: S101 - there is a manifest
    return checkpoint.path


def _write_rows(
    folder: Folder, sources: Mapping[TableConfig, Rows], piece_bytes: int, global_step: int
) -> Manifest:
    folder.make()
    with (
        tempfile.TemporaryDirectory(prefix="ropewalk-rows-") as room,
        folder.create(_FILE) as stream,
    ):
        plans = [
            _planned(config, rows, Path(room), piece_bytes, global_step)
            for config, rows in sources.items()
        ]
        writer = TensorFileWriter(stream, [spec for plan in plans for spec in plan.specs])
        tensors = [record for plan in plans for record in plan.write(writer)]
        writer.close()
    return Manifest(
        global_step=global_step,
        saved_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        ropewalk=own_versions().ropewalk,
        variables={plan.config.name: plan.variable for plan in plans if plan.variable},
        tables={plan.config.name: plan.table for plan in plans if plan.table},
        tensors=tuple(tensors),
        files={_FILE: writer.record},
    )


def _source_of(config: TableConfig, source: Any) -> Rows:
    where = f"rows of table {config.name!r}"
    if isinstance(source, str | Path):
        rows = rows_of_file(Path(source))
    elif isinstance(source, tuple):
        keys, values = (np.asarray(to_host(array)) for array in source)
        rows = rows_of_arrays(where, keys, values)
    else:
        rows = rows_of_arrays(where, None, np.asarray(to_host(source)))
    if rows.dim != config.dim and rows.count:
        raise ShapeMismatchError(
            f"{rows.where}: rows have {rows.dim} elements, table {config.name!r} has "
            f"dim={config.dim}",
            table=config.name,
        )
    return rows


@dataclass(frozen=True, slots=True)
class _PlannedTable:
    """A table that is to be written.

    Attributes:
        specs: Specs of the arrays.
        columns: Names of the arrays of a piece.
        arrays: The arrays, in order.
    """

    config: TableConfig
    specs: list[TensorSpec]
    columns: tuple[str, ...]
    arrays: Iterator[Array]
    table: TableRecord | None = None
    variable: VariableRecord | None = None

    def write(self, writer: TensorFileWriter) -> Iterator[TensorRecord]:
        """Write the arrays; what a manifest says of each."""
        start = 0
        for number, (spec, array) in enumerate(zip(self.specs, self.arrays, strict=True)):
            column = self.columns[number % len(self.columns)]
            yield TensorRecord(
                variable=self.config.name,
                slot=column,
                row_offset=start,
                rows=len(array),
                file=_FILE,
                tensor=spec.name,
                digest=writer.write(array),
                num_bytes=array.nbytes,
            )
            start += len(array) if column == self.columns[-1] else 0


def _planned(
    config: TableConfig, rows: Rows, room: Path, piece_bytes: int, global_step: int
) -> _PlannedTable:
    dtype = as_dtype(config.dtype)
    step = max(1, piece_bytes // (config.dim * dtype.itemsize))
    if config.vocabulary_size is not None:
        return _fixed(config, rows, room, step)
    # Whose optimizer the program gives may have slots, too: these are the most rows it has.
    [most, _] = config.definition(config.optimizer or SGD()).shape
    if rows.count > most:
        budget = "max_rows" if config.max_bytes is None else "max_bytes"
        raise ConfigurationError(
            f"{rows.where}: {counted(rows.count, 'row')} for table {config.name!r}, which has "
            f"room for {most} ({budget}={getattr(config, budget) or most}); raise it",
            table=config.name,
        )
    specs = [
        TensorSpec(f"{config.name}[{start}]:{name}", (min(step, rows.count - start), *row), dtype)
        for start in range(0, rows.count, step)
        for name, (dtype, row) in _columns(config).items()
    ]
    record = TableRecord(max_rows=rows.count, dim=config.dim, dtype=dtype.name, parts=1, rule={})
    return _PlannedTable(
        config, specs, tuple(_columns(config)), _growing(config, rows, step, global_step), record
    )


def _columns(config: TableConfig) -> dict[str, tuple[DType, tuple[int, ...]]]:
    """List the dtype of each column of a growing table, and the shape of a row in it."""
    return {
        "keys": (np.dtype(np.int64), ()),
        "values": (as_dtype(config.dtype), (config.dim,)),
        "counts": (np.dtype(np.uint32), ()),
        "last": (np.dtype(np.uint32), ()),
    }


def _growing(config: TableConfig, rows: Rows, step: int, global_step: int) -> Iterator[Array]:
    for keys, values in _regular(config, rows, step):
        yield keys
        yield values
        yield np.zeros(keys.size, np.uint32)  # updates of the rule: there were none
        # They are as if they had been pushed now: by none of the steps before were they unseen.
        yield np.full(keys.size, min(global_step, LAST_STEP), np.uint32)


def _regular(config: TableConfig, rows: Rows, step: int) -> Iterator[tuple[Array, Array]]:
    """Yield checked pieces of ``step`` rows each, but for the last."""
    waiting: tuple[Array, Array] | None = None
    for keys, values in rows.pieces(step):
        with np.errstate(over="ignore"):  # infinity then, which is refused
            own = values.astype(as_dtype(config.dtype), copy=False)
        if not np.isfinite(own).all():
            raise ConfigurationError(
                f"{rows.where}: a row has NaN or infinity, or a number that {own.dtype} cannot "
                "hold",
                table=config.name,
            )
        if waiting is not None:
            keys_before, values_before = waiting
            keys, own = np.concatenate([keys_before, keys]), np.concatenate([values_before, own])  # noqa: PLW2901
        waiting = keys, own
        if keys.size >= step:
            yield keys[:step], own[:step]
            waiting = keys[step:], own[step:]
    if waiting is not None and waiting[0].size:
        yield waiting


def _fixed(config: TableConfig, rows: Rows, room: Path, step: int) -> _PlannedTable:
    """Plan a variable; its rows are put in order in a file."""
    size, dtype = int(config.vocabulary_size or 0), as_dtype(config.dtype)
    whole = scratch_array(room / f"{len(list(room.iterdir()))}", (size, config.dim), dtype)
    seen = np.zeros(size, bool)
    for keys, values in _regular(config, rows, step):
        if keys.size and not 0 <= keys.min() <= keys.max() < size:
            wrong = keys[(keys < 0) | (keys >= size)][0]
            raise ConfigurationError(
                f"{rows.where}: table {config.name!r} has vocabulary_size={size}, and a row has "
                f"the key {wrong}",
                table=config.name,
            )
        whole[keys], seen[keys] = values, True
    if not seen.all():
        raise ConfigurationError(
            f"{rows.where}: table {config.name!r} has vocabulary_size={size}, and "
            f"{counted(int(np.count_nonzero(~seen)), 'row')} missing, first of them "
            f"{int(np.argmin(seen))}",
            table=config.name,
        )
    specs = [
        TensorSpec(f"{config.name}[{start}]", (min(step, size - start), config.dim), dtype)
        for start in range(0, size, step)
    ]
    arrays = (np.asarray(whole[start : start + step]) for start in range(0, size, step))
    record = VariableRecord(shape=(size, config.dim), dtype=dtype.name)
    return _PlannedTable(config, specs, ("",), arrays, variable=record)


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
        return grows.dim, as_dtype(grows.dtype), _rows_by_key(reader, table)
    if fixed is not None and len(fixed.shape) == 2:
        return fixed.shape[1], as_dtype(fixed.dtype), _numbered_rows(reader, table, piece_bytes)
    tables = [name for name, record in reader.manifest.variables.items() if len(record.shape) == 2]
    names = ", ".join(map(repr, [*sorted(reader.manifest.tables), *sorted(tables)][:8]))
    raise UnknownVariableError(
        f"{reader.path} has no table {table!r}; tables there are {names or 'none'}",
        variable=table,
    )


def _rows_by_key(reader: CheckpointReader, table: str) -> Iterator[Piece]:
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


def _numbered_rows(reader: CheckpointReader, table: str, piece_bytes: int) -> Iterator[Piece]:
    record = reader.manifest.variables[table]
    row_bytes = as_dtype(record.dtype).itemsize * int(np.prod(row_shape(record.shape)))
    step = max(1, piece_bytes // row_bytes)
    for start in range(0, record.shape[0], step):
        stop = min(start + step, record.shape[0])
        yield np.arange(start, stop), reader.read_rows(table, start, stop)
