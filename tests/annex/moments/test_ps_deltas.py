"""Deltas: what changed since a whole checkpoint, saved by ps and read as if all were there."""

import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from helpers.rules import Adagrad, Adam
from helpers.tables import DIM, F32, gradients, on_disk, table
from ropewalk.annexes.embedding.files.exchange import export_table
from ropewalk.annexes.embedding.keyed.block import KeyedBlock
from ropewalk.annexes.embedding.options import Sightings
from ropewalk.annexes.embedding.readers.followed_rows import FollowRequest, Position
from ropewalk.annexes.embedding.server.readers import Readers
from ropewalk.annexes.moments.server.cuts import ShareCuts
from ropewalk.annexes.moments.server.deltas import Bases, delta_of_table
from ropewalk.annexes.moments.server.image import CutImage
from ropewalk.annexes.moments.server.servicer import SaveOrder, save_moment
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.checkpoint import CheckpointReader, export_checkpoint, prune
from ropewalk.core.checkpoint.delta import REMOVED
from ropewalk.core.checkpoint.delta import ROWS as ROWS_SLOT
from ropewalk.core.checkpoint.directory import MANIFEST
from ropewalk.core.checkpoint.manifest import Manifest, digest, manifest_bytes, manifest_of_parts
from ropewalk.core.errors import CheckpointError
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.engine.block import Block
from ropewalk.engine.row_changes import ChangeMark
from ropewalk.launch.commands.checkpoint import verify_command
from ropewalk.server.ps.block_reader import TableCopy
from ropewalk.server.ps.store import Store

pytestmark = pytest.mark.annex("embedding")

WHO = Incarnation(TaskId("worker", 0), 1)
ADAM = Adam(learning_rate=0.1)
T = table(rule=ADAM, max_rows=6000)
KEYS = np.arange(-1000, 1000)
COPY_BYTES = 1 << 16  # of several pieces
ROWS = 270_000  # 4.3 MB with its slots on each of two ps: a smaller array is always whole
D = VariableDefinition("d", (ROWS, DIM), F32, Initializer("random_normal", seed=1))
ORDERS = {
    "whole": SaveOrder("ckpt-0000000001", may_be_base=True),
    "delta": SaveOrder("ckpt-0000000002", base="ckpt-0000000001"),
}


def taken(store: Store, number: int, *, may_be_base: bool) -> CutImage:
    """A cut of no workers, which is taken at once."""
    cuts = store.part(ShareCuts)
    cuts.begin(number, set(), 1.0, with_slots=True, may_be_base=may_be_base)
    return cuts.kept(number, None)


class Cluster:
    """Some ps, and a worker."""

    def __init__(
        self,
        num_ps: int,
        *definitions: VariableDefinition,
        restore_from: Path | str = "",
        max_ps_bytes: int = 1 << 30,
        table_folder: Path | str = "",
    ) -> None:
        settings = Settings(max_ps_bytes=max_ps_bytes, table_folder=str(table_folder))
        self.stores = [Store(TaskId("ps", index), settings) for index in range(num_ps)]
        self.cut_numbers = count(1)
        peers = [LocalPs(store.task, WHO, store.settings, store) for store in self.stores]
        self.session = ParameterSession(peers, WHO, Settings())
        self.session.connect()
        self.session.define(
            definitions,
            {},
            create=True,
            partitioner=lambda *_: [num_ps, 1],
            restore_from=str(restore_from),
        )
        if D in definitions:
            self.session.bind(["d"], Adagrad(learning_rate=0.1))

    def push(self, keys: Array, seed: int, name: str = "t", *, counts: bool = True) -> None:
        values = np.random.default_rng(seed).standard_normal((keys.size, DIM)).astype(F32)
        payload = gradients(**{name: (keys, values)})
        self.session.step(Step(payload, increment=int(counts)))

    def save(self, model_dir: Path, kind: str, *, cut: bool = False) -> Path:
        """Save a checkpoint; of a cut, after which rows change and go."""
        order = ORDERS[kind]
        directory, base = model_dir / order.checkpoint, model_dir / order.base
        images: list[CutImage | None] = [None for _ in self.stores]
        if cut:
            number = next(self.cut_numbers)
            images = [taken(store, number, may_be_base=order.may_be_base) for store in self.stores]
            after = np.arange(-300, -200) if self.tables() else np.arange(0, ROWS, 97)
            self.push(after, 99, "t" if self.tables() else "d")
            for block in self.tables():
                block.table.evict(np.arange(400, 420))
        parts = [
            save_moment(store, str(directory), COPY_BYTES, image, order)
            for store, image in zip(self.stores, images, strict=True)
        ]
        of = (order.base, digest((base / MANIFEST).read_bytes())) if order.base else None
        manifest = manifest_of_parts(parts, self.session.global_step, final=False, base=of)
        (directory / MANIFEST).write_bytes(manifest_bytes(manifest))
        return directory

    def tables(self) -> list[KeyedBlock]:
        found = [block for store in self.stores for block in store.table.tables()]
        return [block for block in found if isinstance(block, KeyedBlock)]

    def arrays(self) -> list[Block]:
        return [block for store in self.stores for block in store.table.blocks()]

    def digests(self) -> list[str]:
        return [block.table.digest() for block in self.tables()]


