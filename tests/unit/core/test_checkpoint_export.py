"""One file of a checkpoint that other programs read."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from windlass.core.arrays import BFLOAT16, Array
from windlass.core.checkpoint import export_checkpoint
from windlass.core.checkpoint.manifest import Manifest, TensorRecord, VariableRecord, manifest_bytes
from windlass.core.checkpoint.tensor_file import TensorFileWriter, TensorSpec
from windlass.core.errors import CheckpointError

VALUES: dict[str, Array] = {
    "w": np.arange(6, dtype=np.float32).reshape(3, 2),
    "steps": np.array(7, np.int64),
    "half": np.ones(4, BFLOAT16),
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    folder = tmp_path / "ckpt-0000000001"
    folder.mkdir()
    specs = [TensorSpec(name, value.shape, value.dtype) for name, value in VALUES.items()]
    records = []
    with (folder / "ps-0.safetensors").open("wb") as stream:
        writer = TensorFileWriter(stream, specs)
        for name, value in VALUES.items():
            rows = value.shape[0] if value.shape else 1
            digest = writer.write(value)
            records.append(
                TensorRecord(
                    variable=name, row_offset=0, rows=rows, file="ps-0.safetensors", tensor=name,
                    digest=digest, num_bytes=value.nbytes,
                )
            )  # fmt: skip
        writer.close()
    variables = {
        name: VariableRecord(shape=value.shape, dtype=value.dtype.name)
        for name, value in VALUES.items()
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


def test_other_endings_and_places_are_refused(checkpoint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.safetensors or \.npz"):
        export_checkpoint(checkpoint, tmp_path / "model.bin")
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        export_checkpoint(str(tmp_path), tmp_path / "model.npz")
    with pytest.raises(CheckpointError, match="cannot write"):
        export_checkpoint(checkpoint, tmp_path / "nowhere" / "model.npz")
