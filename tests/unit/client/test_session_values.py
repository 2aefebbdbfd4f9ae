"""Variables of a session on several ps: where they are, what comes back, what is refused."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from helpers.sessions import Cluster, create, floats, variable
from ropewalk.client.ps.step import Step, Write
from ropewalk.cluster.placement import FixedShardsPartitioner
from ropewalk.core.arrays.indexed_slices import IndexedSlices
from ropewalk.core.errors import (
    ShapeMismatchError,
    UnknownVariableError,
)
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.wire.steps import Operation

APPLY, ASSIGN, ADD = Operation.APPLY, Operation.ASSIGN, Operation.ASSIGN_ADD


# -- placement ---------------------------------------------------------------------------------


def test_shards_go_to_the_ps_with_the_fewest_bytes() -> None:
    cluster = Cluster(3)
    session = cluster.session()
    sizes = [100, 10, 10, 90, 60, 30, 5, 45]
    create(session, *(variable(f"v{i}", size) for i, size in enumerate(sizes)))
    loads = [store.table.held_bytes() for store in cluster.stores]
    assert sum(loads) == 4 * sum(sizes)
    assert max(loads) <= sum(loads) / 3 + 4 * max(sizes)
    assert max(loads) - min(loads) <= 4 * 45


def test_placement_is_shown_per_ps_with_shape_and_bytes() -> None:
    session = Cluster(2).session()
    create(session, variable("table", 5, 2), parts=2)
    create(session, variable("scalar"))
    assert session.variables.placement() == {
        "ps:0": [("table/part_0", "3×2", 24)],
        "ps:1": [("table/part_1", "2×2", 16), ("scalar", "scalar", 4)],
    }
    assert session.transports == ("ps:0 local", "ps:1 local")


# -- values ------------------------------------------------------------------------------------


def test_a_variable_cut_over_three_ps_comes_back_whole() -> None:
    cluster = Cluster(3)
    session = cluster.session()
    values = create(session, variable("table", 7, 3), variable("w", 2), parts=3)
    assert sorted(len(labels) for labels in cluster.labels()) == [1, 2, 2]
    got = session.step(Step(reads=["table", "w"])).values
    for name, expected in values.items():
        np.testing.assert_array_equal(got[name], expected)
    session.step(Step([Write(ADD, {"table": np.ones((7, 3), np.float32)})]))
    np.testing.assert_array_equal(
        session.step(Step(reads=["table"])).values["table"], values["table"] + np.float32(1)
    )


def test_asking_for_a_variable_twice_gives_it_once() -> None:
    session = Cluster().session()
    values = create(session, variable("a", 2), variable("b", 2))
    got = session.step(Step(reads=["a", "b", "a"])).values
    assert list(got) == ["a", "b"]
    np.testing.assert_array_equal(got["a"], values["a"])


@pytest.mark.parametrize("parts", [1, 2], ids=["whole", "2-parts"])
def test_values_that_are_kept_never_change_under_later_steps(parts: int) -> None:
    """Also a piece, a reshaped view, or a buffer of one keeps its memory."""
    session = Cluster(2).session()
    shape = (50, 4)
    session.define(
        [variable("w", *shape), variable("other", 3)],
        {"w": np.zeros(shape, np.float32), "other": np.zeros(3, np.float32)},
        create=True,
        partitioner=FixedShardsPartitioner(parts),
    )
    kept: list[tuple[int, Any]] = []
    one = [Write(ADD, {"w": np.ones(shape, np.float32)})]
    for i in range(1, 60):
        value = session.step(Step(one, ["w", "other"])).values["w"]
        views: list[Any] = [value, value[3:5], value.reshape(-1)[::7], value.data]
        if i % 3:
            kept.append((i, views[i % 4]))
    for i, view in kept:
        assert (np.asarray(view) == i).all()


def test_memory_is_used_again_once_nobody_holds_it() -> None:
    session = Cluster().session()
    create(session, variable("w", 1000))

    def address() -> int:
        pointer: int = session.step(Step(reads=["w"])).values["w"].ctypes.data
        return pointer

    assert len({address() for _ in range(20)}) == 1


def test_a_session_that_is_gone_frees_its_values() -> None:
    session = Cluster().session()
    create(session, variable("w", 1000))
    value = session.step(Step(reads=["w"])).values["w"]
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None
    assert value.sum() == value.sum()


def test_bytes_moved_are_counted() -> None:
    session = Cluster(2).session()
    create(session, variable("w", 10))
    before = session.counters.pushed
    session.step(Step([Write(ADD, {"w": np.ones(10, np.float32)})], ["w"]))
    assert session.counters.pushed - before == 40
    assert session.counters.pulled == 40


# -- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 3], ids=["whole", "3-parts"])
def test_rows_come_in_the_order_asked_for_and_repeated_ones_are_fetched_once(parts: int) -> None:
    cluster = Cluster(3)
    session = cluster.session()
    table = create(session, variable("table", 10, 2), parts=parts)["table"]
    for ids in ([9, 0, 5, 5, 0], [[1, 2], [9, 1]], 7, []):
        index = np.asarray(ids, np.int64)
        got = session.rows.lookup("table", index)
        np.testing.assert_array_equal(got, table[index])
        assert got.shape == (*index.shape, 2)
    before = session.counters.pulled
    session.rows.lookup("table", np.array([4, 4, 4, 4]))
    assert session.counters.pulled - before == 8


def test_only_ps_that_hold_wanted_rows_are_asked() -> None:
    cluster = Cluster(3)
    session = cluster.session()
    create(session, variable("table", 9, 2), parts=3)
    cluster.log.clear()
    session.rows.lookup("table", np.array([4]))
    assert cluster.log == ["send 1", "receive 1"]
    cluster.log.clear()
    session.rows.lookup("table", np.array([], np.int64))
    assert cluster.log == []


@pytest.mark.parametrize("row", [-1, 10], ids=["negative", "past-the-end"])
def test_rows_out_of_range_are_named_with_the_variable(row: int) -> None:
    session = Cluster().session()
    create(session, variable("table", 10, 2))
    message = rf"/job:worker/task:0: row {row} of 'table' is out of range: it has 10 rows"
    with pytest.raises(ShapeMismatchError, match=message):
        session.rows.lookup("table", np.array([0, row]))


def test_pushed_rows_go_to_the_shards_that_hold_them() -> None:
    session = Cluster(3).session()
    table = create(session, variable("table", 10, 2), parts=3)["table"]
    session.bind(["table"], SGD(learning_rate=1.0))
    ids = np.array([9, 2, 9, 4, 0])
    rows = np.random.default_rng(1).standard_normal((5, 2)).astype(np.float32)
    session.step(Step([Write(APPLY, {"table": IndexedSlices(rows, ids)})]))
    expected = table.copy()
    np.subtract.at(expected, ids, rows)
    # Row 9 is summed before it is subtracted.
    np.testing.assert_allclose(
        session.step(Step(reads=["table"])).values["table"], expected, rtol=1e-6
    )


# -- what does not fit -------------------------------------------------------------------------


def test_a_value_of_another_shape_names_task_variable_and_both_shapes() -> None:
    cluster = Cluster(2)
    session = cluster.session()
    create(session, variable("w", 3, 2))
    cluster.log.clear()
    with pytest.raises(ShapeMismatchError) as caught:
        session.step(Step([Write(ADD, {"w": np.ones((2, 3), np.float32)})]))
    assert caught.value.message == (
        "/job:worker/task:0: push to 'w' has shape (2, 3), the variable has (3, 2)"
    )
    assert caught.value.fields["pushed"] == "(2, 3)"
    assert caught.value.fields["expected"] == "(3, 2)"
    assert cluster.log == [], "nothing was sent"


@pytest.mark.parametrize(
    ("given", "held"),
    [(np.float64, np.int32), (np.float32, np.bool_), (np.int64, np.uint8), (np.complex64, np.float32)],
    ids=lambda t: t.__name__,
)  # fmt: skip
def test_a_dtype_that_loses_its_meaning_is_refused(given: Any, held: Any) -> None:
    session = Cluster().session()
    create(session, variable("w", 2, dtype=np.dtype(held)))
    with pytest.raises(
        ShapeMismatchError,
        match=f"push to 'w' is {given.__name__}, the variable is .*; convert it explicitly",
    ):
        session.step(Step([Write(ASSIGN, {"w": np.ones(2, given)})]))


def test_views_of_larger_arrays_are_sent_as_they_look() -> None:
    session = Cluster(2).session()
    create(session, variable("w", 3, 2), parts=2)
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    session.step(Step([Write(ASSIGN, {"w": whole[::2, ::2].T})]))
    np.testing.assert_array_equal(session.step(Step(reads=["w"])).values["w"], whole[::2, ::2].T)


def test_a_variable_nobody_defined_is_named() -> None:
    session = Cluster().session()
    message = "/job:worker/task:0: no variable 'w' was defined; define it in strategy.scope"
    for call in (
        lambda: session.step(Step(reads=["w"])),
        lambda: session.step(Step([Write(ADD, {"w": floats(1)})])),
        lambda: session.rows.lookup("w", np.array([0])),
        lambda: session.bind(["w"], SGD()),
    ):
        with pytest.raises(UnknownVariableError, match=message):
            call()
