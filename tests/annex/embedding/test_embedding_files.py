"""Rows of tables in files, and back: every format, by pieces, and what cannot be is named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ropewalk as rw
from helpers import processes
from ropewalk.annexes.embedding.files import row_files as files
from ropewalk.core.errors import (
    CheckpointError,
    ConfigurationError,
    MissingExtraError,
    ShapeMismatchError,
    UnknownVariableError,
)

emb = rw.embedding
DIM = 3
GROWS = emb.TableConfig("grows", DIM, optimizer=rw.optimizers.Adam(0.1))
FIXED = emb.TableConfig("fixed", DIM, vocabulary_size=20)
BIG = np.array([2**63 - 1, -(2**63), 0, -1, 7, 8, 9, 10, 11, 12], np.int64)


FOUR_ROWS: dict[str, Any] = {"piece_bytes": 4 * DIM * 4}


def values(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def written(tmp_path: Path) -> str:
    """A checkpoint with both tables; pieces of four rows."""
    order = np.random.default_rng(1).permutation(20)
    return emb.import_tables(
        str(tmp_path / "model"),
        {GROWS: (BIG, values(10)), FIXED: (order, values(20)[order])},
        global_step=5,
        **FOUR_ROWS,
    )


@pytest.mark.parametrize("ending", ["npy", "safetensors"])
@pytest.mark.parametrize(("table", "rows"), [("grows", 10), ("fixed", 20)])
def test_rows_go_to_a_file_and_come_back(
    tmp_path: Path, table: str, rows: int, ending: str
) -> None:
    path = tmp_path / f"rows.{ending}"
    assert emb.export_table(written(tmp_path), table, path) == rows
    assert (
        emb.export_table(str(tmp_path / "model"), table, path, overwrite=True, **FOUR_ROWS) == rows
    )
    if ending == "npy":
        records = np.load(path)
        keys, found = records["key"], records["value"]
    else:
        arrays = load_file(path)
        keys, found = arrays["keys"], arrays["values"]
    np.testing.assert_array_equal(keys, BIG if table == "grows" else np.arange(20))
    np.testing.assert_array_equal(found, values(rows))
    config = GROWS if table == "grows" else FIXED
    again = emb.import_tables(str(tmp_path / "again"), {config: path})
    other = tmp_path / "other.npy"
    assert emb.export_table(again, table, other) == rows
    np.testing.assert_array_equal(np.load(other)["value"], found)
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_file()) == sorted(
        ["other.npy", f"rows.{ending}"]
    )


@pytest.mark.parametrize("num_ps", [1, 2])
def test_a_job_begins_with_the_rows_and_trains_on(tmp_path: Path, num_ps: int) -> None:
    """Adam's first update of an imported row is its first one; keys without a row begin as ever."""
    path = written(tmp_path)

    def program() -> Any:
        strategy = rw.distribute.ParameterServerStrategy()
        with strategy.scope():
            features = [emb.FeatureConfig("g", GROWS), emb.FeatureConfig("f", FIXED)]
            embeddings = emb.Embeddings(features, rw.optimizers.SGD(1.0))
        step = strategy.global_step
        rows = embeddings.lookup({"g": np.r_[BIG, 99], "f": np.arange(20)})
        found = dict(rows)
        rows.apply_gradients({"g": np.ones((11, DIM), np.float32)})
        return step, found, embeddings.lookup({"g": BIG})["g"]

    with rw.testing.LocalCluster(workers=0, ps=num_ps, model_dir=path.rsplit("/", 1)[0]) as cluster:
        [(step, found, after)] = cluster.run(program).values()
    assert step == 5
    np.testing.assert_array_equal(found["g"][:10], values(10))
    np.testing.assert_array_equal(found["f"], values(20))
    assert found["g"][10].any()
    np.testing.assert_allclose(after, values(10) - 0.1, rtol=1e-4, atol=1e-5)


def test_weights_of_frameworks_are_rows_by_number(tmp_path: Path) -> None:
    weights = values(20).astype(np.float64)
    np.save(tmp_path / "weights.npy", weights)
    for source in (weights, tmp_path / "weights.npy"):
        path = emb.import_tables(str(tmp_path / "model"), {FIXED: source, GROWS: source})
        np.testing.assert_array_equal(rw.train.load_variable(path, "fixed"), values(20))
        target = tmp_path / "out.npy"
        emb.export_table(path, "grows", target, overwrite=True)
        np.testing.assert_array_equal(np.load(target)["key"], np.arange(20))


