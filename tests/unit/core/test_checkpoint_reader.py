"""Reading checkpoints: any rows from any pieces, and nothing that is not as it was written."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.core.arrays.dtypes import BFLOAT16, Array
from ropewalk.core.checkpoint import (
    CheckpointReader,
    Manifest,
    TensorFileWriter,
    TensorRecord,
    VariableRecord,
    checkpoint_path,
)
from ropewalk.core.checkpoint.folder import UnsafeFileError, open_folder
from ropewalk.core.checkpoint.manifest import manifest_bytes
from ropewalk.core.checkpoint.tensor_file import TensorSpec
from ropewalk.core.errors import CheckpointError, LimitExceededError
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition, cut


def _save(path: str, arrays: dict[tuple[str, str], Array], parts: int) -> None:
    """Write a checkpoint as ``parts`` servers would: one file each, the manifest last."""
    pieces: list[dict[str, tuple[ShardDefinition, str, Array]]] = [{} for _ in range(parts)]
    for (name, slot), array in arrays.items():
        for shard in cut(VariableDefinition(name, array.shape, array.dtype), parts):
            rows = array[shard.row_offset :][: shard.rows] if array.shape else array
            tensor = f"{shard.label}|{slot}"
            pieces[shard.part][tensor] = (shard, slot, rows)
    records, files = [], {}
    fs, root = fsspec.core.url_to_fs(path)
    fs.makedirs(root, exist_ok=True)
    for number, held in enumerate(pieces):
        file = f"ps-{number}.safetensors"
        with fs.open(f"{root}/{file}", "wb") as stream:
            specs = [TensorSpec(t, rows.shape, rows.dtype) for t, (_, _, rows) in held.items()]
            writer = TensorFileWriter(stream, specs)
            for tensor, (shard, slot, rows) in held.items():
                records.append(
                    TensorRecord(
                        variable=shard.variable.name,
                        slot=slot,
                        row_offset=shard.row_offset,
                        rows=shard.rows,
                        file=file,
                        tensor=tensor,
                        digest=writer.write(rows),
                        num_bytes=rows.nbytes,
                    )
                )
            writer.close()
            files[file] = writer.record
    manifest = Manifest(
        global_step=3,
        variables={
            name: VariableRecord(shape=array.shape, dtype=array.dtype.name)
            for (name, slot), array in arrays.items()
            if not slot
        },
        tensors=tuple(records),
        files=files,
    )
    fs.pipe_file(f"{root}/manifest.json", manifest_bytes(manifest))


ARRAYS: dict[tuple[str, str], Array] = {
    ("w", ""): np.arange(12, dtype=np.float32).reshape(4, 3) + 1,
    ("w", "momentum"): np.arange(12, dtype=np.float32).reshape(4, 3) * 10,
    ("w", "velocity"): np.arange(12, dtype=np.float32).reshape(4, 3) * 100,
    ("b", ""): np.array([1.5, 2.5], BFLOAT16),
    ("step", ""): np.array(7, np.int64),
}


@pytest.fixture(params=["local", "memory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A checkpoint of two servers, as a path and as a URL."""
    memory = fsspec.filesystem("memory")
    model_dir = str(tmp_path) if request.param == "local" else "memory://reader-test/model"
    where = checkpoint_path(model_dir, 3)
    _save(where, ARRAYS, parts=2)
    yield where
    if memory.exists("/reader-test"):
        memory.rm("/reader-test", recursive=True)


def _file(path: str, name: str) -> tuple[Any, str]:
    fs, root = fsspec.core.url_to_fs(path)
    return fs, f"{root}/{name}"


def test_whole_variables_and_their_slots_come_back(path: str) -> None:
    reader = CheckpointReader(path)
    for (name, slot), array in ARRAYS.items():
        found = reader.read(name, slot)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    assert reader.read_all().keys() == {"w", "b", "step"}
    assert reader.slots("w") == ["momentum", "velocity"]
    assert reader.slots("b") == []
    reader.verify()


def test_a_reader_knows_its_variables_and_pieces(path: str) -> None:
    reader = CheckpointReader(path + "/")
    record = reader.variable("w")
    assert record is not None
    assert (record.shape, record.dtype) == ((4, 3), "float32")
    assert reader.variable("nobody") is None
    assert reader.manifest.global_step == 3
    assert [piece.rows for piece in reader.pieces() if piece.variable == "w"] == [2] * 6


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_rows_are_read_from_whatever_pieces_hold_them(data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 12), label="rows")
    saved_by = data.draw(st.integers(1, 7), label="parts when saved")
    start = data.draw(st.integers(0, rows), label="start")
    stop = data.draw(st.integers(start, rows), label="stop")
    array = np.random.default_rng(rows).random((rows, 2))
    path = "memory://any-to-any/ckpt-0000000001"
    _save(path, {("w", ""): array}, saved_by)
    found = CheckpointReader(path).read_rows("w", start, stop)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array[start:stop])


def test_a_directory_without_a_manifest_is_no_checkpoint(path: str) -> None:
    fs, manifest = _file(path, "manifest.json")
    fs.rm_file(manifest)
    with pytest.raises(CheckpointError, match="it has no manifest") as caught:
        CheckpointReader(path)
    assert caught.value.fields["path"] == path
    assert path in caught.value.message


def test_a_foreign_manifest_is_refused_by_its_path(path: str) -> None:
    fs, manifest = _file(path, "manifest.json")
    fs.pipe_file(manifest, b'{"format": "orbax"}')
    with pytest.raises(CheckpointError) as caught:
        CheckpointReader(path)
    assert f"{path}/manifest.json is no manifest" in caught.value.message


