"""Variables as files that need no Ropewalk: from checkpoints and from memory. What PyTorch, Orbax
and Keras read is tested in ``tests/bridges``.
"""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import ropewalk as rw
from helpers import processes
from ropewalk.core.errors import CheckpointError, StorageError, UnknownVariableError
from ropewalk.training.export_formats import format_of, nested
from ropewalk.training.exporting import parts_of

ROWS = 20_000


def save(model_dir: Path, rows: int = ROWS, dim: int = 4) -> None:
    """A job's checkpoint, whose table is cut over two ps and saved in pieces."""

    def train() -> None:
        strategy = rw.distribute.ParameterServerStrategy(
            variable_partitioner=rw.distribute.partitioners.FixedShardsPartitioner(3)
        )
        with strategy.scope():
            rw.Variable(np.arange(rows * dim, dtype=np.float32).reshape(rows, dim), name="a/table")
            rw.Variable(np.array(5, np.int64), name="a/steps", trainable=False)
            w = rw.Variable(np.ones(3, np.float32), name="w")
        optimizer = rw.optimizers.Adam(0.1)
        strategy.run(lambda: optimizer.apply_gradients([(np.ones(3, np.float32), w)]))

    with rw.testing.LocalCluster(workers=0, ps=2, model_dir=str(model_dir)) as cluster:
        cluster.run(train)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job") / "model"
    save(folder)
    return folder


