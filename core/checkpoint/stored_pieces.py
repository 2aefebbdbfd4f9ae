"""The stored arrays of one checkpoint: found in their files, checked against the manifest, read."""

import contextlib
from collections.abc import Iterator
from functools import lru_cache
from typing import IO

import numpy as np
import xxhash

from ..arrays.dtypes import Array, as_bytes, as_dtype, is_float, row_shape
from ..errors import CheckpointError
from .delta import ROWS, changed_slot
from .digests import XXH3, digest, has_digest
from .folder import Folder
from .manifest import Manifest, TensorRecord
from .storage import read_error
from .tensor_file import TensorSpec, check_head, read_array, read_header, truncated

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
