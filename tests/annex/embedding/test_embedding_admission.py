"""Which keys get rows and which rows go: decided by the pushes alone, and counted."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.embedding import a_table, as_keys, ones
from ropewalk.annexes.embedding.keyed.row_store import least_used
from ropewalk.annexes.embedding.keyed.table import KeyedTable
from ropewalk.annexes.embedding.options import Chance, Sightings, SketchedSightings
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.rules.built_in.adagrad import Adagrad

pytestmark = pytest.mark.usefixtures("way")


def keys_of(table: KeyedTable) -> list[int]:
    return sorted(key for tile in table.tiles() for key in tile.keys.tolist())


def push(table: KeyedTable, keys: Array, step: int) -> None:
    table.push(keys, ones(keys.size), step)


# -- admission -------------------------------------------------------------------------------


@pytest.mark.parametrize("admission", [Sightings(3), SketchedSightings(3)], ids=["exact", "sketch"])
def test_a_key_gets_its_row_at_its_third_sighting(admission: Any) -> None:
    table = a_table(admission=admission)
    start = table.read(as_keys(1))
    for step in range(2):
        push(table, as_keys(1, 1, 2 + step), step)  # twice in a push is one sighting
        np.testing.assert_array_equal(table.read(as_keys(1)), start)
    assert (len(table), table.counts.refused, table.counts.admitted) == (0, 4, 0)
    push(table, as_keys(1), 2)
    assert keys_of(table) == [1]
    assert (table.counts.refused, table.counts.admitted) == (4, 1)
    np.testing.assert_allclose(table.read(as_keys(1)), start - 0.5, rtol=1e-6)


@settings(max_examples=20, deadline=None)
@given(pushes=st.lists(st.lists(st.integers(-5, 25), max_size=12, unique=True), max_size=12))
def test_exact_counts_are_those_of_a_counter(pushes: list[list[int]]) -> None:
    table, seen = a_table(admission=Sightings(3)), Counter[int]()
    for step, keys in enumerate(pushes):
        push(table, as_keys(*keys), step)
        seen.update(keys)
        assert keys_of(table) == sorted(key for key, count in seen.items() if count >= 3)


def test_a_key_whose_row_was_evicted_is_counted_anew() -> None:
    table = a_table(admission=Sightings(2))
    for step in range(2):
        push(table, as_keys(1), step)
    assert table.evict(as_keys(1)) == 1
    push(table, as_keys(1), 2)
    assert len(table) == 0


def test_a_sketch_admits_no_key_late_and_few_early() -> None:
    rng = np.random.default_rng(2)
    table = a_table(admission=SketchedSightings(4, counters=1 << 14), max_rows=10_000)
    seen = Counter[int]()
    for step in range(40):
        keys = np.unique(rng.zipf(1.3, 400) % 5000)
        push(table, keys, step)
        seen.update(keys.tolist())
    due = {key for key, count in seen.items() if count >= 4}
    rows = set(keys_of(table))
    assert due <= rows
    assert len(rows - due) <= 0.02 * len(seen)


def test_sightings_of_a_sketch_fade() -> None:
    table = a_table(admission=SketchedSightings(2, counters=64), max_rows=100_000)
    for step in range(40):
        push(table, np.arange(step * 100, step * 100 + 100), step)
    assert table._admitter.state()["sketch"].max() < 40 * 100 / 64


def test_candidates_are_bounded_and_the_least_seen_are_forgotten() -> None:
    table = a_table(admission=Sightings(5, max_candidates=100))
    for step in range(3):
        push(table, np.arange(40), step)
    push(table, np.arange(1000, 1090), 3)
    state = table._admitter.state()
    assert state["candidate_keys"].tolist() == [*range(40), *range(1000, 1010)]
    assert state["candidate_counts"].tolist() == [3] * 40 + [1] * 10
    push(table, np.arange(2000, 3000), 4)
    assert table._admitter.state()["candidate_keys"].size == 50


def test_a_chance_is_the_same_for_the_same_pushes_and_another_at_each() -> None:
    def made() -> KeyedTable:
        table = a_table(admission=Chance(0.3), max_rows=20_000)
        for step in range(3):
            push(table, np.arange(10_000), step)
        return table

    table = made()
    # 1 - 0.7 ** 3 of 10,000, within five deviations of 47.
    assert abs(len(table) - 6570) < 240
    assert keys_of(made()) == keys_of(table)
    assert table.counts.admitted == len(table)


@pytest.mark.parametrize(
    ("admission", "said"),
    [(Sightings(0), "count of its admission is 0; it must be in \\[1, 2"),
     (Sightings(2, max_candidates=1), "max_candidates of its admission is 1"),
     (SketchedSightings(2, counters=100), "counters of its admission is 100; it must be a power"),
     (Chance(0.0), "probability of its admission is 0.0"),
     (Chance(1.5), "probability of its admission is 1.5")],
    ids=str,
)  # fmt: skip
def test_an_admission_that_means_nothing_is_refused(admission: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"table 't': {said}"):
        a_table(admission=admission)


# -- eviction --------------------------------------------------------------------------------


def test_rows_that_were_not_pushed_for_long_go() -> None:
    table = a_table(max_unseen_steps=16)
    push(table, np.arange(10), 0)
    for step in range(1, 17):
        push(table, as_keys(1, 2), step)
    assert len(table) == 10
    push(table, as_keys(1), 17)
    assert keys_of(table) == [1, 2]
    assert table.counts.evicted == 8


def test_a_full_table_refuses_unless_it_evicts() -> None:
    table = a_table(max_rows=5)
    start = table.read(as_keys(7))
    push(table, np.arange(8), 0)
    assert keys_of(table) == [0, 1, 2, 3, 4]
    assert (table.counts.full, table.counts.admitted) == (3, 5)
    np.testing.assert_array_equal(table.read(as_keys(7)), start)


def test_the_least_recent_rows_make_room() -> None:
    table = a_table(max_rows=5, evicts="least_recent")
    for step, key in enumerate([9, 3, 7, 1, 5, 9]):
        push(table, as_keys(key), step)
    push(table, as_keys(100, 101), 6)
    assert keys_of(table) == [1, 5, 9, 100, 101]
    assert table.counts.evicted == 2


def test_a_push_of_a_worker_that_is_behind_makes_no_row_older() -> None:
    table = a_table(max_rows=3, evicts="least_recent")
    for step, key in ((8, 5), (9, 1), (10, 2), (3, 1)):
        push(table, as_keys(key), step)
    push(table, as_keys(100), 11)
    assert keys_of(table) == [1, 2, 100]


def test_the_least_frequent_rows_make_room_and_the_older_of_equals() -> None:
    table = a_table(max_rows=4, evicts="least_frequent")
    for step, key in enumerate([1, 1, 1, 2, 3, 3, 4]):
        push(table, as_keys(key), step)
    push(table, as_keys(9), 7)
    assert keys_of(table) == [1, 3, 4, 9]


def test_of_rows_that_are_alike_the_smaller_keys_go_whatever_their_place() -> None:
    for order in ([5, 1, 4, 2, 3], [3, 2, 5, 4, 1]):
        table = a_table(max_rows=5, evicts="least_frequent")
        push(table, as_keys(*order), 0)
        push(table, as_keys(10, 11), 1)
        assert keys_of(table) == [3, 4, 5, 10, 11]


def test_rows_of_the_push_that_needs_room_stay() -> None:
    table = a_table(max_rows=4, evicts="least_recent")
    push(table, as_keys(1, 2, 3, 4), 0)
    push(table, as_keys(1, 2, 3, 10, 11, 12), 1)
    assert keys_of(table) == [1, 2, 3, 10]
    assert (table.counts.evicted, table.counts.full) == (1, 2)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_the_least_used_are_those_of_a_sort(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40))
    table = a_table(max_rows=size)
    push(table, np.arange(size) - size // 2, 0)
    store = table._store
    numbers = st.lists(st.sampled_from([0, 1, 2, 2**16, 2**31]), min_size=size, max_size=size)
    store.counts[:] = data.draw(numbers)
    store.last[:] = data.draw(numbers)
    columns = {
        "least_recent": (store.keys, store.last),
        "least_frequent": (store.keys, store.last, store.counts),
    }
    count = data.draw(st.integers(0, size + 1))
    for order, by in columns.items():
        expected = np.sort(np.lexsort(by)[:count])
        assert least_used(store, count, order).tolist() == expected.tolist()  # type: ignore[arg-type]


def test_a_table_never_grows_beyond_its_rows(way: str) -> None:
    table = a_table(max_rows=500, evicts="least_recent")
    for step in range(30):
        push(table, np.arange(step * 130, step * 130 + 170), step)
        assert len(table) <= 500
    assert table._store.used == 500
    assert table.counts.admitted - table.counts.evicted == len(table)


def test_sketches_of_several_ps_count_no_sighting_twice() -> None:
    """Parts of a table that were restored for other numbers of ps all remember the same sketch."""
    parts = [a_table(admission=SketchedSightings(3, counters=256)) for _ in range(3)]
    push(parts[0], np.arange(10), 1)
    joined = a_table(admission=SketchedSightings(3, counters=256))
    for part in parts[1:]:
        part.load_state(parts[0].state())
    for part in parts:
        joined.load_state(part.state())
    push(joined, np.arange(10), 2)
    assert len(joined) == 0
    push(joined, np.arange(10), 3)
    assert len(joined) == 10


# -- a copy decides alike ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{"admission": Sightings(2, max_candidates=60)},
     {"admission": SketchedSightings(2, counters=128)}, {"admission": Chance(0.4)},
     {"max_unseen_steps": 5}, {"max_rows": 40, "evicts": "least_recent"},
     {"max_rows": 40, "evicts": "least_frequent"},
     {"max_rows": 40, "evicts": "least_frequent", "max_unseen_steps": 3,
      "admission": Sightings(2, max_candidates=60)}],
    ids=str,
)  # fmt: skip
def test_a_copy_that_gets_the_same_pushes_is_equal_to_the_bit(changes: dict[str, Any]) -> None:
    rng = np.random.default_rng(6)
    table, follower = (a_table(Adagrad(), **changes) for _ in range(2))
    joined = a_table(Adagrad(), **changes)
    for step in range(40):
        if step == 20:  # one that begins with a copy, whose rows lie elsewhere
            for tile in list(table.tiles(max_rows=7))[::-1]:
                joined.load(tile)
            joined.load_state(table.state())
        keys = rng.zipf(1.4, 30) % 100 - 50
        gradients = rng.standard_normal((30, 4), np.float32)
        for each in (table, follower, *([joined] if step >= 20 else [])):
            each.push(keys, gradients, step // 2)
    assert follower.digest() == table.digest()
    assert joined.digest() == table.digest()
    assert joined.counts == table.counts
