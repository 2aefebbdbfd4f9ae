"""Growing tables that are larger than their memory: rows are exact, and memory is bounded."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.calls import Calls
from helpers.digests import digest_of
from helpers.mapped_memory import resident_bytes
from helpers.rules import Adam
from helpers.tables import DIM, F32, INITIALIZER, RULE, gradients, on_disk, table
from ropewalk.annexes.embedding.keyed.admission import draws_of
from ropewalk.annexes.embedding.keyed.block import KeyedBlock
from ropewalk.annexes.embedding.keyed.disk_block import BlockOnDisk
from ropewalk.annexes.embedding.keyed.row_store import RowStore
from ropewalk.annexes.embedding.options import SketchedSightings, TableOptions
from ropewalk.annexes.embedding.update_rules import RowwiseAdagrad
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step
from ropewalk.core.errors import ConfigurationError, LimitExceededError
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition, cut
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire import codec
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.server.ps.block_reader import TableCopy
from ropewalk.server.ps.limits import HeldBytes
from ropewalk.server.ps.store import Store
from ropewalk.telemetry.task_metrics import ps_samples

WHO = Incarnation(TaskId("worker", 0), 1)
ROWS, WIDTH = 16_384, 16  # 2 MiB with Adagrad's accumulators
MEMORY = 1 << 19


def large(memory: int = MEMORY) -> VariableDefinition:
    """A table four times as large as its memory, keys and index left out."""
    wide = table(max_rows=ROWS, dim=WIDTH)
    assert isinstance(wide.table, TableOptions)
    budget = wide.table.index_bytes(ROWS) + memory
    return replace(wide, table=replace(wide.table, memory_bytes=budget))


def make_store(folder: Path | str, index: int = 0, **settings: Any) -> Store:
    return Store(TaskId("ps", index), Settings(table_folder=str(folder), **settings))


def define(store: Store, *definitions: VariableDefinition) -> None:
    store.table.define([ShardDefinition(each) for each in definitions], WHO)


def session_of(store: Store, *definitions: VariableDefinition) -> ParameterSession:
    session = ParameterSession([LocalPs(store.task, WHO, store.settings, store)], WHO, Settings())
    session.connect()
    session.define(definitions, {}, create=True)
    return session


def block_of(store: Store) -> BlockOnDisk:
    [block] = store.table.tables()
    assert isinstance(block, BlockOnDisk)
    return block


# -- steps -----------------------------------------------------------------------------------


def test_a_table_of_four_times_its_memory_is_exact_and_stays_near_its_budget(
    tmp_path: Path,
) -> None:
    store = make_store(tmp_path / "rows")
    session, block = session_of(store, large()), block_of(store)
    rng, resident = np.random.default_rng(0), []
    rows = draws_of("t", INITIALIZER).of(np.arange(ROWS), WIDTH, F32)
    squares = np.full_like(rows, RULE.initial_accumulator_value)
    for part in np.split(rng.permutation(ROWS), 16) * 2:
        values = rng.standard_normal((part.size, WIDTH), np.float32)
        np.testing.assert_allclose(session.rows.lookup("t", part), rows[part], rtol=2e-5, atol=1e-6)
        session.step(Step(gradients(t=(part, values)), increment=1))
        squares[part] += values**2
        rows[part] -= np.float32(0.1) * values / np.sqrt(squares[part] + np.float32(RULE.epsilon))
        resident.append(resident_bytes(block.table.columns["values"]))
    # The rows of a step come on top, and pages that the kernel maps beside those that are read.
    assert max(resident) <= 1.5 * MEMORY
    counted = block.counters
    assert counted.disk_bytes > 2 * MEMORY
    assert counted.num_bytes + counted.disk_bytes == block.table.num_bytes
    np.testing.assert_allclose(
        session.rows.lookup("t", np.arange(ROWS)), rows, rtol=2e-5, atol=1e-6
    )


def test_rows_that_steps_use_stay_and_others_are_asked_for_before_the_lock(
    tmp_path: Path, calls: Calls
) -> None:
    store = make_store(tmp_path / "rows")
    session = session_of(store, large())
    often = np.arange(200)
    asked: list[int] = []
    for start in range(0, ROWS, 1024):
        keys = np.union1d(often, np.arange(start, start + 1024))
        ones = np.ones((keys.size, WIDTH), np.float32)
        session.step(Step(gradients(t=(keys, ones)), increment=1))
    block = block_of(store)

    def ask(_: int, count: int) -> None:
        assert not block.lock.locked(), "others would wait for the disk"
        asked.append(count)

    calls.before(block._pages._memory, "fetch", ask)
    session.rows.lookup("t", often)
    assert asked == []
    cold = np.arange(300, 400)
    session.rows.lookup("t", cold)
    assert sum(asked) >= 2 * 100 * WIDTH * 4 // 4096  # values and slots
    asked.clear()
    session.step(Step(gradients(t=(cold + 200, np.ones((100, WIDTH), np.float32)))))
    assert asked != []


def test_a_ps_in_whose_table_all_fits_has_no_file(tmp_path: Path) -> None:
    store = make_store(tmp_path / "rows")
    define(store, large(memory=1 << 30), table("u"))
    assert [type(block) for block in store.table.tables()] == [KeyedBlock, KeyedBlock]
    assert not (tmp_path / "rows").exists()


def test_a_table_without_a_budget_runs_what_it_ran() -> None:
    store = make_store("")
    define(store, table())
    [block] = store.table.tables()
    assert isinstance(block, KeyedBlock)
    assert type(block.table._store) is RowStore
    assert (block.disk_bytes, block.reserved_bytes) == (0, 0)


def test_it_has_the_bits_of_one_in_memory(tmp_path: Path) -> None:
    stores = [make_store(tmp_path / "rows"), make_store("")]
    tables = [large(), table(max_rows=ROWS, dim=WIDTH)]
    rng = np.random.default_rng(3)
    sessions = [session_of(store, each) for store, each in zip(stores, tables, strict=True)]
    for _ in range(12):
        keys = rng.integers(-ROWS // 2, ROWS // 2, 3000)
        values = rng.standard_normal((keys.size, WIDTH), np.float32)
        found = []
        for session in sessions:
            found.append(session.rows.lookup("t", keys))
            session.step(Step(gradients(t=(keys, values)), increment=1))
        np.testing.assert_array_equal(found[0], found[1])
    sessions[0].rows.lookup("t", keys[:5])  # after the rows of a whole step
    assert block_of(stores[0]).disk_bytes > 0
    assert digest_of(stores[0]) == digest_of(stores[1])


# -- limits ----------------------------------------------------------------------------------


def test_rows_on_disk_count_for_the_disk_and_not_for_memory(tmp_path: Path) -> None:
    shard = ShardDefinition(large())
    limits = {"max_ps_bytes": shard.memory_bytes + 1000, "max_ps_disk_bytes": shard.file_bytes}
    store = make_store(tmp_path / "rows", **limits)
    define(store, large())
    assert shard.num_bytes > limits["max_ps_bytes"]
    assert block_of(store).most_bytes == shard.memory_bytes
    assert store.table.held().disk == block_of(store).reserved_bytes == shard.file_bytes
    with pytest.raises(LimitExceededError, match=r"'w'.*max_ps_bytes"):
        define(store, VariableDefinition("w", (500,), F32))
    with pytest.raises(LimitExceededError, match=r"'t'.*max_ps_disk_bytes is 2097151"):
        define(make_store(tmp_path / "rows", max_ps_disk_bytes=shard.file_bytes - 1), large())


def test_the_disk_that_other_shares_of_the_ps_hold_counts(tmp_path: Path) -> None:
    settings = Settings(table_folder=str(tmp_path / "rows"), max_ps_disk_bytes=3 << 20)
    store = Store(TaskId("ps", 0), settings, beside=lambda: HeldBytes(0, 2 << 20))
    with pytest.raises(LimitExceededError, match=r"4194304 bytes.*max_ps_disk_bytes is 3145728"):
        define(store, large())


def test_a_ps_without_a_folder_says_what_to_set() -> None:
    store = make_store("")
    with pytest.raises(ConfigurationError, match=r"'t'.*ps/task:0.*ROPEWALK_TABLE_FOLDER"):
        define(store, large())
    assert store.table.tables() == []


@pytest.mark.parametrize(
    "definition",
    [large(memory=1000), on_disk(table(max_rows=100_000, admission=SketchedSightings(2)), 100)],
    ids=["rows", "admission"],
)
def test_memory_that_is_not_enough_for_the_index_is_refused_with_the_numbers(
    tmp_path: Path, definition: VariableDefinition
) -> None:
    with pytest.raises(ConfigurationError, match=r"memory_bytes=\d+.*take \d+.*at least 65536"):
        define(make_store(tmp_path / "rows"), definition)
    assert not (tmp_path / "rows").exists()


def test_a_full_disk_refuses_the_definition_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path / "rows")

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(LimitExceededError, match=r"'t' needs 2097152 bytes.*are free"):
            define(store, large())
    assert store.table.tables() == []
    define(store, large())


def test_every_ps_has_its_part_of_the_memory() -> None:
    parts = cut(large(), 3)
    assert sum(part.memory_bytes for part in parts) == pytest.approx(
        ShardDefinition(large()).memory_bytes, abs=3
    )
    assert codec.shard_from_wire(codec.shard_to_wire(parts[0])) == parts[0]


# -- what is shown ---------------------------------------------------------------------------


def test_what_is_on_disk_is_counted_and_shown(tmp_path: Path) -> None:
    store = make_store(tmp_path / "rows")
    session = session_of(store, large())
    for keys in np.split(np.arange(ROWS), 16):
        session.step(Step(gradients(t=(keys, np.ones((keys.size, WIDTH), np.float32)))))
    again = codec.counters_from_wire(codec.counters_to_wire(store.counters()))
    [counted] = again.tables
    assert counted.disk_bytes > MEMORY
    shown = ps_samples(again, limit_bytes=0, max_sessions=0, chief_silent_s=0)
    values = {each.metric.name: each.value for each in shown if each.labels == ("t",)}
    assert values["ropewalk_ps_table_disk_bytes"] == counted.disk_bytes
    assert values["ropewalk_ps_table_bytes"] == counted.num_bytes
    assert store.table.bytes_in_use() == counted.num_bytes


# -- followers -------------------------------------------------------------------------------


@pytest.mark.annex("replication")
@pytest.mark.parametrize("follows_on_disk", [True, False])
def test_a_follower_has_a_folder_of_its_own_or_all_rows_in_memory(
    tmp_path: Path, follows_on_disk: bool
) -> None:
    from helpers.replication.stores import FOLLOWER, Link
    from ropewalk.annexes.replication.server.follower import Follower
    from ropewalk.annexes.replication.server.joining import copy_store

    leader = make_store(tmp_path / "leader")
    folder = tmp_path / "follower" if follows_on_disk else ""
    follower = make_store(folder, index=1)
    definition = replace(large(), name="t")
    session = session_of(leader, definition)
    rng = np.random.default_rng(1)

    parts = np.split(rng.permutation(ROWS), 16)  # rows of a part lie beside each other

    def train() -> None:
        for part in parts:
            values = rng.standard_normal((part.size, WIDTH), np.float32)
            session.step(Step(gradients(t=(part, values)), increment=1))

    train()
    link = Link(leader, follower)
    copy_store(leader, Follower(FOLLOWER, link))
    train()
    link.finish()
    [block] = follower.table.tables()
    assert isinstance(block, BlockOnDisk) == follows_on_disk
    if isinstance(block, BlockOnDisk):
        assert block._pages.memory_bytes <= 1.5 * MEMORY
    assert digest_of(follower) == digest_of(leader)


def copied_at_once(store: Store) -> None:
    """To a follower, under the lock: more rows go during a pass than are remembered."""
    table = block_of(store).table
    for _ in table.tiles(1000):
        pass


def loaded_again(store: Store) -> None:
    """By a follower, or from a delta: rows that are there already."""
    table = block_of(store).table
    for tile in list(table.tiles(1000)):
        table.load(tile)


def kept_for_a_cut(store: Store) -> None:
    """A small table is kept by the first push after the moment."""
    assert TableCopy(block_of(store), most=1 << 16).keep([]) > MEMORY


@pytest.mark.parametrize("use", [copied_at_once, loaded_again, kept_for_a_cut])
def test_what_is_copied_leaves_memory_again(tmp_path: Path, use: Callable[[Store], None]) -> None:
    store = make_store(tmp_path / "rows")
    session, block = session_of(store, large()), block_of(store)
    for keys in np.split(np.arange(ROWS), 16):
        session.step(Step(gradients(t=(keys, np.ones((keys.size, WIDTH), np.float32)))))
    use(store)
    for keys in np.split(np.arange(ROWS), 256)[:4]:
        session.rows.lookup("t", keys)
    assert resident_bytes(block.table.columns["values"]) <= 1.5 * MEMORY


@pytest.mark.parametrize("rule", [Adam(learning_rate=0.1), RowwiseAdagrad()], ids=["adam", "row"])
def test_a_table_that_is_emptied_begins_anew_in_its_file(tmp_path: Path, rule: Any) -> None:
    """A replica that is copied anew: there may be no disk for a second file."""
    on, off = (make_store(tmp_path / "rows", index=index) for index in range(2))
    rng = np.random.default_rng(2)
    keys = rng.integers(-2000, 2000, 5000)
    values = rng.standard_normal((keys.size, DIM), np.float32)
    blocks: list[KeyedBlock] = []
    for store, definition in (
        (on, on_disk(table(rule=rule, max_rows=20_000), 1 << 14)),
        (off, table(rule=rule, max_rows=20_000)),
    ):
        define(store, definition)
        [block] = store.table.tables()
        assert isinstance(block, KeyedBlock)
        blocks.append(block)
    assert isinstance(blocks[0], BlockOnDisk)
    blocks[0].table.push(keys, values, 1)
    blocks[0].clear()
    assert len(blocks[0].table) == 0
    for block in blocks:
        block.table.push(keys[::2], values[::2], 3)
    assert blocks[0].table.digest() == blocks[1].table.digest()
