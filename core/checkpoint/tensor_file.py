"""safetensors files, written one array at a time and read one array at a time.

The safetensors package writes a dictionary of whole arrays, which would hold a copy of every shard
of a ps at once. The format (a length, a JSON header, raw bytes) lets the header come first because
every shape is known, so a shard is copied and written in parts. Files read back with the
safetensors package; a test holds that.
"""

import io
import json
import secrets
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import xxhash

from ..arrays.dtypes import DTYPES, Array, DType, as_bytes, size_of
from ..errors import CheckpointError
from .manifest import XXH3, FileRecord, digest

_NAMES = {
    "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
}  # fmt: skip
_DTYPES: dict[str, DType] = {_NAMES[dtype.name]: dtype for dtype in DTYPES}
_MAX_HEADER_BYTES = 100_000_000  # as the safetensors package


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and dtype of one array of a file."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def num_bytes(self) -> int:
        """Bytes of the array."""
        return size_of(self.shape) * self.dtype.itemsize


class TensorFileWriter:
    """Writes arrays in the order of ``specs`` to an open binary file.

    Attributes:
        record: Record of the file for a manifest.
    """

    def __init__(self, stream: IO[bytes], specs: Sequence[TensorSpec]) -> None:
        self._stream = stream
        self._left = list(reversed(specs))
        # A number of this file alone: one of another checkpoint with the same arrays is not it.
        header: dict[str, Any] = {"__metadata__": {"save": secrets.token_hex(8)}}
        offset = 0
        for spec in specs:
            end = offset + spec.num_bytes
            header[spec.name] = {
                "dtype": _NAMES[spec.dtype.name],
                "shape": list(spec.shape),
                "data_offsets": [offset, end],
            }
            offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        head = struct.pack("<Q", len(text)) + text
        stream.write(head)
        self.record = FileRecord(
            num_bytes=len(head) + offset, header_bytes=len(head), header_digest=digest(head)
        )

    def write(self, array: Array) -> str:
        """Write the next array; return its digest.

        Raises:
            ValueError: It is not the array announced.
        """
        spec = self._left.pop()
        if array.shape != spec.shape or array.dtype != spec.dtype:
            raise ValueError(f"{spec.name}: announced {spec}, got {array.shape} of {array.dtype}")
        self._left.append(spec)
        return self.write_parts([as_bytes(np.ascontiguousarray(array))])

    def write_parts(self, parts: Iterable[memoryview]) -> str:
        """Write the next array, its bytes in parts; return its digest.

        Raises:
            ValueError: They are not as many bytes as announced.
        """
        spec = self._left.pop()
        written, hashed = 0, xxhash.xxh3_128()
        for part in parts:
            self._stream.write(part)
            hashed.update(part)
            written += part.nbytes
        if written != spec.num_bytes:
            raise ValueError(f"{spec.name}: announced {spec}, got {written} bytes")
        return f"{XXH3}{hashed.hexdigest()}"

    def close(self) -> None:
        """Check that nothing is missing.

        Raises:
            ValueError: Announced arrays were not written.
        """
        if self._left:
            raise ValueError(f"{len(self._left)} announced arrays were not written")


def check_head(stream: IO[bytes], record: FileRecord, *, path: str) -> None:
    """Check a file's length and header against the manifest; leaves the stream at its begin.

    Raises:
        CheckpointError: They are not those that were written.
    """
    size = stream.seek(0, io.SEEK_END)
    if size != record.num_bytes:
        raise CheckpointError(
            f"{path} is {'truncated' if size < record.num_bytes else 'longer than it was'}: "
            f"{record.num_bytes} bytes were written, {size} are there",
            path=path,
            expected=record.num_bytes,
            found=size,
        )
    if record.header_bytes > size:
        raise CheckpointError(
            f"{path} has {size} bytes, and its header is to have {record.header_bytes}: one of "
            "the two was altered",
            path=path,
            expected=record.header_bytes,
            found=size,
        )
    stream.seek(0)
    is_digest = digest(stream.read(record.header_bytes))
    if is_digest != record.header_digest:
        raise CheckpointError(
            f"{path} was altered, or is that of another checkpoint: its header has the digest "
            f"{is_digest}, the manifest says {record.header_digest}",
            path=path,
        )
    stream.seek(0)


def read_header(
    stream: IO[bytes], *, path: str
) -> tuple[int, dict[str, TensorSpec], dict[str, int]]:
    """Read a file's header.

    Returns:
        (offset of the data, name -> spec, name -> offset in the data)

    Raises:
        CheckpointError: The file is no safetensors file, or is shorter than its header says.
    """
    end = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    prefix = stream.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _MAX_HEADER_BYTES + 1
    if length > _MAX_HEADER_BYTES:
        raise CheckpointError(f"{path} is no safetensors file: its header is missing", path=path)
    text = stream.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        specs = {
            name: TensorSpec(name, _shape(entry["shape"]), _DTYPES[entry["dtype"]])
            for name, entry in header.items()
        }
        offsets = {name: _shape(entry["data_offsets"])[0] for name, entry in header.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is no safetensors file, or is truncated in its header "
            f"({len(text)} of {length} bytes)",
            path=path,
        ) from error
    for name, spec in specs.items():  # before memory is taken for it
        left = max(0, end - 8 - length - offsets[name])
        if spec.num_bytes > left:
            raise truncated(path, spec, 8 + length + offsets[name], left)
    return 8 + length, specs, offsets


def _shape(extents: Any) -> tuple[int, ...]:
    """Check the numbers of a header that are a shape: from 0 on."""
    if not all(type(extent) is int and extent >= 0 for extent in extents):
        raise ValueError(extents)
    return tuple(extents)


def read_array(stream: IO[bytes], spec: TensorSpec, position: int, *, path: str) -> Array:
    """Read one array at ``position`` of the file.

    Raises:
        CheckpointError: The file ends before the array does.
    """
    stream.seek(position)
    data = stream.read(spec.num_bytes)
    if len(data) != spec.num_bytes:
        raise truncated(path, spec, position, len(data))
    return np.frombuffer(data, spec.dtype).reshape(spec.shape)


def truncated(path: str, spec: TensorSpec, position: int, found: int) -> CheckpointError:
    """Make the error of a file that ends within an array."""
    return CheckpointError(
        f"{path} is truncated: {spec.name} needs {spec.num_bytes} bytes at {position}, "
        f"{found} are there",
        path=path,
        tensor=spec.name,
        expected=spec.num_bytes,
        found=found,
    )
