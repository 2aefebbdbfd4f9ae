"""Growing tables in checkpoints: saved while they change, restored on any number of ps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.rules import SGD, Adam
from helpers.tables import DIM, F32, gradients, on_disk, table
from ropewalk.annexes.embedding.keyed.block import KeyedBlock
from ropewalk.annexes.embedding.keyed.disk_block import BlockOnDisk
from ropewalk.annexes.embedding.keyed.row_store import counts_of
from ropewalk.annexes.embedding.options import Sightings, SketchedSightings
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.checkpoint import CheckpointReader, export_checkpoint
from ropewalk.core.checkpoint.directory import MANIFEST
from ropewalk.core.checkpoint.manifest import manifest_bytes, manifest_of_parts
from ropewalk.core.errors import CheckpointError, LimitExceededError, ShapeMismatchError
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.server.ps.block_reader import TableCopy
from ropewalk.server.ps.saving import save_shards
from ropewalk.server.ps.store import Store

WHO = Incarnation(TaskId("worker", 0), 1)
ADAM = Adam(learning_rate=0.1)


class Cluster:
    """Some ps with tables, and a worker."""

    def __init__(
        self,
        num_ps: int,
        *definitions: VariableDefinition,
        restore_from: Path | str = "",
        table_folder: Path | str = "",
    ) -> None:
        settings = Settings(table_folder=str(table_folder))
        self.stores = [Store(TaskId("ps", index), settings) for index in range(num_ps)]
        peers = [LocalPs(store.task, WHO, store.settings, store) for store in self.stores]
        self.session = ParameterSession(peers, WHO, Settings())
        self.session.connect()
        self.session.define(definitions, {}, create=True, restore_from=str(restore_from))

    def push(self, keys: Array, seed: int) -> None:
        values = np.random.default_rng(seed).standard_normal((keys.size, DIM)).astype(F32)
        self.session.step(Step(gradients(t=(keys, values)), increment=1))

    def save(self, directory: Path) -> Path:
        parts = [save_shards(store, str(directory), copy_bytes=4096) for store in self.stores]
        manifest = manifest_of_parts(parts, self.session.global_step, final=False)
        (directory / MANIFEST).write_bytes(manifest_bytes(manifest))
        return directory

    def blocks(self) -> list[KeyedBlock]:
        found = [block for store in self.stores for block in store.table.tables()]
        return [block for block in found if isinstance(block, KeyedBlock)]

    def counted(self, what: str) -> int:
        return sum(getattr(block.counters, what) for block in self.blocks())


def trained(num_ps: int, definition: VariableDefinition, table_folder: Path | str = "") -> Cluster:
    cluster = Cluster(num_ps, definition, table_folder=table_folder)
    rng = np.random.default_rng(5)
    for seed in range(6):
        cluster.push(rng.integers(-200, 200, 150), seed)
    return cluster


KEYS = np.arange(-250, 250)


@pytest.mark.parametrize("admission", [None, Sightings(3), SketchedSightings(3, 1 << 12)], ids=str)
@pytest.mark.parametrize("num_ps", [2, 1, 3])
def test_a_restored_table_goes_on_as_the_saved_one(
    tmp_path: Path, num_ps: int, admission: Any
) -> None:
    """Its rows, their slots, counts and steps, and what its admission remembers.

    A sketch of several ps adds up: on another number of them keys may get their rows early.
    """
    definition = table(rule=ADAM, admission=admission)
    before = trained(2, definition)
    directory = before.save(tmp_path)
    CheckpointReader(str(directory)).verify()
    after = Cluster(num_ps, definition, restore_from=directory)
    for what in ("rows", "admitted", "refused", "evicted"):
        assert after.counted(what) == before.counted(what)
    np.testing.assert_array_equal(
        after.session.rows.lookup("t", KEYS), before.session.rows.lookup("t", KEYS)
    )
    if num_ps == 2:
        for block, saved in zip(after.blocks(), before.blocks(), strict=True):
            assert block.table.digest() == saved.table.digest()
    if num_ps == 2 or not isinstance(admission, SketchedSightings):
        for cluster in (before, after):
            cluster.push(KEYS, 9)
        one, other = (cluster.session.rows.lookup("t", KEYS) for cluster in (before, after))
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("num_ps", [1, 2, 3])
def test_tables_that_are_whole_on_a_ps_are_restored_wherever_they_are_then(
    tmp_path: Path, num_ps: int
) -> None:
    definitions = [table(f"t{i}", rule=ADAM) for i in range(9)]
    before = Cluster(2, *definitions)
    rng = np.random.default_rng(6)
    for _ in range(3):
        keys = {each.name: rng.integers(-200, 200, 100) for each in definitions}
        values = np.ones((100, DIM), F32)
        before.session.step(Step(gradients(**{name: (own, values) for name, own in keys.items()})))
    assert len(before.blocks()) == 9
    # Nine alike are whole on two ps, and cut on three.
    after = Cluster(num_ps, *definitions[::-1], restore_from=before.save(tmp_path))
    wanted = {each.name: KEYS for each in definitions}
    states = [cluster.session.rows.lookup_states({}, wanted)[1] for cluster in (before, after)]
    for name in wanted:
        saved, restored = (own[name][0][_places(own[name][1])] for own in states)
        np.testing.assert_array_equal(restored[:, :DIM], saved[:, :DIM])
        counts = counts_of(saved)
        np.testing.assert_array_equal(counts_of(restored), counts)
        # Slots of a key without a row mean nothing.
        np.testing.assert_array_equal(restored[counts > 0], saved[counts > 0])
    assert after.counted("rows") == before.counted("rows")


def _places(inverse: Array | None) -> Array:
    return np.arange(KEYS.size) if inverse is None else inverse


def test_a_table_on_disk_is_restored_in_memory_and_the_other_way_round(tmp_path: Path) -> None:
    folder, in_memory = tmp_path / "rows", table(rule=ADAM, max_rows=6000)
    larger = on_disk(in_memory)
    before = trained(2, larger, folder)
    directory = before.save(tmp_path / "one")
    middle = Cluster(2, in_memory, restore_from=directory)
    after = Cluster(2, larger, restore_from=middle.save(tmp_path / "other"), table_folder=folder)
    assert all(isinstance(block, BlockOnDisk) for block in (*before.blocks(), *after.blocks()))
    for block, saved in zip(after.blocks(), before.blocks(), strict=True):
        assert block.table.digest() == saved.table.digest()


def test_another_rule_begins_with_new_slots(tmp_path: Path) -> None:
    before = trained(1, table(rule=ADAM))
    directory = before.save(tmp_path)
    after = Cluster(1, table(rule=SGD(learning_rate=0.5, momentum=0.9)), restore_from=directory)
    np.testing.assert_array_equal(
        after.session.rows.lookup("t", KEYS), before.session.rows.lookup("t", KEYS)
    )
    start = after.session.rows.lookup("t", KEYS)
    ones = np.ones((KEYS.size, DIM), np.float32)
    after.session.step(Step(gradients(t=(KEYS, ones))))
    np.testing.assert_allclose(after.session.rows.lookup("t", KEYS), start - 0.5, rtol=1e-5)


def test_a_smaller_table_keeps_the_rows_used_last_or_says_what_to_raise(tmp_path: Path) -> None:
    before = Cluster(1, table(rule=ADAM))
    for step in range(10):
        before.push(np.arange(step * 20, step * 20 + 20), step)
    directory = before.save(tmp_path)
    small = table(rule=ADAM, max_rows=100, evicts="least_recent")
    [block] = Cluster(1, small, restore_from=directory).blocks()
    assert sorted(key for tile in block.table.tiles() for key in tile.keys) == [*range(100, 200)]
    with pytest.raises(LimitExceededError, match="raise max_rows"):
        Cluster(1, table(rule=ADAM, max_rows=100), restore_from=directory)


def test_a_table_is_saved_while_rows_come_and_go(tmp_path: Path) -> None:
    """Whatever changes between two pieces: every row that was there all the time is saved."""
    cluster = Cluster(1, table(max_rows=2000))
    cluster.push(np.arange(1000), 0)
    [block] = cluster.blocks()
    first = block.read(np.arange(1000))
    copy, pieces = TableCopy(block, 4096), []
    for number, array in enumerate(copy.arrays()):
        pieces.append(array)
        if number == 6:  # in the middle of them a row goes and comes back, and new ones are made
            block.table.evict(np.array([999, 3]))
            cluster.push(np.array([5000, 999, 6000]), 1)
    loaded = Cluster(1, table(max_rows=2000)).blocks()[0].table
    columns: dict[int, dict[str, Array]] = {}
    for piece, array in zip(copy.planned, pieces, strict=True):
        if not piece.slot.startswith("state/"):
            columns.setdefault(piece.row_offset, {})[piece.slot] = array
    assert len(columns) > 5
    for each in columns.values():
        loaded.load(loaded.tile(each))
    stayed = np.setdiff1d(np.arange(1000), [3, 999])
    np.testing.assert_array_equal(loaded.read(stayed), first[stayed])
    assert 998 <= len(loaded) <= 1002


def test_a_row_that_went_and_came_back_meanwhile_is_the_one_in_the_later_place() -> None:
    """It may be in two places of a copy: the later one was copied later."""
    cluster = Cluster(1, table())
    cluster.push(np.arange(5), 0)
    columns = {name: column.copy() for name, column in cluster.blocks()[0].table.columns.items()}
    columns["keys"][4] = 1
    columns["values"][4] = 7
    loaded = Cluster(1, table()).blocks()[0].table
    loaded.load(loaded.tile(columns))
    assert sorted(key for tile in loaded.tiles() for key in tile.keys) == [0, 1, 2, 3]
    np.testing.assert_array_equal(loaded.read(np.array([1])), np.full((1, DIM), 7))


@pytest.mark.parametrize("kind", ["dim", "dtype", "array", "table"])
def test_another_model_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    if kind == "table":
        array = VariableDefinition("t", (3, DIM), F32, table().initializer)
        directory = Cluster(1, array).save(tmp_path)
    else:
        directory = trained(1, table()).save(tmp_path)
    other = {
        "dim": table(dim=DIM + 1),
        "dtype": table(dtype=np.dtype(np.float64)),
        "array": VariableDefinition("t", (1000, DIM), F32, table().initializer),
        "table": table(),
    }[kind]
    with pytest.raises(CheckpointError, match=r"'t'.*another model"):
        Cluster(1, other, restore_from=directory)


def test_a_damaged_piece_is_refused(tmp_path: Path) -> None:
    directory = trained(1, table()).save(tmp_path)
    file = directory / "ps-0.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="altered"):
        CheckpointReader(str(directory)).verify()
    with pytest.raises(CheckpointError, match="altered"):
        Cluster(1, table(), restore_from=directory)


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": np.zeros((3, 1), np.int64)},
        {"keys": np.zeros(3, np.float64)},
        {"keys": np.zeros(2, np.int64)},
        {"last": np.zeros(3, np.int8)},
        {"values": np.zeros((3, DIM + 1), np.float32)},
        {"values": np.zeros(3, np.float32)},
        {"slot/accumulator": np.zeros((2, DIM), np.float32)},
        {"counts": None},
    ],
    ids=lambda each: ",".join(f"{name}{getattr(v, 'shape', '')}" for name, v in each.items()),
)
def test_columns_that_no_table_has_are_refused(changes: dict[str, Any]) -> None:
    loaded = Cluster(1, table()).blocks()[0].table
    columns: dict[str, Any] = {
        "keys": np.arange(3), "values": np.zeros((3, DIM), np.float32),
        "counts": np.ones(3, np.uint32), "last": np.ones(3, np.uint32),
        "slot/accumulator": np.zeros((3, DIM), np.float32),
    }  # fmt: skip
    columns |= changes
    with pytest.raises(ShapeMismatchError, match="'t'"):
        loaded.load(loaded.tile({n: column for n, column in columns.items() if column is not None}))
    assert len(loaded) == 0


def test_an_export_says_that_it_leaves_tables_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = trained(1, table()).save(tmp_path / "ckpt-0000000001")
    assert export_checkpoint(str(directory), tmp_path / "model.safetensors") == []
    assert "not exported: t" in caplog.text
    with pytest.raises(CheckpointError, match="growing table"):
        CheckpointReader(str(directory)).read("t")


def test_a_new_table_begins_without_rows_where_the_checkpoint_has_none(tmp_path: Path) -> None:
    directory = trained(1, table()).save(tmp_path)
    after = Cluster(1, table(), table("new"), restore_from=directory)
    assert [block.counters.rows > 0 for block in after.blocks()] == [True, False]