@pytest.mark.parametrize(
    ("config", "source", "error", "said"),
    [
        (GROWS, np.ones((2, 4)), ShapeMismatchError, "4 elements, table 'grows' has dim=3"),
        (GROWS, (np.ones(2), np.ones((2, 3))), ShapeMismatchError, r"keys are float64\[2\]"),
        (GROWS, np.ones((2, 3), int), ShapeMismatchError, r"values int64\[2, 3\]"),
        (GROWS, np.full((2, 3), np.nan), ConfigurationError, "NaN"),
        (GROWS, np.full((2, 3), 1e300), ConfigurationError, "that float32 cannot hold"),
        (FIXED, np.ones((19, 3)), ConfigurationError, "1 row missing, first of them 19"),
        (FIXED, np.ones((21, 3)), ConfigurationError, "vocabulary_size=20.*key 20"),
        (FIXED, "no-such.npy", CheckpointError, "no-such.npy has no rows to read"),
        (FIXED, "rows.txt", ValueError, "npy, safetensors, parquet"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_rows_that_do_not_fit_leave_no_checkpoint(
    tmp_path: Path, config: Any, source: Any, error: type[Exception], said: str
) -> None:
    model_dir = tmp_path / "model"
    with pytest.raises(error, match=said):
        emb.import_tables(str(model_dir), {config: source})
    assert not [*model_dir.glob("ckpt-*")]


def test_more_rows_than_a_table_may_have_are_refused(tmp_path: Path) -> None:
    adam = rw.optimizers.Adam(0.1)
    small = emb.TableConfig("small", DIM, max_rows=5)
    with pytest.raises(ConfigurationError, match=r"6 rows for table 'small'.*max_rows=5"):
        emb.import_tables(str(tmp_path), {small: values(6)})
    # Of 74 bytes each, and 36 with Adam's slots.
    small = emb.TableConfig("small", DIM, max_bytes=5 * 110 + 109, optimizer=adam)
    with pytest.raises(ConfigurationError, match=r"6 rows for .*room for 5 \(max_bytes=659\)"):
        emb.import_tables(str(tmp_path), {small: values(6)})
    assert emb.import_tables(str(tmp_path), {small: values(5)})


def test_imported_rows_are_not_unseen_since_before_they_were_there(tmp_path: Path) -> None:
    table = emb.TableConfig("t", DIM, max_unseen_steps=100)
    emb.import_tables(str(tmp_path), {table: values(3)}, global_step=5000)

    def program() -> Any:
        strategy = rw.distribute.ParameterServerStrategy()
        with strategy.scope():
            embeddings = emb.Embeddings([emb.FeatureConfig("f", table)], rw.optimizers.SGD(1.0))
        rows = embeddings.lookup({"f": [7]})
        strategy.run(lambda: rows.apply_gradients({"f": np.ones((1, DIM), np.float32)}))
        return embeddings.lookup({"f": np.arange(3)})["f"]

    with rw.testing.LocalCluster(workers=0, ps=1, model_dir=str(tmp_path)) as cluster:
        [found] = cluster.run(program).values()
    np.testing.assert_array_equal(found, values(3))


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(UnknownVariableError, match="no table 'users'; tables there are 'grows', "):
        emb.export_table(path, "users", tmp_path / "rows.npy")
    (tmp_path / "rows.npy").touch()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        emb.export_table(path, "grows", tmp_path / "rows.npy")
    with pytest.raises(ValueError, match="format='csv'"):
        emb.export_table(path, "grows", tmp_path / "rows", format="csv")
    save_file({"w": values(2)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="arrays w, and not keys and values"):
        files.rows_of_file(tmp_path / "other.safetensors")


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"a Parquet file needs pyarrow.*ropewalk\[parquet"):
        emb.export_table(written(tmp_path), "grows", tmp_path / "rows.parquet")


def test_a_damaged_checkpoint_exports_nothing(tmp_path: Path) -> None:
    path = Path(written(tmp_path))
    file = path / "tables.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="altered"):
        emb.export_table(str(path), "fixed", tmp_path / "rows.npy")
    assert not (tmp_path / "rows.npy").exists()


def test_the_command_exports_a_table(tmp_path: Path) -> None:
    written(tmp_path)
    command = [*processes.ROPEWALK, "export", str(tmp_path / "model"), "--table"]

    def run(*arguments: str) -> tuple[int, str]:
        code, output, errors = processes.run([*command, *arguments], timeout_s=60, cwd=tmp_path)
        return code, output + errors

    assert run("grows") == (0, "grows.safetensors: 10 rows (safetensors)\n")
    assert load_file(tmp_path / "grows.safetensors")["values"].shape == (10, DIM)
    assert run("fixed", "-o", "rows.npy")[1] == "rows.npy: 20 rows (npy)\n"
    code, said = run("fixed", "-o", "rows.npy")
    assert (code, "--overwrite" in said) == (2, True)
    assert "npy, safetensors, parquet" in run("fixed", "-o", "rows.pt")[1]
    assert "leave --model and --prefix out" in run("fixed", "--prefix", "a")[1]
