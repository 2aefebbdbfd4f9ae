"""Tensor files and manifests: read by safetensors' own library, and refused when they are
not ours.
"""

import hashlib
import io
import json
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from ropewalk.core.arrays.dtypes import BFLOAT16, DTYPES, Array, DType
from ropewalk.core.checkpoint import Manifest, TensorFileWriter, TensorRecord, VariableRecord
from ropewalk.core.checkpoint.manifest import (
    BlockRecord,
    FileRecord,
    digest,
    has_digest,
    manifest_bytes,
    parse_manifest,
)
from ropewalk.core.checkpoint.tensor_file import (
    TensorSpec,
    read_array,
    read_header,
)
from ropewalk.core.errors import CheckpointError

SAFETENSORS_NAMES = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "bfloat16": "BF16",
    "bool": "BOOL",
} | {
    f"{kind}int{bits}": f"{kind or 'i'}{bits}".upper()
    for kind in ("", "u")
    for bits in (8, 16, 32, 64)
}


def _file(arrays: dict[str, Array]) -> bytes:
    stream = io.BytesIO()
    specs = [TensorSpec(name, array.shape, array.dtype) for name, array in arrays.items()]
    writer = TensorFileWriter(stream, specs)
    for array in arrays.values():
        writer.write(array)
    writer.close()
    return stream.getvalue()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_safetensors_own_library_reads_what_we_write(dtype: DType) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    ((name, found),) = safetensors.deserialize(  # type: ignore[no-untyped-call]
        _file({"w/part_0": array})
    )
    assert name == "w/part_0"
    assert found["dtype"] == SAFETENSORS_NAMES[dtype.name]
    assert found["shape"] == [2, 3]
    assert bytes(found["data"]) == array.tobytes()


def test_a_file_of_many_arrays_loads_as_a_dictionary_elsewhere() -> None:
    arrays: dict[str, Array] = {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.array(2.5, np.float64),
        "empty": np.zeros((0, 4), np.float32),
        "ümlaut/part_1": np.array([7], np.int8),
        "not contiguous": np.arange(12, dtype=np.int64).reshape(3, 4)[:, ::2],
    }
    loaded = load(_file(arrays))
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 99)
        ),
        max_size=5,
    )
)
def test_our_own_reader_gives_back_every_array(items: list[tuple[DType, list[int], int]]) -> None:
    arrays = {
        f"a{i}": np.random.default_rng(seed).integers(0, 2, shape).astype(dtype)
        for i, (dtype, shape, seed) in enumerate(items)
    }
    stream = io.BytesIO(_file(arrays))
    start, specs, offsets = read_header(stream, path="f")
    assert specs.keys() == arrays.keys()
    assert start % 8 == 0
    for name, array in arrays.items():
        found = read_array(stream, specs[name], start + offsets[name], path="f")
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def test_a_header_with_metadata_of_another_program_is_read() -> None:
    data = save({"w": np.ones(1, np.float32)}, {"made_by": "somebody"})
    start, specs, offsets = read_header(io.BytesIO(data), path="f")
    assert specs == {"w": TensorSpec("w", (1,), np.dtype(np.float32))}
    assert read_array(io.BytesIO(data), specs["w"], start + offsets["w"], path="f") == [1.0]


def test_the_digest_is_that_of_the_bytes_written() -> None:
    array = np.array([1.0, 2.0], BFLOAT16)
    writer = TensorFileWriter(io.BytesIO(), [TensorSpec("w", (2,), BFLOAT16)])
    assert writer.write(array) == digest(array.tobytes())
    assert digest(b"").startswith("xxh3:")


def test_a_digest_of_an_older_checkpoint_is_checked_too() -> None:
    older = hashlib.blake2b(b"data", digest_size=16).hexdigest()
    assert has_digest(b"data", older)
    assert not has_digest(b"Data", older)
    assert has_digest(b"data", digest(b"data"))
    assert not has_digest(b"Data", digest(b"data"))


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.zeros((3, 2), np.float32), id="shape"),
        pytest.param(np.zeros((2, 3), np.float64), id="dtype"),
    ],
)
def test_an_array_that_was_not_announced_is_not_written(array: Array) -> None:
    stream = io.BytesIO()
    writer = TensorFileWriter(stream, [TensorSpec("w", (2, 3), np.dtype(np.float32))])
    before = stream.getvalue()
    with pytest.raises(ValueError, match="w: announced"):
        writer.write(array)
    assert stream.getvalue() == before


