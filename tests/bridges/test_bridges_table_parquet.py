"""Rows of tables in Parquet files, as pyarrow reads and writes them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw

arrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.bridges

emb = rw.embedding
TABLE = emb.TableConfig("t", 3)
KEYS = np.array([2**63 - 1, -5, 0, 12], np.int64)
VALUES = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_rows_go_to_parquet_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    checkpoint = emb.import_tables(str(tmp_path / "model"), {TABLE: (KEYS, VALUES)})
    assert emb.export_table(checkpoint, "t", path) == 4
    found = parquet.read_table(path)
    assert found.schema.names == ["key", "value"]
    assert found["key"].to_pylist() == KEYS.tolist()
    assert found["value"].to_pylist() == VALUES.tolist()
    again = emb.import_tables(str(tmp_path / "again"), {TABLE: path})
    emb.export_table(again, "t", tmp_path / "rows.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy")["value"], VALUES)


def test_files_of_others_with_lists_of_any_kind_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    columns = {"other": ["x"] * 4, "value": VALUES.astype(float).tolist(), "key": KEYS}
    parquet.write_table(arrow.table(columns), path, row_group_size=3)
    checkpoint = emb.import_tables(str(tmp_path / "model"), {TABLE: path}, piece_bytes=24)
    emb.export_table(checkpoint, "t", tmp_path / "rows.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy")["value"], VALUES)
    parquet.write_table(arrow.table({"key": KEYS, "value": [[1.0], [], [1.0], [2.0, 3.0]]}), path)
    with pytest.raises(rw.errors.RopewalkError, match=r"different lengths|1 elements"):
        emb.import_tables(str(tmp_path / "other"), {TABLE: path})
    parquet.write_table(arrow.table({"id": KEYS}), path)
    with pytest.raises(rw.errors.CheckpointError, match="needs key and value"):
        emb.import_tables(str(tmp_path / "other"), {TABLE: path})
