"""Reading checkpoints: whole variables or the rows of a shard, however they were cut.

A delta is read as if it were whole: what it does not have comes from its base.
"""

import contextlib
import logging
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import IO

import numpy as np
import xxhash

from ..arrays.dtypes import Array, as_bytes, as_dtype, is_float, num_rows, row_shape
from ..errors import CheckpointError
from .delta import REMOVED, ROWS, changed_slot, is_changed, overlay, stretches, superseded, without
from .directory import MANIFEST
from .folder import Folder, open_folder
from .manifest import (
    MAX_MANIFEST_BYTES,
    XXH3,
    Manifest,
    TableRecord,
    TensorRecord,
    VariableRecord,
    digest,
    has_digest,
    parse_manifest,
)
from .storage import read_error
from .tensor_file import TensorSpec, check_head, read_array, read_header, truncated

log = logging.getLogger(__name__)

# -- Stored arrays: found in their files, checked against the manifest, read -------------------

_PART_BYTES = 4 * 1024 * 1024


class StoredPieces:
    """Reads pieces, each of which is verified by its digest. Not thread-safe.

    Args:
        folder: The checkpoint's.
        manifest: Manifest of the checkpoint.
    """

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest
        self._path = folder.url
        self._headers = lru_cache(maxsize=64)(self._read_header)

    def check_file(self, file: str) -> None:
        """Check a file's length and header.

        Raises:
            CheckpointError: They are not those that were written.
        """
        self._headers(file)

    def find(self, piece: TensorRecord) -> tuple[str, TensorSpec, int]:
        """Find a piece, before memory is taken for it.

        Returns:
            (path of its file, what the header says of it, where its bytes begin)

        Raises:
            CheckpointError: It is missing, or its file says something else than the manifest.
        """
        path = f"{self._path}/{piece.file}"
        start, specs, offsets = self._headers(piece.file)
        if piece.tensor not in specs:
            raise CheckpointError(f"{path} has no tensor {piece.tensor!r}", path=path)
        spec = specs[piece.tensor]
        self._check_spec(piece, spec, path)
        return path, spec, start + offsets[piece.tensor]

    def read(self, piece: TensorRecord) -> Array:
        """Read all of a piece.

        Raises:
            CheckpointError: It is missing, truncated or altered.
        """
        path, spec, position = self.find(piece)
        with self._open(piece.file) as stream:
            array = read_array(stream, spec, position, path=path)
        data = as_bytes(array)
        if not has_digest(data, piece.digest):
            raise self._altered(path, piece, digest(data))
        return array

    def parts(self, piece: TensorRecord, *, skip: int) -> Iterator[memoryview]:
        """Read a piece's bytes but for the first ``skip``, in short-lived parts.

        Raises:
            CheckpointError: The piece is missing, truncated or altered: that is known at its end.
        """
        path, spec, position = self.find(piece)
        hashed, read = xxhash.xxh3_128(), 0
        with self._open(piece.file) as stream:
            stream.seek(position)
            while read < spec.num_bytes:
                part = memoryview(stream.read(min(_PART_BYTES, spec.num_bytes - read)))
                if not part.nbytes:
                    raise truncated(path, spec, position, read)
                hashed.update(part)
                if read + part.nbytes > skip:
                    yield part[max(0, skip - read) :]
                read += part.nbytes
        if not piece.digest.startswith(XXH3):  # an older kind, of the whole
            self.read(piece)
        elif f"{XXH3}{hashed.hexdigest()}" != piece.digest:
            raise self._altered(path, piece, f"{XXH3}{hashed.hexdigest()}")

    def _read_header(self, file: str) -> tuple[int, dict[str, TensorSpec], dict[str, int]]:
        path, record = f"{self._path}/{file}", self._manifest.files.get(file)
        with self._open(file) as stream:
            if record is not None:
                check_head(stream, record, path=path)
            return read_header(stream, path=path)

    @contextlib.contextmanager
    def _open(self, file: str) -> Iterator[IO[bytes]]:
        try:
            with self._folder.open(file) as stream:
                yield stream
        except OSError as error:
            raise read_error(error, f"{self._path}/{file}") from error

    def _check_spec(self, piece: TensorRecord, spec: TensorSpec, path: str) -> None:
        """Check the header against the manifest: the digest covers a piece's bytes only."""
        if piece.variable in self._manifest.tables:  # its columns are checked when they are loaded
            if spec.shape[:1] == (piece.rows,) and spec.num_bytes == piece.num_bytes:
                return
            raise CheckpointError(
                f"{path}: {piece.tensor!r} was altered: it is {spec.shape} of {spec.dtype}, "
                f"{piece.rows} rows and {piece.num_bytes} bytes were saved",
                path=path,
                tensor=piece.tensor,
            )
        record = self._manifest.variables.get(piece.variable)
        if record is None:
            raise CheckpointError(f"{self._path} has no variable {piece.variable!r}", path=path)
        shape = (piece.rows, *row_shape(record.shape)) if record.shape else ()
        # Slots of half-precision variables are float32.
        is_value = piece.slot in ("", changed_slot(""))
        fits = spec.dtype == as_dtype(record.dtype) if is_value else is_float(spec.dtype)
        if piece.slot == ROWS:
            shape, fits = (piece.rows,), spec.dtype == np.dtype(np.int64)
        if not fits or spec.shape != shape or spec.num_bytes != piece.num_bytes:
            raise CheckpointError(
                f"{path}: {piece.tensor!r} was altered: it is {spec.shape} of {spec.dtype}, "
                f"{piece.num_bytes} bytes of shape {shape} for a {record.dtype} were saved",
                path=path,
                tensor=piece.tensor,
            )

    @staticmethod
    def _altered(path: str, piece: TensorRecord, actual: str) -> CheckpointError:
        return CheckpointError(
            f"{path}: {piece.tensor!r} was altered: its digest is {actual}, "
            f"the manifest says {piece.digest}",
            path=path,
            tensor=piece.tensor,
        )