def test_a_file_with_arrays_missing_does_not_close() -> None:
    spec = TensorSpec("w", (1,), np.dtype(np.float32))
    writer = TensorFileWriter(io.BytesIO(), [spec, spec])
    writer.write(np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="1 announced arrays were not written"):
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty file"),
        pytest.param(b"\x10\0\0", id="cut in its length"),
        pytest.param(b"\xff" * 8, id="impossible length"),
        pytest.param((9).to_bytes(8, "little") + b'{"a": ', id="cut in its header"),
        pytest.param((4).to_bytes(8, "little") + b"[1] ", id="no object"),
        pytest.param((4).to_bytes(8, "little") + b"null", id="null"),
        pytest.param((8).to_bytes(8, "little") + b'{"a": 1}', id="no description"),
        pytest.param(
            (53).to_bytes(8, "little") + b'{"a":{"dtype":"F8","shape":[1],"data_offsets":[0,1]}}',
            id="unknown dtype",
        ),
        pytest.param((2).to_bytes(8, "little") + b"\xff\xff", id="not text"),
    ],
)
def test_what_is_no_tensor_file_is_refused_by_its_path(data: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"memory://x/f\.safetensors is no safetensors file"):
        read_header(io.BytesIO(data), path="memory://x/f.safetensors")


def test_a_file_that_ends_early_says_how_much_is_there() -> None:
    data = _file({"w": np.zeros(4, np.float32)})
    says = r"f is truncated: w needs 16 bytes .* 10 are there"
    with pytest.raises(CheckpointError, match=says):
        read_header(io.BytesIO(data[:-6]), path="f")
    start, specs, offsets = read_header(io.BytesIO(data), path="f")
    with pytest.raises(CheckpointError, match=says):  # it became shorter meanwhile
        read_array(io.BytesIO(data[:-6]), specs["w"], start + offsets["w"], path="f")


MANIFEST = Manifest(
    global_step=7,
    final=True,
    saved_at="2024-05-01T10:00:00Z",
    ropewalk="0.1.0",
    variables={"w": VariableRecord(shape=(4, 2), dtype="float32", updates=7, rule={"name": "SGD"})},
    tensors=(
        TensorRecord(
            variable="w",
            row_offset=0,
            rows=4,
            file="ps-0.safetensors",
            tensor="w",
            digest="00",
            num_bytes=32,
        ),
    ),
    files={"ps-0.safetensors": FileRecord(num_bytes=99, header_bytes=67, header_digest="00")},
    blocks=(BlockRecord(ps=0, shards=("w",), applied={"/job:worker/task:0": (3, 12)}),),
)


def test_a_manifest_comes_back_from_its_text() -> None:
    text = manifest_bytes(MANIFEST)
    assert parse_manifest(text, path="m") == MANIFEST
    assert json.loads(text)["digest"].startswith("xxh3:")


def test_a_manifest_without_its_digest_was_altered() -> None:
    with pytest.raises(CheckpointError, match=r"^m\.json was altered: its digest is missing"):
        parse_manifest(_changed(version=2), path="m.json")


def test_a_manifest_of_the_version_before_needs_no_digest() -> None:
    before = MANIFEST.model_copy(update={"version": 1, "files": {}})
    assert parse_manifest(before.model_dump_json().encode(), path="m") == before


def test_every_file_of_a_manifest_has_a_digest() -> None:
    text = manifest_bytes(MANIFEST.model_copy(update={"files": {}}))
    with pytest.raises(CheckpointError, match=r"^m\.json has no digest of ps-0\.safetensors"):
        parse_manifest(text, path="m.json")


@pytest.mark.parametrize("file", ["../ps-0.safetensors", "/etc/passwd", "..", ""])
def test_a_manifest_names_files_of_its_own_directory_only(file: str) -> None:
    tensors = (MANIFEST.tensors[0].model_copy(update={"file": file}),)
    text = manifest_bytes(MANIFEST.model_copy(update={"tensors": tensors}))
    with pytest.raises(CheckpointError, match=r"^m\.json: .* is no plain name"):
        parse_manifest(text, path="m.json")


def test_a_manifest_may_say_more_than_we_know() -> None:
    said = parse_manifest(_changed(dashboard="http://…"), path="m")
    assert said == MANIFEST.model_copy(update={"version": 1})


def _changed(**changes: Any) -> bytes:
    """As text of the version before, which has no digest."""
    return json.dumps(MANIFEST.model_dump(mode="json") | {"version": 1} | changes).encode()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        pytest.param(b"", "the file", id="empty"),
        pytest.param(MANIFEST.model_dump_json().encode()[:-9], "the file", id="truncated"),
        pytest.param(b"\xff\xfe", "the file", id="not text"),
        pytest.param(b"[]", "the file", id="no object"),
        pytest.param(_changed(format="tensorflow"), "format", id="foreign"),
        pytest.param(_changed(version=4), "version", id="of another version"),
        pytest.param(_changed(global_step="late"), "global_step", id="wrong type"),
        pytest.param(
            _changed(variables={"w": {"dtype": "float32"}}), r"variables\.w\.shape", id="no shape"
        ),
    ],
)
def test_what_is_no_manifest_is_refused_by_path_and_place(text: bytes, where: str) -> None:
    with pytest.raises(
        CheckpointError, match=rf"^m\.json is no manifest of a Ropewalk checkpoint: {where}: "
    ) as caught:
        parse_manifest(text, path="m.json")
    assert caught.value.fields == {"path": "m.json"}