def test_a_manifest_of_20_gb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    os.truncate(tmp_path / "manifest.json", 20 * 10**9)  # a hole
    with pytest.raises(
        CheckpointError, match=r"manifest\.json has 20000000000 bytes, at most 2684"
    ):
        CheckpointReader(str(tmp_path))


def test_a_large_object_in_a_store_is_not_read_either() -> None:
    folder = open_folder("memory://large")
    folder.make()
    folder.put("manifest.json", b"x" * 100)
    with pytest.raises(UnsafeFileError, match="has 100 bytes, at most 99"):
        folder.read("manifest.json", 99)
    assert folder.read("manifest.json", 100) == b"x" * 100


def test_a_manifest_that_could_not_be_read_back_is_not_written() -> None:
    whole = Manifest(global_step=1, variables={}, tensors=())
    with pytest.raises(LimitExceededError, match="at most 100 are read back"):
        manifest_bytes(whole, 100)


def test_a_missing_file_is_named(path: str) -> None:
    fs, file = _file(path, "ps-1.safetensors")
    fs.rm_file(file)
    with pytest.raises(CheckpointError) as caught:
        CheckpointReader(path).verify()
    assert caught.value.message == f"{path}/ps-1.safetensors is missing"


def test_a_file_that_vanishes_while_it_is_read_is_named(path: str) -> None:
    reader = CheckpointReader(path)
    reader.read("w")  # the header is known from here on
    fs, file = _file(path, "ps-1.safetensors")
    fs.rm_file(file)
    with pytest.raises(CheckpointError, match=r"ps-1\.safetensors is missing"):
        reader.read("w")


def test_a_variable_that_is_not_there_is_named(path: str) -> None:
    with pytest.raises(CheckpointError, match="has no variable 'nobody'"):
        CheckpointReader(path).read("nobody")


def test_a_slot_that_is_not_there_is_damage(path: str) -> None:
    with pytest.raises(CheckpointError, match="'b' slot momentum has 0 of the 2 rows asked for"):
        CheckpointReader(path).read("b", "momentum")


def _rewrite_tensors(path: str, tensors: list[TensorRecord]) -> None:
    fs, file = _file(path, "manifest.json")
    manifest = CheckpointReader(path).manifest.model_copy(update={"tensors": tuple(tensors)})
    fs.pipe_file(file, manifest_bytes(manifest))


def test_a_missing_piece_is_damage(path: str) -> None:
    _rewrite_tensors(path, list(CheckpointReader(path).pieces())[1:])
    with pytest.raises(CheckpointError, match=r"'w' has 2 of the 4 rows asked for; .* damaged"):
        CheckpointReader(path).read("w")


def test_a_piece_listed_twice_does_not_hide_one_that_is_missing(path: str) -> None:
    pieces = list(CheckpointReader(path).pieces())
    first = next(piece for piece in pieces if (piece.variable, piece.slot) == ("w", ""))
    others = [piece for piece in pieces if (piece.variable, piece.slot) != ("w", "")]
    _rewrite_tensors(path, [first, first, *others])
    with pytest.raises(CheckpointError, match="'w'"):
        CheckpointReader(path).read("w")


def test_a_tensor_that_is_not_in_its_file_is_named(path: str) -> None:
    pieces = list(CheckpointReader(path).pieces())
    _rewrite_tensors(path, [pieces[0].model_copy(update={"tensor": "elsewhere"}), *pieces[1:]])
    with pytest.raises(CheckpointError, match=r"ps-0\.safetensors has no tensor 'elsewhere'"):
        CheckpointReader(path).read("w")


def _damage_found(path: str, expected: Array) -> str:
    """What is wrong with how a damaged checkpoint is read; empty if nothing is."""
    try:
        found = CheckpointReader(path).read("w")
    except CheckpointError as error:
        return "" if path in error.message else f"the path is not in {error.message!r}"
    except Exception as error:  # noqa: BLE001 - the test lists them
        return repr(error)
    same = found.dtype == expected.dtype and np.array_equal(found, expected)
    return "" if same else f"read silently as {found.dtype} of shape {found.shape}"


@pytest.mark.parametrize("path", ["memory"], indirect=True)
def test_a_file_cut_anywhere_is_refused_by_its_path(path: str) -> None:
    _save(path, {("w", ""): ARRAYS["w", ""]}, parts=1)
    fs, file = _file(path, "ps-0.safetensors")
    whole = fs.cat_file(file)
    for length in range(len(whole)):
        fs.pipe_file(file, whole[:length])
        with pytest.raises(CheckpointError) as caught:
            CheckpointReader(path).read("w")
        assert f"{path}/ps-0.safetensors" in caught.value.message


@pytest.mark.parametrize("path", ["memory"], indirect=True)
@pytest.mark.parametrize(
    "other", [b"\x00", b"\xff", b"0", b"9", b"-", b".", b"e", b"I", b" "], ids=repr
)
def test_a_byte_altered_anywhere_is_noticed_or_does_not_matter(path: str, other: bytes) -> None:
    array = ARRAYS["w", ""]
    _save(path, {("w", ""): array}, parts=1)
    fs, file = _file(path, "ps-0.safetensors")
    whole = fs.cat_file(file)
    problems = {}
    for at in range(len(whole)):
        fs.pipe_file(file, whole[:at] + other + whole[at + 1 :])
        if wrong := _damage_found(path, array):
            problems[f"byte {at}, in {whole[max(0, at - 9) : at + 3]!r}"] = wrong
    assert problems == {}
