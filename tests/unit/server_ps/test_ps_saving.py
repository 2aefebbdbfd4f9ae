"""A part of a checkpoint as a ps saves it, and what comes of it on other stores."""

import os
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from helpers.calls import Calls
from helpers.pushes import push_of
from helpers.rows import row
from helpers.rules import SGD, Adagrad, Adam, Ftrl, RMSprop
from helpers.waiting import scaled
from ropewalk.core.arrays.dtypes import BFLOAT16, DTYPES, Array, DType
from ropewalk.core.checkpoint import CheckpointReader, Manifest, VariableRecord, manifest_bytes
from ropewalk.core.checkpoint.manifest import SavedPart
from ropewalk.core.errors import CheckpointError
from ropewalk.core.rules.definitions import VariableDefinition, cut
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import LayoutEntry, Operation
from ropewalk.engine.library import library
from ropewalk.engine.push_target import StepInfo
from ropewalk.server.ps import block_reader, saving
from ropewalk.server.ps.layout import compile_layout
from ropewalk.server.ps.saving import save_shards
from ropewalk.server.ps.store import Store

WORKER = Incarnation(TaskId("worker", 0), 7)
F32 = np.dtype(np.float32)
ZEROS = Initializer("zeros")
W = VariableDefinition("w", (7, 3), F32, Initializer("random_normal", seed=1))


class Cluster:
    """Some stores, and variables cut over all of them."""

    def __init__(
        self, parts: int, variables: Sequence[VariableDefinition], restore_from: str = ""
    ) -> None:
        self.stores = [Store(TaskId("ps", index), Settings()) for index in range(parts)]
        self.variables = {variable.name: variable for variable in variables}
        self.shards = {v.name: cut(v, parts) for v in variables}
        for index, store in enumerate(self.stores):
            mine = [s for shards in self.shards.values() for s in shards if s.part == index]
            store.table.define(mine, WORKER, restore_from=restore_from)
        self.sequence = 0

    def bind(self, rule: UpdateRule, *names: str) -> None:
        for store in self.stores:
            store.table.bind(names, rule, WORKER)

    def push(self, name: str, values: Array, operation: Operation = Operation.APPLY) -> None:
        """One step: the part of ``values`` that each store holds, and a global step."""
        self.sequence += 1
        for index, store in enumerate(self.stores):
            mine = [s for s in self.shards[name] if s.part == index]
            rows = [values[s.row_offset : s.row_offset + s.rows] for s in mine if s.shape]
            payload = memoryview((rows or [values])[0].tobytes() if mine else b"")
            layout = compile_layout(
                store.table, [LayoutEntry(name, s.part, operation) for s in mine]
            )
            info = StepInfo(WORKER, self.sequence, 0)
            store.push(push_of(layout, (), info, 1), lambda _, payload=payload: payload)  # type: ignore[misc]

    def value(self, name: str, slot: str = "") -> Array:
        """A whole variable or slot, put together."""
        variable, whole = self.variables[name], None
        for store in self.stores:
            for block in store.table.blocks():
                for entry, shard in enumerate(block.shards):
                    if shard.variable.name == name:
                        part = block.view(entry, slot)
                        whole = np.zeros(variable.shape, part.dtype) if whole is None else whole
                        rows = slice(shard.row_offset, shard.row_offset + shard.rows)
                        whole[rows if variable.shape else ()] = part
        assert whole is not None
        return whole

    def updates(self, name: str) -> set[int]:
        return {
            int(block.updates[entry])
            for store in self.stores
            for block in store.table.blocks()
            for entry, shard in enumerate(block.shards)
            if shard.variable.name == name
        }

    def save(self, directory: Path, copy_bytes: int = block_reader.COPY_BYTES) -> list[SavedPart]:
        """Save every store's part, and the manifest a chief would write."""
        parts = [save_shards(store, str(directory), copy_bytes) for store in self.stores]
        records = {}
        for saved in (shard for part in parts for shard in part.shards):
            variable, rule = saved.shard.variable, saved.shard.rule
            records[variable.name] = VariableRecord(
                shape=variable.shape,
                dtype=variable.dtype.name,
                updates=saved.updates,
                rule=rule.model_dump() if rule is not None else None,
            )
        manifest = Manifest(
            global_step=max(part.global_step for part in parts),
            variables=records,
            tensors=tuple(tensor for part in parts for tensor in part.tensors),
            files={name: record for part in parts for name, record in part.files.items()},
        )
        (directory / "manifest.json").write_bytes(manifest_bytes(manifest))
        return parts


