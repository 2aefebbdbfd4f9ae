"""The ids of a step, sorted out once for its lookup and its push."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.client.ps.definer import PlacedVariable
from ropewalk.client.ps.distinct_rows import DistinctRowsCache
from ropewalk.core.arrays.buffers import BufferPools
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import ShapeMismatchError
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.engine import rows

WHO = Incarnation(TaskId("worker", 0), 1)
ROWS = 50


def ids_of(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def variable(
    name: str = "table", num_rows: int = ROWS, *, num_ps: int = 1, grows: bool = False
) -> PlacedVariable:
    options = None
    if grows:
        from ropewalk.annexes.embedding.options import TableOptions

        options = TableOptions(SGD())
    definition = VariableDefinition(name, (num_rows, 2), np.dtype("f4"), table=options)
    each = num_rows // num_ps
    shards = [
        ShardDefinition(definition, part, num_ps, part * each, each) for part in range(num_ps)
    ]
    return PlacedVariable(definition, tuple(enumerate(shards)))


@given(st.lists(st.integers(0, ROWS - 1), max_size=200))
def test_distinct_ids_ascend_and_each_id_finds_its_row(numbers: list[int]) -> None:
    ids = ids_of(*numbers)
    found = DistinctRowsCache(WHO).of(variable(), ids)
    assert found.unique.tolist() == sorted(set(numbers))
    spread = found.unique if found.inverse is None else found.unique[found.inverse]
    assert spread.tolist() == numbers


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 3))
def test_gradients_of_one_row_are_added_in_the_order_they_stand(
    numbers: list[int], width: int
) -> None:
    ids = ids_of(*numbers)
    values = np.random.default_rng(len(numbers)).normal(size=(ids.size, width)).astype(np.float32)
    distinct = DistinctRowsCache(WHO).of(variable(), ids)
    sums = distinct.sums(values, BufferPools())
    low, high = distinct.between(2, 5)
    part = np.empty(sums.part(low, high).num_bytes, np.uint8)
    sums.part(low, high).write(part)
    np.testing.assert_array_equal(part.view(np.float32).reshape(-1, width), sums.array()[low:high])
    assert sums.buffer() == sums.detached().buffer()
    for row, total in zip(distinct.unique, sums.array(), strict=True):
        expected = np.zeros(width, np.float32)
        for value in values[ids == row]:
            expected = expected + value
        np.testing.assert_array_equal(total, expected)


def test_the_same_ids_are_sorted_out_once_and_changed_ones_again() -> None:
    cache, ids = DistinctRowsCache(WHO), ids_of(4, 2, 4)
    first = cache.of(variable(), ids)
    assert cache.of(variable(), ids.copy()) is first
    ids[0] = 3  # in place, by the program that owns it
    changed = cache.of(variable(), ids)
    assert changed.unique.tolist() == [2, 3, 4]
    assert first.ids.tolist() == [4, 2, 4]


def test_tables_do_not_mix_and_not_all_of_them_are_kept() -> None:
    cache = DistinctRowsCache(WHO)
    first = cache.of(variable("table 0"), ids_of(1, 0))
    for number in range(1, 513):
        cache.of(variable(f"table {number}"), ids_of(number % ROWS, 0))
    assert cache.of(variable("table 0"), ids_of(1, 0)) is not first


@pytest.mark.parametrize("wrong", [-1, ROWS], ids=["negative", "past-the-end"])
@pytest.mark.parametrize("ascending", [True, False], ids=["ascending", "mixed"])
def test_a_row_that_is_not_there_is_named(wrong: int, ascending: bool) -> None:
    numbers = sorted([1, 2, wrong])
    ids = ids_of(*numbers) if ascending else ids_of(*numbers[::-1], 1)
    with pytest.raises(ShapeMismatchError, match=f"row {wrong} of 'table' .* it has {ROWS} rows"):
        DistinctRowsCache(WHO).of(variable(), ids)


def test_rows_that_somebody_keeps_do_not_change_when_their_memory_would_be_used_again() -> None:
    rows.prepare()
    cache, rng = DistinctRowsCache(WHO), np.random.default_rng(0)
    kept = []
    for step in range(12):
        ids = rng.integers(0, 1_000_000, 50_000)  # as many as come from memory that is kept
        found = cache.of(variable("t", 1_000_000), ids)
        if step % 3:
            kept.append((ids, found))
    for ids, found in kept:
        np.testing.assert_array_equal(found.ids, ids)
        unique, inverse = np.unique(ids, return_inverse=True)
        np.testing.assert_array_equal(found.unique, unique)
        np.testing.assert_array_equal(found.inverse, inverse)


@pytest.mark.annex("embedding")
@settings(deadline=None)
@given(
    keys=st.lists(st.lists(st.integers(-4, 4), max_size=20), min_size=1, max_size=4),
    num_ps=st.integers(1, 3),
)
def test_keys_of_several_tables_are_sorted_out_together(keys: list[list[int]], num_ps: int) -> None:
    cache = DistinctRowsCache(WHO)
    tables = [variable(f"t{i}", num_ps=num_ps, grows=True) for i in range(len(keys))]
    wanted = [(table, ids_of(*own)) for table, own in zip(tables, keys, strict=True)]
    dense = variable("dense"), ids_of(3, 1, 3)
    *found, rows_of_dense = cache.of_all([*wanted, dense])
    assert rows_of_dense.unique.tolist() == [1, 3]
    for table, each, own in zip(tables, found, keys, strict=True):
        spread = each.unique if each.inverse is None else each.unique[each.inverse]
        assert spread.tolist() == own
        assert sorted(each.unique.tolist()) == sorted(set(own))
        parts = [each.of_shard(shard)[2] for _, shard in table.shards]
        assert np.concatenate(parts).tolist() == each.unique.tolist()
        assert cache.of(table, ids_of(*own)) is each


@pytest.mark.annex("embedding")
def test_only_tables_whose_keys_changed_are_sorted_out_again() -> None:
    cache, tables = DistinctRowsCache(WHO), [variable(f"t{i}", grows=True) for i in range(3)]
    first = cache.of_all([(table, ids_of(5, 6)) for table in tables])
    again = cache.of_all([(tables[0], ids_of(5, 6)), (tables[2], ids_of(6, 5))])
    assert again[0] is first[0]
    assert again[1].unique.tolist() == [6, 5]
    assert cache.of(tables[1], ids_of(5, 6)) is first[1]
