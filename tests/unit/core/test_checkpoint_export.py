"""One file of a checkpoint that other programs read."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from ropewalk.core.arrays.dtypes import BFLOAT16, Array
from ropewalk.core.checkpoint import export_checkpoint
from ropewalk.core.checkpoint.manifest import Manifest, TensorRecord, VariableRecord, manifest_bytes
from ropewalk.core.checkpoint.tensor_file import TensorFileWriter, TensorSpec
from ropewalk.core.errors import CheckpointError

VALUES: dict[str, Array] = {
    "w": np.arange(6, dtype=np.float32).reshape(3, 2),
    "steps": np.array(7, np.int64),
    "half": np.ones(4, BFLOAT16),
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return save(tmp_path / "ckpt-0000000001", VALUES)


def save(folder: Path, values: dict[str, Array]) -> str:
    folder.mkdir()
    tensors = {name: f"{number}:{name}" for number, name in enumerate(values)}
    specs = [TensorSpec(tensors[name], value.shape, value.dtype) for name, value in values.items()]
    records = []
    with (folder / "ps-0.safetensors").open("wb") as stream:
        writer = TensorFileWriter(stream, specs)
        for name, value in values.items():
            rows = value.shape[0] if value.shape else 1
            digest = writer.write(value)
            records.append(
                TensorRecord(
                    variable=name, row_offset=0, rows=rows, file="ps-0.safetensors",
                    tensor=tensors[name], digest=digest, num_bytes=value.nbytes,
                )
            )  # fmt: skip
        writer.close()
    variables = {
        name: VariableRecord(shape=value.shape, dtype=value.dtype.name)
        for name, value in values.items()
    }
    files = {"ps-0.safetensors": writer.record}
    manifest = Manifest(global_step=1, variables=variables, tensors=tuple(records), files=files)
    (folder / "manifest.json").write_bytes(manifest_bytes(manifest))
    return str(folder)


def test_safetensors_hold_every_variable_in_its_dtype(checkpoint: str, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    assert export_checkpoint(checkpoint, target) == ["half", "steps", "w"]
    loaded = load_file(target)
    for name, value in VALUES.items():
        assert loaded[name].dtype == value.dtype
        assert np.array_equal(loaded[name], value)


def test_npz_needs_nothing_but_numpy(checkpoint: str, tmp_path: Path) -> None:
    export_checkpoint(checkpoint, tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as loaded:
        assert loaded["half"].dtype == np.float32
        assert all(np.array_equal(loaded[name], value) for name, value in VALUES.items())


NAMES = [
    "file", "allow_pickle", "args", "kwds", "self", "arr_0", "path", "a/b", "../x", "..", "/", "",
    "x.npy", "ünï", "a:b", "with blank", "__class__", "__metadata__",
]  # fmt: skip


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_a_variable_may_be_called_as_it_likes(tmp_path: Path, ending: str) -> None:
    names = [name for name in NAMES if ending == "npz" or name != "__metadata__"]
    values: dict[str, Array] = {
        name: np.full(2, number, np.float32) for number, name in enumerate(names)
    }
    target = tmp_path / f"model.{ending}"
    assert export_checkpoint(save(tmp_path / "ckpt-0000000001", values), target) == sorted(names)
    if ending == "npz":
        with np.load(target, allow_pickle=False) as archive:
            loaded = {name: archive[name] for name in archive.files}
    else:
        loaded = load_file(target)
    assert {name: value.tolist() for name, value in loaded.items()} == {
        name: value.tolist() for name, value in values.items()
    }


@pytest.mark.parametrize(
    ("names", "ending"),
    [(["w", "w.npy"], "npz"), (["a\0b"], "npz"), (["__metadata__"], "safetensors")],
)
def test_a_name_for_which_a_format_has_no_place_is_refused_and_nothing_written(
    tmp_path: Path, names: list[str], ending: str
) -> None:
    saved = save(tmp_path / "ckpt-0000000001", {name: np.zeros(1) for name in names})
    with pytest.raises(ValueError, match="rename the variable"):
        export_checkpoint(saved, tmp_path / f"model.{ending}")
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-0000000001"]


def test_other_endings_and_places_are_refused(checkpoint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.safetensors or \.npz"):
        export_checkpoint(checkpoint, tmp_path / "model.bin")
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        export_checkpoint(str(tmp_path), tmp_path / "model.npz")
    with pytest.raises(CheckpointError, match="cannot write"):
        export_checkpoint(checkpoint, tmp_path / "nowhere" / "model.npz")