# -- A checkpoint as a whole --------------------------------------------------------------------

STATE = "state/"  # in front of the name of an array that decides about a table's rows


class CheckpointReader:
    """A complete checkpoint, verified as it is read.

    Pieces are read whole, because a digest covers a piece; this takes memory for one piece.
    Not thread-safe.
    """

    def __init__(self, where: str | Folder) -> None:
        """Open a checkpoint.

        Args:
            where: Path or fsspec URL of its directory, or the directory.

        Raises:
            CheckpointError: There is no manifest, or it is not as it was written; or it is a delta,
                and its whole checkpoint is not there as it was.
            StorageError: It may not be read.
            PeerLostError: It cannot be read now.
        """
        self._folder = open_folder(where) if isinstance(where, str) else where
        self.path = self._folder.url
        manifest = f"{self.path}/{MANIFEST}"
        try:
            text = self._folder.read(MANIFEST, MAX_MANIFEST_BYTES)
        except FileNotFoundError:
            raise CheckpointError(
                f"{self.path} is no complete checkpoint: it has no {MANIFEST}", path=self.path
            ) from None
        except OSError as error:
            raise read_error(error, manifest) from error
        self.manifest: Manifest = parse_manifest(text, path=manifest)
        self.digest = digest(text)
        self.base = self._open_base()
        if self.manifest.version == 1:
            log.warning("%s was written without a digest: only its arrays are verified", manifest)
        self._pieces: dict[tuple[str, str], list[TensorRecord]] = {}
        for record in self.manifest.tensors:
            self._pieces.setdefault((record.variable, record.slot), []).append(record)
        self._stored = StoredPieces(self._folder, self.manifest)

    def _open_base(self) -> "CheckpointReader | None":
        base = self.manifest.base
        if base is None:
            return None
        folder = self._folder.beside(base.checkpoint)
        try:
            reader = CheckpointReader(folder)
        except CheckpointError as error:
            raise self._lacks_base(folder.url, error.message) from error
        if reader.digest != base.digest or reader.base is not None:
            raise self._lacks_base(
                folder.url, "its manifest is another one than when the delta was written"
            )
        return reader

    def _lacks_base(self, base: str, why: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} has what changed since the whole checkpoint {base}, and cannot be read "
            f"without it: {why}; put {base} back as it was, or name an older checkpoint",
            path=self.path,
            base=base,
        )

    def variable(self, name: str) -> VariableRecord | None:
        """Find a variable's record; None if the checkpoint does not have it."""
        return self.manifest.variables.get(name)

    def table(self, name: str) -> TableRecord | None:
        """Find a growing table's record; None if the checkpoint does not have it."""
        return self.manifest.tables.get(name)

    def columns(self, table: str, part: int | None = None) -> Iterator[dict[str, Array]]:
        """Read the saved columns of a growing table, a piece at a time.

        Args:
            table: Name of the table.
            part: Only this part of it; None: all.

        Yields:
            Arrays by name of the column: all of some places of a part; or what decides about its
            rows, each with ``STATE`` in front of its name.

        Raises:
            CheckpointError: Pieces are missing, truncated or altered.
        """
        pieces: dict[tuple[int, int, bool], list[TensorRecord]] = {}
        yield from self._unchanged_columns(table, part)
        for record in self.manifest.tensors:
            if record.variable != table or part not in (None, record.part) or is_changed(record):
                continue
            key = record.part, record.row_offset, record.slot.startswith(STATE)
            pieces.setdefault(key, []).append(record)
        for group in pieces.values():
            yield {record.slot: self._stored.read(record) for record in group}

    def _unchanged_columns(self, table: str, part: int | None) -> Iterator[dict[str, Array]]:
        """Read the rows of a delta's base that did not change."""
        if self.base is None or self.manifest.base is None:
            return
        for number in self.manifest.base.parts.get(table, ()):
            if part not in (None, number):
                continue
            records = [r for r in self.manifest.tensors if (r.variable, r.part) == (table, number)]
            changed = [self._stored.read(r) for r in records if r.slot in ("keys", REMOVED)]
            if any(keys.ndim != 1 or keys.dtype != np.int64 for keys in changed):
                raise self._damaged(f"keys of table {table!r} are no vectors of int64", table)
            keys = superseded(changed)
            for columns in self.base.columns(table, number):
                if "keys" in columns:  # else it is what decided about rows, which came anew
                    yield without(columns, keys)

    def slots(self, name: str) -> list[str]:
        """List the names of the slots saved for a variable."""
        own = {
            record.slot
            for (variable, slot), [record, *_] in self._pieces.items()
            if variable == name and slot and not is_changed(record)
        }
        base = self.base if self._base_rows(name) else None
        return sorted(own.union(base.slots(name) if base is not None else ()))

    def _base_rows(self, name: str) -> tuple[tuple[int, int], ...]:
        """Find the rows of a variable that are those of the base, but for what changed."""
        return self.manifest.base.rows.get(name, ()) if self.manifest.base is not None else ()

    def read(self, name: str, slot: str = "") -> Array:
        """Read a whole variable, or a slot of it."""
        record = self._record(name)
        return self.read_rows(name, 0, num_rows(record.shape), slot)

    def read_all(self) -> dict[str, Array]:
        """Read every variable, by name."""
        return {name: self.read(name) for name in self.manifest.variables}

    def read_rows(self, name: str, start: int, stop: int, slot: str = "") -> Array:
        """Read rows ``[start, stop)`` of a variable or of a slot of it, from whatever pieces hold
        them.

        Raises:
            CheckpointError: Pieces are missing, truncated or altered.
        """
        ranges = [*stretches(self._base_rows(name), start, stop)]
        if not ranges:
            return self._read_own_rows(name, start, stop, slot)
        read, reached = [], start
        for low, high in [*ranges, (stop, stop)]:
            if reached < low:
                read.append(self._read_own_rows(name, reached, low, slot))
            if low < high and self.base is not None:
                read.append(self.base.read_rows(name, low, high, slot))
            reached = high
        out = np.concatenate(read) if len(read) > 1 else read[0]
        overlay(out, start, self._changes(name, slot, start, stop))
        return out

    def _changes(
        self, name: str, slot: str, start: int, stop: int
    ) -> Iterator[tuple[Array, Array]]:
        """Read numbers of changed rows, ascending, with their values, where some may be in a
        range.
        """
        numbers, values = self.pieces_of(name, ROWS), self.pieces_of(name, changed_slot(slot))
        places = [
            [(record.row_offset, record.rows) for record in group] for group in (numbers, values)
        ]
        if places[0] != places[1]:
            raise self._lacks_rows(name, slot, len(values), len(numbers))
        pairs = sorted(zip(numbers, values, strict=True), key=lambda pair: pair[0].row_offset)
        ends = [numbers.row_offset for numbers, _ in pairs[1:]] + [stop]
        for (rows, piece), end in zip(pairs, ends, strict=True):
            if rows.row_offset < stop and end > start:
                changed = self._stored.read(rows)
                if (changed[1:] <= changed[:-1]).any():
                    raise self._damaged(f"changed rows of {name!r} do not ascend", name)
                yield changed, self._stored.read(piece)

    def _read_own_rows(self, name: str, start: int, stop: int, slot: str) -> Array:
        record = self._record(name)
        chosen: list[tuple[TensorRecord, int, int]] = []
        covered, reached = 0, start
        # Only rows from `reached` on: a row in two pieces counts once.
        for piece in sorted(self.pieces_of(name, slot), key=lambda it: it.row_offset):
            low, high = max(reached, piece.row_offset), min(stop, piece.row_offset + piece.rows)
            if low < high:
                chosen.append((piece, low, high))
                covered, reached = covered + high - low, high
        if covered != stop - start:
            raise self._lacks_rows(name, slot, covered, stop - start)
        # Before memory is taken: each piece is as long in its file as the manifest says.
        dtypes = [self._stored.find(piece)[1].dtype for piece, _, _ in chosen]
        dtype = dtypes[0] if dtypes else as_dtype(record.dtype)
        out = np.empty((stop - start, *row_shape(record.shape)), dtype)
        for piece, low, high in chosen:
            rows = self._stored.read(piece)
            if not record.shape:
                rows = rows.reshape(1)
            out[low - start : high - start] = rows[low - piece.row_offset : high - piece.row_offset]
        return out if record.shape else out.reshape(())

    def parts(self, name: str, slot: str = "") -> Iterator[memoryview]:
        """Read the bytes of a whole variable, or of a slot of it, in order; each part is
        short-lived.

        This takes memory for one part of 4 MiB, however large the pieces are. A piece's digest is
        checked when all of it has been read, so what was made of the parts counts only if the last
        one has come.

        Raises:
            CheckpointError: Pieces are missing, truncated or altered.
        """
        record = self._record(name)
        rows, reached = num_rows(record.shape), 0
        if self.base is not None and self._base_rows(name):
            pieces = [*self.pieces_of(name, slot), *self.base.pieces_of(name, slot)]
            starts = sorted({0, *(piece.row_offset for piece in pieces)})
            for start, stop in pairwise([*starts, rows]):
                yield as_bytes(self.read_rows(name, start, stop, slot))
            return
        for piece in sorted(self._pieces.get((name, slot), []), key=lambda it: it.row_offset):
            end = piece.row_offset + piece.rows
            if end <= reached and piece.rows:
                continue
            if piece.row_offset > reached:
                break
            row_bytes = piece.num_bytes // piece.rows if piece.rows else 0
            yield from self._stored.parts(piece, skip=(reached - piece.row_offset) * row_bytes)
            reached = end
        if reached != rows:
            raise self._lacks_rows(name, slot, reached, rows)

    def verify(self, files: Collection[str] | None = None) -> None:
        """Read everything and check every digest.

        Args:
            files: Files to check; None: all, and those of a delta's whole checkpoint.

        Raises:
            CheckpointError: Something is missing, truncated or altered.
        """
        if self.base is not None and files is None:
            self.base.verify()
        for file in self.manifest.files if files is None else files:
            self._stored.check_file(file)
        for record in self.manifest.tensors:
            if files is None or record.file in files:
                self._stored.read(record)

    def pieces(self) -> Iterator[TensorRecord]:
        """Return the stored pieces, in order."""
        return iter(self.manifest.tensors)

    def pieces_of(self, name: str, slot: str = "") -> list[TensorRecord]:
        """List the stored pieces of a variable's values, or of a slot of it."""
        return self._pieces.get((name, slot), [])

    def _record(self, name: str) -> VariableRecord:
        record = self.manifest.variables.get(name)
        if record is None:
            grows = "; it is a growing table there" if name in self.manifest.tables else ""
            raise CheckpointError(f"{self.path} has no variable {name!r}{grows}", path=self.path)
        return record

    def _damaged(self, what: str, variable: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is damaged: {what}", path=self.path, variable=variable)

    def _lacks_rows(self, name: str, slot: str, count: int, expected: int) -> CheckpointError:
        return CheckpointError(
            f"{self.path}: {name!r}{f' slot {slot}' if slot else ''} has {count} of the "
            f"{expected} rows asked for; the checkpoint is damaged",
            path=self.path,
            variable=name,
        )