def gradient(step: int, variable: VariableDefinition = W) -> Array:
    rng = np.random.default_rng(100 + step)
    return np.asarray(rng.standard_normal(variable.shape)).astype(variable.dtype)


RULES: dict[str, UpdateRule] = {
    "sgd": SGD(learning_rate=0.1),
    "momentum": SGD(learning_rate=0.1, momentum=0.9),
    "adagrad": Adagrad(learning_rate=0.1),
    "rmsprop": RMSprop(learning_rate=0.1, momentum=0.9, centered=True, epsilon=1e-3),
    "adam": Adam(learning_rate=0.1),
    "ftrl": Ftrl(learning_rate=0.1, l1_regularization_strength=0.1),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("dtype", [F32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 1), (3, 2)])
def test_training_goes_on_bit_for_bit_as_if_never_interrupted(
    rule: UpdateRule, dtype: DType, before: int, after: int, tmp_path: Path
) -> None:
    """Also on another number of ps, where shards are put together from pieces of others."""
    w = VariableDefinition("w", W.shape, dtype, W.initializer)
    straight, first = Cluster(1, [w]), Cluster(before, [w])
    for cluster in (straight, first):
        cluster.bind(rule, "w")
        for step in range(4):
            cluster.push("w", gradient(step, w))
    first.save(tmp_path)
    second = Cluster(after, [w], restore_from=str(tmp_path))
    second.bind(rule, "w")
    assert second.updates("w") == {4}
    assert {store.global_step for store in second.stores} == {4}
    for name in ("", *rule.active_slots()):
        np.testing.assert_array_equal(second.value("w", name), first.value("w", name))
    for step in range(4, 8):
        straight.push("w", gradient(step, w))
        second.push("w", gradient(step, w))
    for name in ("", *rule.active_slots()):
        np.testing.assert_array_equal(second.value("w", name), straight.value("w", name))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_dtype_and_shape_comes_back(dtype: DType, tmp_path: Path) -> None:
    for shape in [(), (4,), (3, 2), (0, 2), (2, 0)]:
        with row(shape):
            variable = VariableDefinition("v", shape, dtype, ZEROS)
            first = Cluster(1, [variable])
            values = np.asarray(np.random.default_rng(0).integers(0, 2, shape)).astype(dtype)
            first.push("v", values, Operation.ASSIGN)
            first.save(tmp_path)
            second = Cluster(1, [variable], restore_from=str(tmp_path))
            np.testing.assert_array_equal(second.value("v"), values)
            assert second.value("v").dtype == dtype
            CheckpointReader(str(tmp_path)).verify()


def test_a_saved_part_tells_shards_versions_updates_and_applied_pushes(tmp_path: Path) -> None:
    other = VariableDefinition("n", (2,), np.dtype(np.int64), ZEROS)
    cluster = Cluster(1, [W, other])
    cluster.bind(Adam(), "w")
    cluster.push("w", gradient(0))
    cluster.push("w", gradient(1))
    cluster.push("n", np.array([1, 2]), Operation.ASSIGN_ADD)
    [part] = cluster.save(tmp_path)
    w, n = part.shards
    assert (w.shard.key, w.shard.rule, w.version, w.updates) == (("w", 0), Adam(), 2, 2)
    assert (n.shard.key, n.shard.rule, n.version, n.updates) == (("n", 0), None, 1, 0)
    mark = WORKER.generation
    assert part.applied == {
        w.block: {WORKER.task: (mark, 2)},
        n.block: {WORKER.task: (mark, 3)},
    }
    assert part.global_step == 3
    assert [(t.variable, t.slot, t.rows, t.file) for t in part.tensors] == [
        ("w", "", 7, "ps-0.safetensors"),
        ("w", "momentum", 7, "ps-0.safetensors"),
        ("w", "velocity", 7, "ps-0.safetensors"),
        ("n", "", 2, "ps-0.safetensors"),
    ]


def test_shards_nobody_has_initialized_are_not_saved(tmp_path: Path) -> None:
    waiting = VariableDefinition("waiting", (3,), F32)
    [part] = Cluster(1, [W, waiting]).save(tmp_path)
    assert [saved.shard.key for saved in part.shards] == [("w", 0)]


def test_saving_again_overwrites_the_same_file(tmp_path: Path) -> None:
    cluster = Cluster(1, [W])
    cluster.save(tmp_path)
    cluster.push("w", np.ones(W.shape, np.float32), Operation.ASSIGN)
    cluster.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "ps-0.safetensors"]
    assert CheckpointReader(str(tmp_path)).read("w").tolist() == [[1.0] * 3] * 7


