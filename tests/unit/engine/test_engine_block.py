"""A block: several shards in one memory, each with its own rule, counts and slots."""

import time
from pathlib import Path

import numpy as np
import pytest

from helpers.calls import Calls
from helpers.rules import SGD, Adam, Ftrl, RMSprop
from helpers.waiting import scaled
from ropewalk.core.arrays.dtypes import BFLOAT16, DTYPES, Array, DType
from ropewalk.core.rules.built_in.adam import adam
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import Operation
from ropewalk.engine import jit
from ropewalk.engine.block import Block, warm_up
from ropewalk.engine.library import KernelLibrary, library
from ropewalk.engine.push_target import Gradient, Range, StepInfo
from ropewalk.engine.update_kernel import hyperparameters

TASK = TaskId("worker", 0)
WORKER = Incarnation(TASK, 1)
F32 = np.dtype(np.float32)
all_types = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)


def make_block(*shapes: tuple[int, ...], dtype: DType = F32) -> Block:
    return Block(
        [ShardDefinition(VariableDefinition(f"w{i}", s, dtype)) for i, s in enumerate(shapes)]
    )


def whole(block: Block) -> Range:
    return Range(0, len(block.shards), 0, block.value.size)


def numbers(seed: int, size: int, dtype: DType) -> Array:
    rng = np.random.default_rng(seed)
    if dtype.kind in "iub":
        return rng.integers(0, 2 if dtype == np.bool_ else 100, size).astype(dtype)
    return rng.standard_normal(size).astype(dtype)


@all_types
def test_shards_lie_side_by_side_and_views_are_the_memory_itself(dtype: DType) -> None:
    block = make_block((2, 3), (), (0, 4), (5,), dtype=dtype)
    assert block.offsets == [0, 6, 7, 7, 12]
    assert [block.view(entry).shape for entry in range(4)] == [(2, 3), (), (0, 4), (5,)]
    block.view(1)[...] = 1
    assert block.value.astype(int).tolist() == [0] * 6 + [1] + [0] * 5
    assert block.value.dtype == dtype


@all_types
def test_a_dense_assign_over_several_shards_overwrites_and_initializes_them(dtype: DType) -> None:
    block = make_block((2, 3), (), (4,), dtype=dtype)
    values = numbers(1, 7, dtype)
    block.assign(Range(0, 2, 0, 7), Gradient(values))
    np.testing.assert_array_equal(block.value[:7], values)
    assert not block.view(2).any()
    assert block.initialized.tolist() == [True, True, False]
    assert block.versions.tolist() == [1, 1, 0]


@all_types
def test_a_dense_assign_add_over_several_shards_adds_as_numpy_does(dtype: DType) -> None:
    """Also the wrap-around of integers, the "or" of bools and the rounding of half types."""
    block = make_block((2, 3), (), (4,), dtype=dtype)
    first, second = numbers(1, 11, dtype), numbers(2, 11, dtype)
    if dtype.kind in "iu":
        first[:2] = np.iinfo(dtype).max
    block.assign(whole(block), Gradient(first))
    block.combine(whole(block), Gradient(second), Operation.ASSIGN_ADD)
    with np.errstate(over="ignore"):
        expected = first + second
    np.testing.assert_array_equal(block.value, expected)
    assert block.versions.tolist() == [2, 2, 2]
    assert block.updates.tolist() == [0, 0, 0]


@all_types
def test_values_from_an_odd_address_of_a_read_only_frame_are_taken(dtype: DType) -> None:
    values = numbers(3, 4, dtype)
    frame = memoryview(b"x" + values.tobytes())[1:]
    block = make_block((4,), dtype=dtype)
    block.assign(whole(block), Gradient(np.frombuffer(frame, dtype)))
    block.combine(whole(block), Gradient(np.frombuffer(frame, dtype)), Operation.ASSIGN_ADD)
    np.testing.assert_array_equal(block.value, values + values)


def test_entries_of_one_push_keep_their_own_count_of_updates() -> None:
    """Adam's correction depends on ``t``: one push over entries of different age is cut
    into runs.
    """
    rule = Adam(learning_rate=0.1)
    shapes = [(3,), (1,), (2, 2), (2,)]
    joined = make_block(*shapes)
    alone = [make_block(shape) for shape in shapes]
    for entry, block in enumerate(alone):
        joined.bind(entry, rule)
        block.bind(0, rule)
    pushes = [(0, 2), (1, 3), (0, 4), (2, 4), (3, 4), (0, 4)]
    for step, (first, last) in enumerate(pushes):
        where = Range(first, last, joined.offsets[first], joined.offsets[last])
        values = numbers(step, where.stop - where.start, F32)
        info = StepInfo(WORKER, step + 1, step)
        joined.apply(where, Gradient(values), rule, info)
        for entry in range(first, last):
            start = joined.offsets[entry] - where.start
            piece = values[start : start + alone[entry].value.size]
            alone[entry].apply(whole(alone[entry]), Gradient(piece), rule, info)
    assert joined.updates.tolist() == [int(block.updates[0]) for block in alone] == [3, 4, 4, 4]
    np.testing.assert_array_equal(joined.value, np.concatenate([b.value for b in alone]))


