"""A growing table does what a dict of rows does; what it holds follows from its pushes alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.calls import Calls
from helpers.embedding import a_table, as_keys, ones, with_a_history
from helpers.rules import SGD, Adagrad, Adam
from ropewalk.annexes.embedding.keyed import row_store
from ropewalk.annexes.embedding.keyed.definition import TableDefinition
from ropewalk.annexes.embedding.keyed.index import KeyIndex
from ropewalk.annexes.embedding.keyed.row_store import LAST_STEP, RecentRows
from ropewalk.annexes.embedding.keyed.table import KeyedTable, prepare
from ropewalk.annexes.embedding.options import NormClipping
from ropewalk.core.arrays.buffers import BufferPools
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import ConfigurationError, LimitExceededError, ShapeMismatchError
from ropewalk.engine.library import library

pytestmark = pytest.mark.usefixtures("way")


def keys_of(table: KeyedTable) -> list[int]:
    return sorted(key for tile in table.tiles() for key in tile.keys.tolist())


# -- rows ------------------------------------------------------------------------------------

any_key = st.one_of(
    st.integers(-20, 20), st.sampled_from([0, -1, 2**63 - 1, -(2**63), 2**32, 2**62])
)
pushes = st.lists(st.lists(any_key, max_size=30), max_size=8)


@settings(max_examples=25, deadline=None)
@given(pushes=pushes)
def test_any_pushes_give_what_a_dict_of_rows_has(pushes: list[list[int]]) -> None:
    rng = np.random.default_rng(1)
    table, fresh = a_table(), a_table()
    expected: dict[int, Array] = {}
    for step, keys in enumerate(pushes):
        gradients = rng.standard_normal((len(keys), 4), np.float32)
        table.push(as_keys(*keys), gradients, step)
        sums: dict[int, Array] = {}
        for key, gradient in zip(keys, gradients, strict=True):
            sums[key] = sums[key] + gradient if key in sums else gradient
        for key, total in sums.items():
            row = expected.get(key, fresh.read(as_keys(key))[0])
            expected[key] = row - np.float32(0.5) * total
        assert len(table) == len(expected)
    assert keys_of(table) == sorted(expected)
    asked = [*expected, 12345, -98765]
    initial = fresh.read(as_keys(*asked))
    # To the bit: sums in order, and SGD as NumPy has it.
    wanted = [expected.get(key, row) for key, row in zip(asked, initial, strict=True)]
    np.testing.assert_array_equal(table.read(as_keys(*asked)), np.array(wanted))
    assert len(fresh) == 0


def test_a_read_makes_no_row_and_gives_what_the_row_would_begin_with() -> None:
    table = a_table()
    first = table.read(as_keys(7, 8, 7))
    assert len(table) == 0
    np.testing.assert_array_equal(first[0], first[2])
    table.push(as_keys(7), np.zeros((1, 4), np.float32), 0)
    assert len(table) == 1
    np.testing.assert_array_equal(table.read(as_keys(7, 8, 7)), first)


def test_a_key_without_a_row_may_read_as_zeros() -> None:
    table = a_table(unknown="zeros")
    assert (table.read(as_keys(7)) == 0).all()
    table.push(as_keys(7), np.zeros((1, 4), np.float32), 0)
    assert (table.read(as_keys(7, 8)) != 0).tolist() == [[True] * 4, [False] * 4]


def test_rows_do_not_depend_on_the_order_or_the_table_they_are_made_in() -> None:
    keys, gradients = np.arange(-200, 200), np.zeros((400, 4), np.float32)
    one = a_table()
    one.push(keys, gradients, 0)
    parts = [a_table(), a_table()]
    for number, part in enumerate(parts):
        mine = keys[number::2][::-1].copy()
        part.push(mine, gradients[:200], 0)
        np.testing.assert_array_equal(part.read(mine), one.read(mine))


@pytest.mark.parametrize("looks_up", [True, False], ids=["after a lookup", "without"])
def test_a_push_finds_the_rows_as_they_are_then(looks_up: bool) -> None:
    table, keys = a_table(max_rows=5000), np.arange(2000)
    table.push(keys[:1500], ones(1500), 0)
    for step in (1, 2):
        if looks_up:
            table.read(keys)
        if step == 1:  # keys that had no row get one
            table.push(keys[1700:1800], ones(100), step)
        else:  # others get rows that were theirs
            table.evict(keys[:10])
            table.push(np.arange(9000, 9010), ones(10), step)
        table.push(keys, ones(2000), step)
    assert len(table) == 2010
    (tile,) = table.tiles()
    counts = dict(zip(tile.keys.tolist(), tile.counts.tolist(), strict=True))
    assert [counts[key] for key in (0, 10, 1600, 1750, 9000)] == [1, 3, 2, 3, 1]
    assert table.counts.admitted == 2020


def test_a_push_finds_no_key_again_that_was_just_looked_up(calls: Calls) -> None:
    table, keys = a_table(max_rows=5000), np.arange(2000)
    table.push(keys, ones(2000), 0)
    table.read(keys)
    asked = calls.noted(KeyIndex, "find")
    table.push(keys, ones(2000), 1)
    assert asked == []
    table.push(keys, ones(2000), 2)  # of another worker: it is not the push of that lookup
    assert [keys.size for _, keys in asked] == [2000]


def test_lookups_without_a_push_are_forgotten() -> None:
    recent = RecentRows(BufferPools())
    for start in range(20):
        keys = np.arange(start, start + 2000)
        recent.note(keys, keys)
    assert recent.take(np.arange(2000)) is None
    kept = recent.take(np.arange(19, 2019))
    assert kept is not None
    assert recent.take(np.arange(19, 2019)) is None
    recent.note(np.arange(10), np.arange(10))
    assert recent.take(np.arange(10)) is None  # the index is as fast


def test_reading_into_an_array() -> None:
    table, out = a_table(), np.empty((2, 4), np.float32)
    assert table.read(as_keys(1, 2), out) is out
    np.testing.assert_array_equal(out, table.read(as_keys(1, 2)))


def test_evicted_rows_begin_anew_in_memory_that_is_used_again() -> None:
    table = a_table(Adagrad(), max_rows=10)
    start = table.read(as_keys(3))
    for step in range(5):
        table.push(np.arange(10), ones(10), step)
        assert table.evict(np.arange(20)) == 10
        assert len(table) == 0
    assert table._store.used == 10
    np.testing.assert_array_equal(table.read(as_keys(3)), start)
    table.push(as_keys(3), np.zeros((1, 4), np.float32), 6)
    (tile,) = table.tiles()
    assert (tile.counts.tolist(), tile.last.tolist()) == ([1], [6])
    np.testing.assert_array_equal(tile.slots["accumulator"], np.full((1, 4), np.float32(0.1)))


def test_memory_follows_the_rows_and_not_their_largest_number() -> None:
    table = a_table(Adam(), dim=16, max_rows=10_000_000)
    table.push(np.arange(100_000), ones(100_000, 16), 0)
    assert table.num_bytes < 100_000 * (3 * 64 + 24 + 40)


def test_a_budget_of_bytes_holds_with_the_index() -> None:
    definition = a_table(Adam(), dim=16).definition
    rows = definition.rows_within(50_000_000, 16, np.dtype(np.float32))
    assert rows == 50_000_000 // (3 * 64 + 24 + 50)
    assert definition.rows_within(1, 16, np.dtype(np.float32)) == 0


# -- gradients -------------------------------------------------------------------------------


def test_gradients_of_equal_keys_are_added_up_before_they_are_clipped() -> None:
    table = a_table(SGD(learning_rate=1.0, clipvalue=1.5))
    start = table.read(as_keys(1))
    table.push(as_keys(1, 2, 1), ones(3), 0)
    np.testing.assert_allclose(table.read(as_keys(1)), start - 1.5, rtol=1e-6)


def test_rows_are_clipped_by_their_norms() -> None:
    table = a_table(SGD(learning_rate=1.0), clipping=NormClipping(row_norm=1.0))
    start = table.read(as_keys(1, 2))
    gradients = np.array([[3.0, 4.0, 0.0, 0.0], [0.1, 0.0, 0.0, 0.0]], np.float32)
    table.push(as_keys(1, 2), gradients, 0, scale=2.0)
    expected = [[0.6, 0.8, 0.0, 0.0], [0.2, 0.0, 0.0, 0.0]]
    np.testing.assert_allclose(start - table.read(as_keys(1, 2)), expected, atol=1e-6)


def test_all_rows_of_a_push_are_clipped_by_their_joint_norm() -> None:
    table = a_table(SGD(learning_rate=1.0), clipping=NormClipping(row_norm=4.0, table_norm=1.0))
    start = table.read(as_keys(1, 2))
    gradients = np.array([[3.0, 0.0, 0.0, 0.0], [0.0, 8.0, 0.0, 0.0]], np.float32)
    table.push(as_keys(1, 2), gradients, 0)
    expected = [[0.6, 0.0, 0.0, 0.0], [0.0, 0.8, 0.0, 0.0]]
    np.testing.assert_allclose(start - table.read(as_keys(1, 2)), expected, atol=1e-6)
    table.push(as_keys(1, 2), gradients * 0, 0)


@pytest.mark.parametrize("norm", [0.0, -1.0, float("inf"), float("nan")])
def test_a_norm_that_means_nothing_is_refused(norm: float) -> None:
    with pytest.raises(ConfigurationError, match=r"row_norm is .*; it must be positive and finite"):
        NormClipping(row_norm=norm)


# -- mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "gradients", "said"),
    [(np.zeros(2, np.int32), ones(2), "keys are int32"),
     (np.zeros((1, 2), np.int64), ones(2), r"keys are int64\[1, 2\]"),
     (as_keys(1, 2), ones(3), r"gradients are float32\[3, 4\], expected float32\[2, 4\]"),
     (as_keys(1, 2), ones(2, 5), r"gradients are float32\[2, 5\], expected float32\[2, 4\]"),
     (as_keys(1, 2), ones(2).astype(np.float64), "gradients are float64")],
    ids=["dtype", "axes", "rows", "width", "gradient-dtype"],
)  # fmt: skip
def test_a_push_that_does_not_fit_changes_nothing(keys: Array, gradients: Array, said: str) -> None:
    table = a_table()
    before = table.digest()
    with pytest.raises(ShapeMismatchError, match=f"table 't': {said}"):
        table.push(keys, gradients, 0)
    assert table.digest() == before


@pytest.mark.parametrize("step", [-1, LAST_STEP + 1])
def test_a_step_that_no_row_can_note_is_refused(step: int) -> None:
    table = a_table()
    with pytest.raises(LimitExceededError, match=f"table 't': step {step} is not in"):
        table.push(as_keys(1), ones(1), step)
    assert len(table) == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"dim": 0}, "dim is 0; it must be in"), ({"max_rows": 0}, "max_rows is 0"),
     ({"max_unseen_steps": 0}, "max_unseen_steps is 0"),
     ({"dtype": np.dtype(np.float16)}, "rows are float16; they may be")],
    ids=["dim", "max_rows", "max_unseen_steps", "dtype"],
)  # fmt: skip
def test_a_definition_that_cannot_be_names_the_table(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"table 't': {said}"):
        a_table(**changes)


def test_a_table_for_which_there_are_no_addresses_says_what_to_lower(calls: Calls) -> None:
    calls.fail(row_store, "zeros", MemoryError())
    with pytest.raises(LimitExceededError, match=r"table 't': .* 1000 rows of 40 bytes; lower max"):
        a_table()


# -- copies ----------------------------------------------------------------------------------


def trained() -> KeyedTable:
    return with_a_history(a_table(Adam(learning_rate=0.1)))


def test_a_loaded_copy_has_the_same_digest_and_goes_on_alike() -> None:
    table, copy = trained(), a_table(Adam(learning_rate=0.1))
    for tile in list(table.tiles(max_rows=37))[::-1]:
        assert tile.keys.size <= 37
        copy.load(tile)
    copy.load_state(table.state())
    assert copy.digest() == table.digest()
    assert copy.counts == table.counts
    assert copy._store.used < table._store.used
    for each in (table, copy):
        each.push(np.arange(-50, 400), ones(450), 31)
    assert copy.digest() == table.digest()


@pytest.mark.parametrize("num_ps", [1, 2, 3, 7])
def test_a_table_is_divided_by_keys_and_comes_together_again(num_ps: int) -> None:
    table = trained()
    parts = [a_table(Adam(learning_rate=0.1)) for _ in range(num_ps)]
    for tile in table.tiles(max_rows=100):
        for number, part in enumerate(parts):
            part.load(tile.of_ps(number, num_ps))
    assert sum(map(len, parts)) == len(table)
    whole = a_table(Adam(learning_rate=0.1))
    for part in parts:
        for tile in part.tiles():
            whole.load(tile)
    whole.load_state(table.state())
    assert whole.digest() == table.digest()


def test_a_digest_differs_in_every_part_of_a_row() -> None:
    table = trained()
    (tile,) = table.tiles()
    first = tile.digest()
    assert tile.chosen(np.arange(tile.keys.size)[::-1]).digest() == first
    columns: Iterator[Array] = iter(
        [tile.keys, tile.values, tile.slots["velocity"], tile.counts, tile.last]
    )
    for column in columns:
        flat = column.reshape(-1)
        before = flat[3]
        flat[3] = before + 1
        assert tile.digest() != first
        flat[3] = before
    assert tile.digest() == first


def test_a_tile_that_does_not_fit_changes_nothing() -> None:
    table = trained()
    (tile,) = table.tiles()
    for other, error, said in (
        (a_table(Adagrad()), ShapeMismatchError, "a tile has values, slot 'momentum'"),
        (a_table(Adam(), dim=5), ShapeMismatchError, "values of a tile are float32"),
        (a_table(Adam(), max_rows=7), LimitExceededError, "rows to load, and room for 7 of 7"),
    ):
        with pytest.raises(error, match=f"table 't': .*{said}"):
            other.load(tile)
        assert len(other) == 0


def test_a_damaged_tile_is_refused() -> None:
    table = trained()
    (tile,) = table.tiles()
    twice = np.array([0, 1, 0])
    with pytest.raises(ShapeMismatchError, match="a tile of 3 keys has one of them twice"):
        a_table(Adam()).load(tile.chosen(twice))
    tile.last[2] = 2**32 - 1
    with pytest.raises(ShapeMismatchError, match="a tile has the step 4294967295"):
        a_table(Adam()).load(tile)


def test_an_array_to_read_into_must_fit() -> None:
    with pytest.raises(ShapeMismatchError, match=r"table 't': out are float32\[3, 4\], expected"):
        a_table().read(as_keys(1, 2), np.empty((3, 4), np.float32))


_PROGRAM = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = None
import logging
logging.disable()
import numpy as np
from helpers.embedding import a_table, with_a_history
print(with_a_history(a_table()).digest())
"""


def test_a_process_without_numba_has_the_same_table_to_the_bit() -> None:
    path = os.pathsep.join(filter(None, sys.path))
    said = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    ).stdout
    assert said.strip() == with_a_history(a_table()).digest()


def test_what_a_table_needs_is_loaded_before_its_first_push(way: str) -> None:
    definition = TableDefinition(name="t", dim=4, rule=Adam(), max_rows=10)
    prepare(definition)
    if way == "kernel":
        loaded = {each.name for each in library.loaded}
        assert {"find_keys", "draw_rows", "adam_rows", "gather"} <= loaded
    assert KeyedTable(definition).definition is definition