@pytest.mark.parametrize(
    ("lookalike", "parts"),
    [
        pytest.param("w:momentum", 1, id="like-a-slot"),
        pytest.param("w/part_0", 2, id="like-a-part"),
        pytest.param("__metadata__", 1, id="like-the-files-own-key"),
    ],
)
def test_variables_named_like_pieces_of_others_are_kept_apart(
    lookalike: str, parts: int, tmp_path: Path
) -> None:
    """``w/part_0`` is also what the first part of ``w`` is called in files."""
    w, other = (VariableDefinition(name, (2,), F32, ZEROS) for name in ("w", lookalike))
    cluster = Cluster(1, [])
    [store] = cluster.stores
    store.table.define([*cut(w, parts), *cut(other, 1)], WORKER)
    store.table.bind(["w"], SGD(momentum=0.5), WORKER)
    [block] = store.table.blocks()
    block.value[...] = [1, 2, 3, 4]
    block.slots["momentum"][...] = [5, 6, 7, 8]
    cluster.save(tmp_path)
    reader = CheckpointReader(str(tmp_path))
    assert reader.read("w").tolist() == [1, 2]
    assert reader.read("w", "momentum").tolist() == [5, 6]
    assert reader.read(lookalike).tolist() == [3, 4]


# -- restoring -----------------------------------------------------------------------------------


def saved_with(rule: UpdateRule, directory: Path) -> Cluster:
    cluster = Cluster(1, [W])
    cluster.bind(rule, "w")
    for step in range(3):
        cluster.push("w", gradient(step))
    cluster.save(directory)
    return cluster


@pytest.mark.parametrize("other", [Ftrl(), SGD(momentum=0.9)], ids=["ftrl", "same-slot-name"])
def test_another_optimizer_than_saved_starts_with_fresh_slots(
    other: UpdateRule, tmp_path: Path
) -> None:
    """Adam's momentum means nothing to SGD, though both call it so."""
    first = saved_with(Adam(), tmp_path)
    second = Cluster(1, [W], restore_from=str(tmp_path))
    second.bind(other, "w")
    np.testing.assert_array_equal(second.value("w"), first.value("w"))
    assert second.updates("w") == {0}
    for slot, start in other.slot_start().items():
        np.testing.assert_array_equal(second.value("w", slot), np.full(W.shape, start, np.float32))


def test_the_same_optimizer_with_another_rate_goes_on(tmp_path: Path) -> None:
    first = saved_with(Adam(learning_rate=0.1), tmp_path)
    second = Cluster(1, [W], restore_from=str(tmp_path))
    second.bind(Adam(learning_rate=0.01), "w")
    assert second.updates("w") == {3}
    np.testing.assert_array_equal(second.value("w", "velocity"), first.value("w", "velocity"))


def test_shards_that_exist_keep_their_values(tmp_path: Path) -> None:
    saved_with(Adam(), tmp_path)
    cluster = Cluster(1, [W])
    before = cluster.value("w").copy()
    [held] = cluster.stores[0].table.define(cut(W, 1), WORKER, restore_from=str(tmp_path))
    assert not held.restored
    np.testing.assert_array_equal(cluster.value("w"), before)


def test_variables_the_checkpoint_lacks_are_initialized(tmp_path: Path) -> None:
    saved_with(Adam(), tmp_path)
    store = Store(TaskId("ps", 0), Settings())
    extra = VariableDefinition("extra", (2,), F32, Initializer("ones"))
    held = store.table.define([*cut(W, 1), *cut(extra, 1)], WORKER, restore_from=str(tmp_path))
    assert [(item.initialized, item.restored) for item in held] == [(True, True), (True, False)]
    store.table.bind(["w", "extra"], Adam(), WORKER)
    assert store.table.blocks()[0].updates.tolist() == [3, 0]


def remove_manifest(directory: Path) -> None:
    (directory / "manifest.json").unlink()


def truncate(directory: Path) -> None:
    file = directory / "ps-0.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


def alter(directory: Path) -> None:
    file = directory / "ps-0.safetensors"
    data = file.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    file.write_bytes(data[:header] + b"\x55" + data[header + 1 :])