def trained(
    num_ps: int, *definitions: VariableDefinition, table_folder: Path | str = ""
) -> Cluster:
    """Rows from -1000 to 1000, the last of which were pushed with the step of no other."""
    cluster = Cluster(num_ps, *definitions, table_folder=table_folder)
    for seed, rows in enumerate((KEYS, KEYS, KEYS[::3], KEYS[:50])):
        cluster.push(rows, seed)
    return cluster


def changed(cluster: Cluster, seed: int = 9) -> None:
    """Change some rows: of them some go, and of these some come back, in places of others."""
    rng = np.random.default_rng(seed)
    cluster.push(rng.integers(-200, -170, 20), seed)
    for block in cluster.tables():
        block.table.evict(np.arange(-195, -160))
        block.table.evict(np.arange(0, 20))
    cluster.push(np.array([-190, 5, 3000, 3001]), seed + 1)


def manifest_of(directory: Path) -> Manifest:
    return CheckpointReader(str(directory)).manifest


def size_of(directory: Path) -> int:
    return sum(each.num_bytes for each in manifest_of(directory).files.values())


@pytest.mark.parametrize("num_ps", [2, 1, 3])
def test_a_delta_restores_what_was_there_on_any_number_of_ps(tmp_path: Path, num_ps: int) -> None:
    definition = table(rule=ADAM, max_rows=6000, admission=Sightings(2))
    before = trained(2, definition)
    before.save(tmp_path, "whole")
    changed(before)
    delta = before.save(tmp_path, "delta")
    assert manifest_of(delta).base is not None
    CheckpointReader(str(delta)).verify()
    after = Cluster(num_ps, definition, restore_from=delta)
    np.testing.assert_array_equal(
        after.session.rows.lookup("t", KEYS), before.session.rows.lookup("t", KEYS)
    )
    if num_ps == 2:
        assert after.digests() == before.digests()


def test_a_second_delta_of_the_same_whole_one_stands_without_the_first(tmp_path: Path) -> None:
    before = trained(1, T)
    before.save(tmp_path, "whole")
    for seed in (9, 10):
        changed(before, seed)
        delta = before.save(tmp_path, "delta")
    assert Cluster(1, T, restore_from=delta).digests() == before.digests()


@pytest.mark.parametrize("definition", [T, on_disk(T)], ids=["in memory", "on disk"])
@pytest.mark.parametrize("kind", ["whole", "delta"])
def test_a_delta_of_a_cut_has_nothing_that_came_after(
    tmp_path: Path, kind: str, definition: VariableDefinition
) -> None:
    before = trained(2, definition, table_folder=tmp_path / "rows")
    assert (before.stores[0].table.held().disk > 0) == (definition is not T)
    before.save(tmp_path, "whole", cut=kind == "whole")
    changed(before)
    expected = before.digests()
    delta = before.save(tmp_path, "delta", cut=kind == "delta")
    assert manifest_of(delta).base is not None
    after = Cluster(2, definition, restore_from=delta, table_folder=tmp_path / "rows")
    assert after.digests() == expected