def test_entries_with_different_rules_share_memory_but_not_slots_they_lack() -> None:
    plain, heavy = RMSprop(learning_rate=0.1), RMSprop(learning_rate=0.1, momentum=0.9)
    mixed, alone = make_block((3,), (3,)), make_block((3,))
    mixed.bind(0, plain)
    mixed.bind(1, heavy)
    alone.bind(0, plain)
    for step in range(3):
        g, info = Gradient(numbers(step, 3, F32)), StepInfo(WORKER, step + 1, step)
        mixed.apply(mixed.range_of(0), g, plain, info)
        mixed.apply(mixed.range_of(1), g, heavy, info)
        alone.apply(alone.range_of(0), g, plain, info)
    np.testing.assert_array_equal(mixed.view(0), alone.view(0))
    assert not mixed.view(0, "momentum").any()
    assert mixed.view(1, "momentum").all()


def test_slots_of_one_name_start_with_the_value_of_each_rule() -> None:
    block = make_block((2,), (2,))
    block.bind(0, Ftrl(initial_accumulator_value=0.5))
    block.bind(1, Ftrl(initial_accumulator_value=2.0))
    assert block.slots["accumulator"].tolist() == [0.5, 0.5, 2.0, 2.0]


@pytest.mark.parametrize(
    ("generation", "sequence", "applied"),
    [(2, 4, True), (2, 5, True), (2, 6, False), (3, 1, False)],
    ids=["older-push", "same-push", "next-push", "new-life"],
)
def test_a_block_knows_which_pushes_of_a_life_it_holds(
    generation: int, sequence: int, applied: bool
) -> None:
    block = make_block((1,))
    assert not block.has_applied(StepInfo(Incarnation(TASK, 2), 1, 0))
    block.mark_applied(StepInfo(Incarnation(TASK, 2), 5, 0))
    assert block.has_applied(StepInfo(Incarnation(TASK, generation), sequence, 0)) is applied


@pytest.mark.parametrize(
    ("dtype", "compute"),
    [
        (np.dtype(np.float16), F32),
        (BFLOAT16, F32),
        (F32, F32),
        (np.dtype(np.float64), np.dtype(np.float64)),
        (np.dtype(np.int8), np.dtype(np.int8)),
    ],
    ids=lambda dtype: dtype.name,
)
def test_only_half_types_compute_in_another_type(dtype: DType, compute: DType) -> None:
    assert make_block((1,), dtype=dtype).compute_dtype == compute


def test_adams_rate_carries_both_corrections() -> None:
    rule = Adam(learning_rate=0.1, beta_1=0.5, beta_2=0.75)
    scalars = hyperparameters(rule, updates=2, global_step=0, gradient_scale=3.0)
    rate = 0.1 * np.sqrt(1 - 0.75**2) / (1 - 0.5**2)
    expected = [3.0, np.inf, rate, 0.5, 0.5, 0.75, 0.25, 1e-7, 0.0]
    np.testing.assert_allclose(scalars, expected, rtol=1e-15)  # float64, one rounding each


@pytest.mark.parametrize("rule", [SGD(momentum=0.5), Adam()], ids=repr)
def test_warming_up_begins_to_load_the_kernel_that_steps_will_ask_for(
    rule: UpdateRule, calls: Calls
) -> None:
    begun = calls.noted(library, "load_in_background")
    for dtype in (F32, BFLOAT16):
        warm_up(rule, dtype)
    assert begun == [(rule.chosen_kernel(), F32)] * 2


@pytest.mark.parametrize("dtype", [F32, BFLOAT16], ids=str)
@pytest.mark.parametrize("rows", [None, [1, 5]], ids=["dense", "rows"])
def test_a_step_does_not_wait_for_its_kernel(
    rows: list[int] | None, dtype: DType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stepped() -> bytes:
        block = make_block((8, 3), (5, 3), dtype=dtype)
        for entry in (0, 1):
            block.bind(entry, Adam())
        chosen = None if rows is None else np.array(rows, np.int64)
        values = np.linspace(-1, 1, 24 if rows is None else 6).astype(dtype)
        where = block.range_of(0)
        for step in range(3):
            info = StepInfo(WORKER, step + 1, step)
            block.apply(where, Gradient(values, chosen), Adam(), info)
        return block.value.tobytes() + block.slots["velocity"].tobytes()

    library.update_kernel(adam, F32)
    by_kernel = stepped()
    cold = KernelLibrary(str(tmp_path))
    monkeypatch.setattr("ropewalk.engine.block.library", cold)
    with jit._compiling:  # so that nothing is compiled
        assert stepped() == by_kernel
    cold.wait(time.monotonic() + scaled(60))
    assert [each.name for each in cold.loaded] == ["adam"]


@pytest.mark.parametrize("count", [16, 33, 100_000])
def test_values_and_slots_begin_at_a_cache_line(count: int) -> None:
    """Rows of 64 bytes do not lie across two then: their update takes two thirds of the time."""
    block = make_block((count, 16))
    block.bind(0, Adam())
    for memory in (block.value, *block.slots.values()):
        assert memory.ctypes.data % 64 == 0
        assert memory.size == 16 * count
        assert not memory.any()
