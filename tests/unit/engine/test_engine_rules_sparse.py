"""A gradient of rows does to those rows what a dense one does, and nothing to the others.

No reference is needed: the dense form is checked by ``test_ps_rules_reference``.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.rules import (
    COMMON_RULES,
    SGD,
    Ftrl,
    RMSprop,
)
from ropewalk.core.arrays.dtypes import BFLOAT16, DTYPES, FLOATS, Array, DType
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import Operation
from ropewalk.engine.block import Block
from ropewalk.engine.push_target import Gradient, StepInfo

WORKER = Incarnation(TaskId("worker", 0), 1)
ROWS, STEPS = 9, 5
CHOICES = [[0, 3, 8], [3], [], [0, 1, 2, 3, 4, 5, 6, 7, 8], [7, 8]]

RULES: dict[str, UpdateRule] = COMMON_RULES | {
    "rmsprop": RMSprop(learning_rate=0.05),
    "ftrl": Ftrl(learning_rate=0.1, l1_regularization_strength=0.1),
    "ftrl-power": Ftrl(learning_rate=0.1, learning_rate_power=-0.7, beta=1.0),
}
rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
all_types = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)


def make_block(shape: tuple[int, ...], dtype: DType, start: Array) -> Block:
    # A neighbour on either side would notice a write that misses its rows.
    beside = ShardDefinition(VariableDefinition("before", (5,), dtype))
    table = ShardDefinition(VariableDefinition("table", shape, dtype))
    after = ShardDefinition(VariableDefinition("after", (5,), dtype))
    block = Block([beside, table, after])
    block.view(1)[...] = start
    return block


def of_rows(values: Array, rows: Array) -> Gradient:
    return Gradient(values.reshape(-1), rows.astype(np.int64))


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 50, shape).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


@rules
@pytest.mark.parametrize(
    ("row", "dtype"), [*zip([(4,), (2, 3), (), (4,)], FLOATS, strict=True)], ids=str
)
def test_rows_are_updated_as_by_a_dense_gradient_and_others_not_at_all(
    rule: UpdateRule, row: tuple[int, ...], dtype: DType
) -> None:
    """Bit for bit: both forms run the same kernel.

    Each row has a twin block holding that row alone, which is stepped densely whenever it is
    pushed.
    """
    rng = np.random.default_rng(3)
    start = numbers(rng, (ROWS, *row), dtype)
    table = make_block((ROWS, *row), dtype, start)
    twins = [make_block((1, *row), dtype, start[i : i + 1]) for i in range(ROWS)]
    for block in (table, *twins):
        block.bind(1, rule)
    for step in range(STEPS):
        chosen = np.array(CHOICES[step], np.int64)
        values = numbers(rng, (chosen.size, *row), dtype)
        info = StepInfo(WORKER, step + 1, step, 0.5)
        table.apply(table.range_of(1), of_rows(values, chosen), rule, info)
        for i, value in zip(chosen, values, strict=True):
            twin = twins[i]
            twin.updates[1] = step  # t counts steps of the variable, pushed to this row or not
            twin.apply(twin.range_of(1), Gradient(value.reshape(-1)), rule, info)
    for name in ("", *rule.active_slots()):
        expected = np.concatenate([twin.view(1, name) for twin in twins])
        np.testing.assert_array_equal(table.view(1, name), expected, err_msg=name)
    for neighbour in (0, 2):
        assert not table.view(neighbour).any()
        assert not any(table.view(neighbour, slot).any() for slot in rule.active_slots())
    assert table.updates.tolist() == [0, STEPS, 0]


@all_types
@pytest.mark.parametrize("adds", [False, True], ids=["assign", "assign_add"])
def test_assigning_or_adding_to_rows_changes_those_alone(dtype: DType, adds: bool) -> None:
    rng = np.random.default_rng(5)
    for row, chosen in (((), [0, 4, 8]), ((4,), [1]), ((2, 3), list(range(ROWS))), ((4,), [])):
        start, values = numbers(rng, (ROWS, *row), dtype), numbers(rng, (len(chosen), *row), dtype)
        block, expected = make_block((ROWS, *row), dtype, start), start.copy()
        if adds:
            rows = of_rows(values, np.array(chosen))
            block.combine(block.range_of(1), rows, Operation.ASSIGN_ADD)
            expected[chosen] += values
        else:
            block.assign(block.range_of(1), of_rows(values, np.array(chosen)))
            expected[chosen] = values
        np.testing.assert_array_equal(block.view(1), expected)
        assert not block.view(0).any()
        assert not block.view(2).any()


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("operation", ["apply", "assign", "combine"])
@pytest.mark.parametrize("chosen", [[], [0, 2]], ids=["no-rows", "two-rows"])
def test_rows_without_elements_are_no_special_case(
    dtype: DType, operation: str, chosen: list[int]
) -> None:
    block = make_block((3, 0), dtype, np.zeros((3, 0), dtype))
    gradient = of_rows(np.zeros(0, dtype), np.array(chosen))
    if operation == "apply":
        block.bind(1, SGD())
        block.apply(block.range_of(1), gradient, SGD(), StepInfo(WORKER, 1, 0))
    elif operation == "assign":
        block.assign(block.range_of(1), gradient)
    else:
        block.combine(block.range_of(1), gradient, Operation.ASSIGN_ADD)
    assert block.versions.tolist() == [0, 1, 0]


@settings(max_examples=25, deadline=None)
@given(
    width=st.integers(1, 5),
    pushes=st.lists(st.sets(st.integers(0, ROWS - 1)), min_size=1, max_size=6),
    dtype=st.sampled_from([np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]),
)
def test_any_rows_in_any_order_of_pushes_sum_to_the_same(
    width: int, pushes: list[set[int]], dtype: DType
) -> None:
    """Ones and a rate of one: every dtype counts to six exactly."""
    rule = SGD(learning_rate=1.0)
    block = make_block((ROWS, width), dtype, np.zeros((ROWS, width), dtype))
    block.bind(1, rule)
    for step, chosen in enumerate(pushes):
        values = np.ones(len(chosen) * width, dtype)
        gradient = Gradient(values, np.array(sorted(chosen), np.int64))
        block.apply(block.range_of(1), gradient, rule, StepInfo(WORKER, step + 1, step))
    for i in range(ROWS):
        expected = -float(sum(i in chosen for chosen in pushes))
        assert block.view(1)[i].astype(float).tolist() == [expected] * width