def test_rows_that_go_while_a_large_table_is_copied_are_not_brought_back(tmp_path: Path) -> None:
    """Each listed key has a row as it is copied, or none; never that of the whole checkpoint."""
    del tmp_path
    cluster = trained(1, T)
    [block] = cluster.tables()
    table_ = block.table
    changes = block.follow(0, "deltas")
    mark = ChangeMark(changes, changes.advance())
    base = {int(key) for tile in table_.tiles() for key in tile.keys}
    cluster.push(np.arange(-200, -150), 20)
    delta = delta_of_table(TableCopy(block, 512, most_kept=0), mark)
    assert delta is not None
    table_.evict(np.arange(-200, -180))
    cluster.push(np.array([5000, 5001]), 21)  # in their places
    columns: dict[int, dict[str, Array]] = {}
    for piece, array in zip(delta.planned, delta.arrays(), strict=True):
        if not piece.slot.startswith("state/") and piece.slot != REMOVED:
            columns.setdefault(piece.row_offset, {})[piece.slot] = array
    assert len(columns) > 2
    loaded = Cluster(1, T).tables()[0].table
    listed = set()
    for each in columns.values():
        loaded.load(loaded.tile(each))
        listed |= set(each["keys"].tolist())
    assert listed == set(range(-200, -150))
    stayed = np.arange(-180, -150)
    np.testing.assert_array_equal(loaded.read(stayed), table_.read(stayed))
    assert len(loaded) == stayed.size
    assert base & set(range(-200, -180))


def test_a_large_array_with_few_changed_rows_has_only_these(tmp_path: Path) -> None:
    before = Cluster(2, D)
    rng = np.random.default_rng(3)
    before.push(rng.integers(0, ROWS, 3000), 1, "d")
    whole = before.save(tmp_path, "whole")
    rows = np.unique(rng.integers(0, ROWS, 1600))
    before.push(rows, 2, "d")
    delta = before.save(tmp_path, "delta")
    assert size_of(delta) < 0.03 * size_of(whole)
    reader, all_rows = CheckpointReader(str(delta)), np.arange(ROWS)
    reader.verify()
    expected = before.session.rows.lookup("d", all_rows)
    np.testing.assert_array_equal(reader.read("d"), expected)
    assert b"".join(reader.parts("d")) == expected.tobytes()
    assert reader.slots("d") == ["accumulator"]
    after = Cluster(3, D, restore_from=delta)
    for cluster in (before, after):
        cluster.push(rows, 3, "d")
    one, other = (cluster.session.rows.lookup("d", all_rows) for cluster in (before, after))
    np.testing.assert_array_equal(one, other)


def test_changed_rows_of_an_array_are_those_of_a_cut(tmp_path: Path) -> None:
    """Before the whole one, and before the delta, not after either."""
    before, all_rows = Cluster(1, D), np.arange(ROWS)
    before.save(tmp_path, "whole", cut=True)
    before.push(np.arange(0, ROWS, 89), 2, "d")
    expected = before.session.rows.lookup("d", all_rows)
    delta = before.save(tmp_path, "delta", cut=True)
    assert manifest_of(delta).base is not None
    np.testing.assert_array_equal(CheckpointReader(str(delta)).read("d"), expected)
    assert (before.session.rows.lookup("d", all_rows) != expected).any()