def test_the_newest_checkpoint_is_one_file_of_whole_variables(
    model_dir: Path, tmp_path: Path
) -> None:
    target = tmp_path / "model.safetensors"
    assert rw.training.export(str(model_dir), target) == ["a/steps", "a/table", "w"]
    found = load_file(target)
    assert found.keys() == {"a/steps", "a/table", "w"}  # and no slots
    assert found["a/table"].tolist() == np.arange(ROWS * 4).reshape(ROWS, 4).tolist()
    assert found["a/steps"].shape == ()
    assert found["a/steps"].dtype == np.int64
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_some_names_and_a_prefix_that_is_left_out(model_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    assert rw.training.export(str(model_dir), target, prefix="a/") == ["steps", "table"]
    names = ["steps"]
    rw.training.export(str(model_dir), target, prefix="a/", names=names, overwrite=True)
    assert load_file(target).keys() == {"steps"}
    with pytest.raises(UnknownVariableError, match="'a/nothing' to export; there is 'a/steps'"):
        rw.training.export(str(model_dir), tmp_path / "x.safetensors", names=["a/nothing"])
    with pytest.raises(UnknownVariableError, match="begins with 'b/'"):
        rw.training.export(str(model_dir), tmp_path / "x.safetensors", prefix="b/")


def test_what_is_there_is_replaced_only_if_that_is_said(model_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    target.write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        rw.training.export(str(model_dir), target)
    assert target.read_text() == "mine"
    rw.training.export(str(model_dir), target, overwrite=True)
    assert "w" in load_file(target)


def test_a_damaged_checkpoint_leaves_no_file(model_dir: Path, tmp_path: Path) -> None:
    newest = rw.train.latest_checkpoint(str(model_dir))
    assert newest is not None
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in Path(newest).iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    file = broken / "ps-1.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="was altered"):
        rw.training.export(str(broken), tmp_path / "model.safetensors")
    file.write_bytes(data[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        rw.training.export(str(broken), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="Give a checkpoint, or a model directory"):
        rw.training.export(str(tmp_path), tmp_path / "model.safetensors")
    assert os.listdir(tmp_path) == ["broken"]


def test_a_table_larger_than_what_it_takes(tmp_path: Path) -> None:
    save(tmp_path / "model", rows=400_000, dim=16)  # 24 MiB
    tracemalloc.start()
    try:
        rw.training.export(str(tmp_path / "model"), tmp_path / "model.safetensors")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "model.safetensors").stat().st_size > 24 * 2**20
    assert peak < 12 * 2**20


def test_a_large_table_comes_some_rows_at_a_time() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    values = {"table": np.arange(99, dtype=np.float32).reshape(33, 3)}
    [table] = rw.training.ArrayStore(values, None, strategy).variables.values()
    parts = list(parts_of(table, 100))
    assert [part.nbytes for part in parts] == [96] * 4 + [12]
    assert b"".join(parts) == values["table"].tobytes()


def test_live_variables_a_store_and_arrays(tmp_path: Path) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    values = {"table": np.arange(99, dtype=np.float32).reshape(33, 3), "b": np.float64(2.5)}
    store = rw.training.ArrayStore(values, None, strategy)
    variables = list(store.variables.values())
    for number, source in enumerate((store, variables, values, variables[1])):
        target = tmp_path / f"{number}.safetensors"
        rw.training.export(source, target)
        for name, found in load_file(target).items():
            assert found.dtype == np.asarray(values[name]).dtype
            assert (found == values[name]).all()


def test_sums_of_metrics_are_no_part_of_a_model(tmp_path: Path) -> None:
    def train() -> None:
        strategy = rw.distribute.ParameterServerStrategy()
        with strategy.scope():
            w = rw.Variable(np.ones(3, np.float32), name="w")
            loss = rw.metrics.Mean(name="loss")
        if strategy.is_chief:
            rw.training.export([w, *loss.variables], tmp_path / "live.safetensors")

    with rw.testing.LocalCluster(workers=0, ps=1, model_dir=str(tmp_path / "model")) as cluster:
        cluster.run(train)
    assert rw.training.export(tmp_path / "model", tmp_path / "saved.safetensors") == ["w"]
    assert load_file(tmp_path / "live.safetensors").keys() == {"w"}


@pytest.mark.parametrize("target", ["nowhere/model.safetensors", "file/model.safetensors"])
def test_a_place_that_cannot_be_written_is_named(
    target: str, model_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"model\.safetensors cannot be written"):
        rw.training.export(str(model_dir), tmp_path / target)


def test_formats_are_named_by_the_ending_or_by_name() -> None:
    assert format_of(Path("m.pt"), None) == "torch"
    assert format_of(Path("m"), "orbax") == "orbax"
    assert format_of(Path("m.bin"), "safetensors") == "safetensors"
    with pytest.raises(ValueError, match="say the format"):
        format_of(Path("m.bin"), None)
    with pytest.raises(ValueError, match="is one of"):
        format_of(Path("m.bin"), "onnx")
    with pytest.raises(ValueError, match=r"end in \.keras"):
        format_of(Path("m.bin"), "keras")


def test_names_are_paths_of_a_tree() -> None:
    assert nested({"a/0/w": 1, "a/1/w": 2, "b": 3}) == {
        "a": {"0": {"w": 1}, "1": {"w": 2}},
        "b": 3,
    }
    for names in (["a", "a/b"], ["a/b", "a"]):
        with pytest.raises(ValueError, match="make no tree"):
            nested(dict.fromkeys(names, 0))


@pytest.mark.parametrize("name", ["", "/", "a//b", "a/", "../a", "a/..", ".", "a/./b"])
def test_a_name_that_is_no_path_makes_no_tree(name: str) -> None:
    with pytest.raises(ValueError, match="is no path of names; rename the variable"):
        nested({name: 0})


def test_the_command_writes_a_file_and_says_what_is_in_it(model_dir: Path, tmp_path: Path) -> None:
    command = [*processes.ROPEWALK, "export", str(model_dir)]
    code, output, errors = processes.run(command, timeout_s=60, cwd=tmp_path)
    assert (code, output) == (0, "model.safetensors: 3 variables (safetensors)\n"), errors
    code, _, errors = processes.run(command, timeout_s=60, cwd=tmp_path)
    assert code == 2
    assert "--overwrite" in errors
    assert load_file(tmp_path / "model.safetensors")["w"].shape == (3,)
