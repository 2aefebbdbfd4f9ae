"""What a ps holds: defining, looking up, binding, and laying out steps."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.calls import Calls
from ropewalk.core.arrays.dtypes import BFLOAT16, DType
from ropewalk.core.errors import (
    DefinitionMismatchError,
    LimitExceededError,
    RefusedError,
    UnknownVariableError,
)
from ropewalk.core.rules.built_in.adam import Adam
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition, cut
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import Encoding, LayoutEntry, Operation
from ropewalk.engine.block import Block
from ropewalk.server.ps.layout import compile_layout
from ropewalk.server.ps.store import Store

PS = TaskId("ps", 0)
CHIEF = Incarnation(TaskId("chief", 0), 1)
WORKER = Incarnation(TaskId("worker", 3), 1)
F32 = np.dtype(np.float32)
ONES = Initializer("ones")


def variable(
    name: str = "w",
    shape: tuple[int, ...] = (6, 2),
    dtype: DType = F32,
    initializer: Initializer | None = ONES,
) -> VariableDefinition:
    return VariableDefinition(name, shape, dtype, initializer)


def make_store(*shards: ShardDefinition, settings: Settings | None = None) -> Store:
    store = Store(PS, settings or Settings())
    store.table.define(shards, CHIEF)
    return store


def values(store: Store, *keys: tuple[str, int]) -> list[float]:
    layout = compile_layout(
        store.table, [LayoutEntry(name, part, Operation.PULL) for name, part in keys]
    )
    return [float(value) for copy in store.read(layout, ()) for value in copy]


# -- define --------------------------------------------------------------------------------------


def test_a_shard_is_initialized_where_it_lives_as_part_of_the_whole() -> None:
    drawn = variable(initializer=Initializer("random_normal", seed=5))
    whole, parts = make_store(*cut(drawn, 1)), make_store(*cut(drawn, 4))
    assert values(whole, ("w", 0)) == values(parts, *((("w", part)) for part in range(4)))


def test_a_shard_without_initializer_waits_for_its_creator() -> None:
    store = make_store()
    [held] = store.table.define(cut(variable(initializer=None), 1), CHIEF)
    assert (held.initialized, held.restored) == (False, False)
    assert values(store, ("w", 0)) == [0.0] * 12


def test_the_first_value_wins_over_a_later_initializer() -> None:
    store = make_store(*cut(variable(), 1))
    store.table.define(cut(variable(initializer=Initializer("zeros")), 1), WORKER)
    assert values(store, ("w", 0)) == [1.0] * 12


def test_a_shard_named_twice_in_one_request_is_held_once() -> None:
    shards = cut(variable(), 1)
    store = make_store(*shards, *shards)
    assert store.counters().shards == 1
    assert len(store.table.lookup(shards, WORKER)) == 1


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        pytest.param(cut(variable(shape=(6, 3)), 2), ["[6, 3]", "[6, 2]"], id="shape"),
        pytest.param(
            cut(variable(dtype=BFLOAT16), 2), ["bfloat16[6, 2]", "float32[6, 2]"], id="dtype"
        ),
        pytest.param(cut(variable(), 3), ["3 parts", "2"], id="parts"),
        # Another cut may bring this ps a part it does not hold; the variable is the same.
        pytest.param(cut(variable(), 3)[2:], ["3 parts", "2"], id="parts-by-a-new-part"),
        pytest.param(
            cut(variable(shape=(9, 2)), 3)[2:], ["[9, 2]", "[6, 2]"], id="shape-by-a-new-part"
        ),
    ],
)
def test_a_different_definition_is_refused_naming_both_tasks(
    mine: list[ShardDefinition], words: list[str]
) -> None:
    store = make_store(*cut(variable(), 2))
    before = store.counters()
    with pytest.raises(DefinitionMismatchError) as caught:
        store.table.define([*cut(variable("other"), 1), *mine], WORKER)
    for word in ["'w'", str(PS), str(CHIEF.task), str(WORKER.task), *words]:
        assert word in caught.value.message
    assert caught.value.fields["variable"] == "w"
    assert caught.value.fields["task"] == str(WORKER.task)
    assert store.counters() == before  # not even the variable before it


def test_more_shards_than_the_bound_are_refused_naming_the_setting() -> None:
    store = make_store(*cut(variable(), 3), settings=Settings(max_variables=4))
    store.table.define(cut(variable(), 3), WORKER)  # what is there counts once
    store.table.define(cut(variable("b"), 1), WORKER)
    with pytest.raises(LimitExceededError, match=r"max_variables=4.*ROPEWALK_MAX_VARIABLES"):
        store.table.define(cut(variable("c"), 1), WORKER)
    assert store.counters().shards == 4


def test_counters_account_for_values_and_slots() -> None:
    store = make_store(*cut(variable(), 2), *cut(variable("h", (5,), BFLOAT16), 1))
    store.table.bind(["w", "h"], Adam(), CHIEF)
    counters = store.counters(sessions=7)
    assert (counters.variables, counters.shards, counters.sessions) == (2, 3, 7)
    assert counters.value_bytes == store.table.held_bytes() == 12 * 4 + 5 * 2
    assert counters.slot_bytes == 2 * 4 * (12 + 5)


# -- lookup --------------------------------------------------------------------------------------


def test_lookup_tells_the_rule_once_there_is_one() -> None:
    store = make_store(*cut(variable(), 1))
    assert store.table.lookup(cut(variable(), 1), WORKER)[0].shard.rule is None
    store.table.bind(["w"], Adam(), CHIEF)
    assert store.table.lookup(cut(variable(), 1), WORKER)[0].shard.rule == Adam()


# -- bind ----------------------------------------------------------------------------------------


def test_binding_the_same_rule_again_keeps_slots_and_counts() -> None:
    store = make_store(*cut(variable(), 2))
    store.table.bind(["w"], Adam(), CHIEF)
    block = store.table.blocks()[0]
    block.slots["momentum"][...] = 3
    block.updates[...] = 9
    store.table.bind(["w"], Adam(), WORKER)
    assert block.slots["momentum"].tolist() == [3.0] * 12
    assert block.updates.tolist() == [9, 9]


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_an_update_rule_for_integers_is_refused(dtype: str) -> None:
    store = make_store(*cut(variable(dtype=np.dtype(dtype)), 1))
    with pytest.raises(RefusedError, match=f"'w' is {dtype}; update rules need a float dtype"):
        store.table.bind(["w"], SGD(), CHIEF)


def test_binding_variables_held_elsewhere_is_nothing_to_do() -> None:
    store = make_store(*cut(variable(), 1))
    store.table.bind(["elsewhere"], Adam(), CHIEF)
    assert store.counters().slot_bytes == 0


# -- compile -------------------------------------------------------------------------------------


def applies(names: Sequence[str]) -> list[LayoutEntry]:
    return [LayoutEntry(name, 0, Operation.APPLY) for name in names]


def test_ten_thousand_small_variables_are_a_few_segments() -> None:
    names = [f"w{i}" for i in range(10_000)]
    shards = [ShardDefinition(variable(name, (8, 8))) for name in names]
    store = make_store(*shards)
    store.table.bind(names, SGD(), CHIEF)
    layout = compile_layout(store.table, applies(names))
    # 2.4 MiB of values in shared blocks of 1 MiB.
    assert len(layout.ranges) == len(store.table.blocks()) == 3
    assert layout.num_bytes(()) == 10_000 * 64 * 4
    assert layout.pending == (0, 0, 0)


def test_a_large_shard_has_a_block_of_its_own() -> None:
    large = ShardDefinition(variable("large", (256 * 1024 // 4,)))
    small = [ShardDefinition(variable(name)) for name in "ab"]
    store = make_store(small[0], large, small[1])
    assert sorted([s.variable.name for s in block.shards] for block in store.table.blocks()) == [
        ["a", "b"],
        ["large"],
    ]


def test_dtypes_do_not_share_a_block() -> None:
    store = make_store(*(ShardDefinition(variable(d, dtype=np.dtype(d))) for d in ("f4", "f8")))
    assert [block.dtype.name for block in store.table.blocks()] == ["float32", "float64"]


@pytest.mark.parametrize(
    ("entries", "segments"),
    [
        pytest.param(applies("abc"), 1, id="neighbours"),
        pytest.param(applies("ac"), 2, id="a-hole-between"),
        pytest.param(applies("ba"), 2, id="backwards"),
        pytest.param(applies("aa"), 2, id="the-same-twice"),
        pytest.param(
            [*applies("a"), LayoutEntry("b", 0, Operation.ASSIGN)], 2, id="another-operation"
        ),
        pytest.param(
            [*applies("a"), LayoutEntry("b", 0, Operation.APPLY, encoding=Encoding.ROWS)],
            2,
            id="sparse",
        ),
        pytest.param(applies("cd"), 2, id="another-rule"),
    ],
)
def test_neighbours_join_only_if_one_kernel_call_can_serve_them(
    entries: list[LayoutEntry], segments: int
) -> None:
    store = make_store(*(ShardDefinition(variable(name)) for name in "abcd"))
    store.table.bind("abc", SGD(), CHIEF)
    store.table.bind("d", SGD(learning_rate=0.5), CHIEF)
    layout = compile_layout(store.table, entries)
    assert len(layout.ranges) == segments
    assert layout.pending == tuple(reversed(range(segments)))


def test_the_size_of_a_payload_counts_the_rows_it_carries() -> None:
    store = make_store(*cut(variable(shape=(6, 3)), 1), *cut(variable("d", (4,)), 1))
    store.table.bind(["w", "d"], SGD(), CHIEF)
    entries = [LayoutEntry("w", 0, Operation.APPLY, encoding=Encoding.ROWS), *applies("d")]
    layout = compile_layout(store.table, entries)
    assert len(layout.numbered) == 1
    assert [layout.num_bytes([rows]) for rows in (0, 1, 5)] == [16, 16 + 12, 16 + 60]


@pytest.mark.parametrize("key", [("absent", 0), ("w", 2)], ids=["name", "part"])
def test_an_unknown_variable_is_named_with_its_part(key: tuple[str, int]) -> None:
    store = make_store(*cut(variable(), 2))
    with pytest.raises(UnknownVariableError) as caught:
        compile_layout(store.table, [LayoutEntry(*key, Operation.PULL)])
    assert f"{PS} holds no part {key[1]} of a variable {key[0]!r}" in str(caught.value)


def test_gradients_for_a_variable_without_a_rule_are_refused() -> None:
    store = make_store(*cut(variable(), 1))
    with pytest.raises(RefusedError, match="'w' has no update rule"):
        compile_layout(store.table, applies("w"))


def test_trainable_or_not_is_no_part_of_the_definition_two_tasks_must_share() -> None:
    store = make_store(*cut(variable(), 1))
    store.table.define(cut(replace(variable(), trainable=False), 1), WORKER)


def test_counters_answer_while_a_large_variable_is_filled(calls: Calls) -> None:
    """The chief's lease asks for them; a ps that restores a table is not dead."""
    filling, go_on = threading.Event(), threading.Event()

    def wait(block: Block, *_: Any) -> None:
        if block.shards[0].variable.name == variable().name:
            filling.set()
            assert go_on.wait(10)

    calls.before("ropewalk.server.ps.shard_table", "initialize", wait)
    store = Store(TaskId("ps", 0), Settings())
    thread = threading.Thread(target=store.table.define, args=(cut(variable(), 1), WORKER))
    thread.start()
    try:
        assert filling.wait(10)
        assert store.counters().shards == 0
        assert store.table.lookup(cut(variable(), 1), WORKER) == []
        # A file server that hangs while one variable is restored does not stop the others.
        other = replace(variable(), name="other")
        store.table.define(cut(other, 1), WORKER)
        store.table.bind(["other"], SGD(), WORKER)
        assert store.counters().shards == 1
    finally:
        go_on.set()
        thread.join(10)
    assert store.counters().shards == 2