def test_of_an_array_one_ps_may_have_written_all_and_another_what_changed(tmp_path: Path) -> None:
    before = Cluster(2, D)
    before.save(tmp_path, "whole")
    before.stores[0].part(Bases).clear()
    before.push(np.arange(0, ROWS, 89), 2, "d")
    reader = CheckpointReader(str(before.save(tmp_path, "delta")))
    base, expected = reader.manifest.base, before.session.rows.lookup("d", np.arange(ROWS))
    assert base is not None
    assert base.rows == {"d": ((ROWS // 2, ROWS),)}
    np.testing.assert_array_equal(reader.read("d"), expected)
    assert b"".join(reader.parts("d")) == expected.tobytes()
    middle = slice(ROWS // 2 - 100, ROWS // 2 + 100)
    np.testing.assert_array_equal(
        reader.read_rows("d", middle.start, middle.stop), expected[middle]
    )


def test_an_array_that_gets_a_dense_push_is_whole_again(tmp_path: Path) -> None:
    before = Cluster(1, D)
    before.save(tmp_path, "whole")
    before.push(np.arange(ROWS), 1, "d")  # as rows, but all of them
    delta = before.save(tmp_path, "delta")
    assert manifest_of(delta).base is None
    reader = CheckpointReader(str(delta))
    np.testing.assert_array_equal(
        reader.read("d"), before.session.rows.lookup("d", np.arange(ROWS))
    )


def test_what_was_changed_by_another_way_is_not_missed(tmp_path: Path) -> None:
    before = Cluster(1, D)
    before.save(tmp_path, "whole")
    [block] = before.arrays()
    block.value[:DIM] = 7
    block.versions += 1  # as records of a leader do
    before.push(np.array([5]), 1, "d")
    delta = before.save(tmp_path, "delta")
    assert manifest_of(delta).base is None
    assert (CheckpointReader(str(delta)).read("d")[0] == 7).all()


def test_nothing_is_noted_without_deltas(tmp_path: Path) -> None:
    cluster = Cluster(1, D, table())
    cluster.save(tmp_path, "whole")
    [array], [keyed] = cluster.arrays(), cluster.tables()
    assert array.followed_bytes == 4 * ROWS
    assert keyed.followed_bytes > 0
    save_moment(cluster.stores[0], str(tmp_path / "ckpt-0000000003"))
    assert array.followed_bytes == keyed.followed_bytes == 0
    assert keyed.table.changes is None


def test_a_program_that_counts_no_steps_has_deltas_of_what_changed(tmp_path: Path) -> None:
    before = Cluster(1, T)
    before.push(KEYS, 1, counts=False)
    whole = before.save(tmp_path, "whole")
    before.push(np.arange(20), 2, counts=False)
    delta = before.save(tmp_path, "delta")
    assert size_of(delta) < 0.05 * size_of(whole)
    assert Cluster(1, T, restore_from=delta).digests() == before.digests()


def test_a_reader_and_deltas_each_have_a_moment_of_their_own(tmp_path: Path) -> None:
    before = trained(1, T)
    [store], [keyed] = before.stores, before.tables()
    with store.part(Readers).session(Incarnation(TaskId("reader", 0), 1)):
        first, _ = store.part(Readers).changed(FollowRequest("t", 0, Position()))
        whole = before.save(tmp_path, "whole")
        before.push(np.arange(20), 8)
        second, keys = store.part(Readers).changed(FollowRequest("t", 0, first.position))
        assert sorted(keys.tolist()) == list(range(20))
        before.push(np.arange(30, 40), 9)
        delta = before.save(tmp_path, "delta")
        assert size_of(delta) < 0.05 * size_of(whole)
        assert Cluster(1, T, restore_from=delta).digests() == before.digests()
        store.part(Bases).clear()
        _, keys = store.part(Readers).changed(FollowRequest("t", 0, second.position))
        assert sorted(keys.tolist()) == list(range(30, 40))
        before.save(tmp_path, "whole")
    before.push(np.arange(50, 60), 10)
    delta = before.save(tmp_path, "delta")
    assert manifest_of(delta).base is not None, "the reader has left, not who writes deltas"
    assert Cluster(1, T, restore_from=delta).digests() == before.digests()
    store.part(Bases).clear()
    assert keyed.followed_bytes == 0


def test_a_table_that_lost_more_keys_than_are_remembered_is_whole(tmp_path: Path) -> None:
    before = Cluster(1, T)
    before.push(np.arange(5000), 1)
    before.save(tmp_path, "whole")
    before.tables()[0].table.evict(np.arange(4500))
    before.push(np.arange(4990, 5000), 2)
    delta = before.save(tmp_path, "delta")
    assert manifest_of(delta).base is None
    assert Cluster(1, T, restore_from=delta).digests() == before.digests()


def test_without_memory_for_what_changed_all_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = Cluster(1, T, max_ps_bytes=Cluster(1, T).tables()[0].most_bytes + 100)
    before.push(KEYS, 1)
    before.save(tmp_path, "whole")
    assert "'t' change, and max_ps_bytes is" in caplog.text
    before.push(np.arange(20), 2)
    delta = before.save(tmp_path, "delta")
    assert manifest_of(delta).base is None
    assert Cluster(1, T, restore_from=delta).digests() == before.digests()


def test_a_ps_that_does_not_know_the_whole_one_writes_all(tmp_path: Path) -> None:
    before = trained(2, T)
    before.save(tmp_path, "whole")
    before.stores[1].part(Bases).clear()  # as one that has come to lead since
    changed(before)
    delta = before.save(tmp_path, "delta")
    base = manifest_of(delta).base
    assert base is not None
    assert base.parts == {"t": (0,)}
    assert Cluster(2, T, restore_from=delta).digests() == before.digests()


def test_a_table_of_which_much_changed_is_whole(tmp_path: Path) -> None:
    before = trained(1, T)
    before.save(tmp_path, "whole")
    before.push(np.arange(-400, 400), 9)
    delta = before.save(tmp_path, "delta")
    assert manifest_of(delta).base is None
    assert Cluster(1, T, restore_from=delta).digests() == before.digests()


def test_rows_are_exported_from_a_delta(tmp_path: Path) -> None:
    before = trained(1, T)
    before.save(tmp_path, "whole")
    changed(before)
    delta = before.save(tmp_path, "delta")
    rows = export_table(str(delta), "t", tmp_path / "t.npy")
    exported = np.load(tmp_path / "t.npy")
    assert rows == len(before.tables()[0].table) == np.unique(exported["key"]).size
    np.testing.assert_array_equal(
        exported["value"], before.session.rows.lookup("t", exported["key"])
    )
    assert export_checkpoint(str(delta), tmp_path / "model.safetensors") == []


def a_delta(tmp_path: Path) -> tuple[Path, Path]:
    before = trained(1, T)
    whole = before.save(tmp_path, "whole")
    changed(before)
    return whole, before.save(tmp_path, "delta")


def test_a_delta_without_its_whole_checkpoint_is_an_error_that_names_both(tmp_path: Path) -> None:
    whole, delta = a_delta(tmp_path)
    whole.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError) as failure:
        CheckpointReader(str(delta))
    assert str(delta) in failure.value.message
    assert str(whole) in failure.value.message
    assert failure.value.fields["base"] == str(whole)
    (tmp_path / "elsewhere").rename(whole)
    CheckpointReader(str(delta)).verify()


def test_changed_rows_that_do_not_ascend_are_damage(tmp_path: Path) -> None:
    before = Cluster(1, D)
    before.save(tmp_path, "whole")
    before.push(np.array([5, 7]), 1, "d")
    delta = before.save(tmp_path, "delta")
    manifest, file = manifest_of(delta), delta / "ps-0.safetensors"
    [record] = [each for each in manifest.tensors if each.slot == ROWS_SLOT]
    rows, other = (np.array(each, np.int64).tobytes() for each in ([5, 7], [7, 5]))
    file.write_bytes(file.read_bytes().replace(rows, other))
    forged = record.model_copy(update={"digest": digest(other)})
    tensors = tuple(forged if each is record else each for each in manifest.tensors)
    unordered = manifest.model_copy(update={"tensors": tensors})
    (delta / MANIFEST).write_bytes(manifest_bytes(unordered))
    with pytest.raises(CheckpointError, match="changed rows of 'd' do not ascend"):
        CheckpointReader(str(delta)).read("d")


def test_the_command_that_verifies_reads_both(tmp_path: Path) -> None:
    whole, delta = a_delta(tmp_path)
    result = CliRunner().invoke(verify_command, [str(tmp_path)])
    assert result.output.splitlines()[0].startswith(f"{delta}: whole, 1 variable, ")
    assert f"what changed since {whole}, which is whole, too" in result.output
    (whole / "ps-0.safetensors").write_bytes(b"")
    failure = CliRunner().invoke(verify_command, [str(tmp_path)]).exception
    assert isinstance(failure, CheckpointError)
    assert str(whole) in failure.message


def test_another_checkpoint_in_the_place_of_the_whole_one_is_refused(tmp_path: Path) -> None:
    whole, delta = a_delta(tmp_path)
    manifest = manifest_of(whole)
    other = manifest.model_copy(update={"saved_at": "another day"})
    (whole / MANIFEST).write_bytes(manifest_bytes(other))
    with pytest.raises(CheckpointError, match="its manifest is another one"):
        CheckpointReader(str(delta))


def test_damage_of_the_whole_checkpoint_is_found_in_its_delta(tmp_path: Path) -> None:
    whole, delta = a_delta(tmp_path)
    data = bytearray((whole / "ps-0.safetensors").read_bytes())
    data[-100] ^= 1
    (whole / "ps-0.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="altered"):
        CheckpointReader(str(delta)).verify()
    with pytest.raises(CheckpointError, match="altered"):
        Cluster(1, T, restore_from=delta)


def test_older_programs_do_not_take_a_delta_for_a_whole_checkpoint(tmp_path: Path) -> None:
    whole, delta = a_delta(tmp_path)
    versions = [json.loads((each / MANIFEST).read_text())["version"] for each in (whole, delta)]
    assert versions == [2, 3]


def test_the_whole_checkpoint_of_a_delta_that_is_kept_is_not_removed(tmp_path: Path) -> None:
    whole, delta = a_delta(tmp_path)
    other = Cluster(1, table())
    other.push(np.arange(3), 1)
    save = save_moment(other.stores[0], str(tmp_path / "ckpt-0000000003"))
    manifest = manifest_of_parts([save], 3, final=False)
    (tmp_path / "ckpt-0000000003" / MANIFEST).write_bytes(manifest_bytes(manifest))
    assert prune(str(tmp_path), 2) == []
    CheckpointReader(str(delta)).verify()
    assert prune(str(tmp_path), 1) == [str(whole), str(delta)]