@pytest.mark.parametrize(
    ("definition", "damage", "message"),
    [
        (VariableDefinition("w", (7, 4), F32), None, r"float32\[7, 3\].*float32\[7, 4\]"),
        (VariableDefinition("w", (7, 3), BFLOAT16), None, r"float32\[7, 3\].*bfloat16\[7, 3\]"),
        (W, remove_manifest, "no manifest.json"),
        (W, truncate, "truncated"),
        (W, alter, "altered"),
    ],
    ids=["shape", "dtype", "no-manifest", "truncated", "altered"],
)
def test_a_failed_restore_leaves_nothing_half_defined(
    definition: VariableDefinition,
    damage: Callable[[Path], None] | None,
    message: str,
    tmp_path: Path,
) -> None:
    saved_with(SGD(), tmp_path)
    if damage is not None:
        damage(tmp_path)
    store = Store(TaskId("ps", 0), Settings())
    good = VariableDefinition("good", (2,), F32, ZEROS)
    before = store.counters()
    with pytest.raises(CheckpointError, match=message):
        store.table.define([*cut(good, 1), *cut(definition, 1)], WORKER, restore_from=str(tmp_path))
    assert store.counters() == before
    assert store.table.lookup([*cut(good, 1), *cut(definition, 1)], WORKER) == []
    assert store.global_step == 0
    store.table.define(cut(definition, 1), WORKER)  # the names are free


# -- large shards --------------------------------------------------------------------------------


@pytest.mark.parametrize("copy_bytes", [16, 40, 100], ids=["part-of-a-row", "row", "rows"])
@pytest.mark.parametrize("shape", [(7, 3), (1, 21), (21,), (), (0, 3)], ids=str)
def test_a_shard_larger_than_a_copy_is_saved_in_ranges_and_comes_back_whole(
    copy_bytes: int, shape: tuple[int, ...], tmp_path: Path
) -> None:
    w = VariableDefinition("w", shape, F32, Initializer("random_normal", seed=1))
    first = Cluster(2, [w])
    first.bind(Adam(learning_rate=0.1), "w")
    first.push("w", gradient(0, w))
    first.save(tmp_path, copy_bytes)
    CheckpointReader(str(tmp_path)).verify()
    second = Cluster(3, [w], restore_from=str(tmp_path))
    second.bind(Adam(learning_rate=0.1), "w")
    for slot in ("", "momentum", "velocity"):
        np.testing.assert_array_equal(second.value("w", slot), first.value("w", slot))


@pytest.mark.parametrize("locked_bytes", [64, 1024], ids=["few-rows-at-a-time", "a-range"])
def test_a_row_is_saved_with_its_slots_while_pushes_go_on(
    locked_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push that arrives meanwhile is in some of the rows, in each with value and slots."""
    monkeypatch.setattr(block_reader, "LOCKED_BYTES", locked_bytes)
    rows, pushes = 4000, 200
    w = VariableDefinition("w", (rows, 2), F32, ZEROS)
    cluster = Cluster(1, [w])
    cluster.bind(SGD(learning_rate=1.0, momentum=0.5), "w")
    ones = np.ones(w.shape, np.float32)
    series = {0.0: 0.0}  # momentum → value, after each number of pushes
    momentum = value = np.float32(0)
    for _ in range(pushes):
        momentum = np.float32(0.5) * momentum - np.float32(1)
        value += momentum
        series[float(value)] = float(momentum)

    def push() -> None:
        for _ in range(pushes):
            cluster.push("w", ones)

    pushing = threading.Thread(target=push)
    pushing.start()
    save_shards(cluster.stores[0], str(tmp_path), copy_bytes=512)
    pushing.join()
    saved = load_file(tmp_path / "ps-0.safetensors")
    ranges = [name for name in saved if not name.endswith(":momentum")]
    assert len(ranges) == rows // 32
    for name in ranges:
        if locked_bytes > 512:
            assert len(np.unique(saved[name])) == 1, name
        np.testing.assert_array_equal(
            saved[f"{name}:momentum"], np.vectorize(series.get)(saved[name])
        )


def test_saving_takes_memory_for_one_copy_whatever_the_shard(tmp_path: Path, calls: Calls) -> None:
    w = VariableDefinition("w", (1_000_000, 8), F32, ZEROS)
    cluster = Cluster(1, [w])
    cluster.bind(Adagrad(), "w")
    whole = cluster.value("w").nbytes * 2
    taken = calls.noted(saving, "present_buffer")
    library.wait(time.monotonic() + scaled(60))  # what loads the kernel takes memory, too
    tracemalloc.start()
    part = save_shards(cluster.stores[0], str(tmp_path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(tensor.num_bytes for tensor in part.tensors) == whole == 64_000_000
    assert taken == [(block_reader.COPY_BYTES,)]
    assert peak < 4 * 1024 * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_a_thread_that_gives_way_is_the_only_one_that_does() -> None:
    def own() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = own()
    with ThreadPoolExecutor(1, initializer=saving.give_way) as pool:
        assert pool.submit(own).result() == min(19, before + 10)
    assert own() == before
