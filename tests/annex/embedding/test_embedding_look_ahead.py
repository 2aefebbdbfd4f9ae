"""Rows that are looked up ahead: the same bits as without, and errors where they belong."""

import copy
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.annexes.embedding.features.config import FeatureConfig, TableConfig
from ropewalk.annexes.embedding.features.look_ahead import LookAhead
from ropewalk.annexes.embedding.features.tables import Embeddings
from ropewalk.client.ps.row_lookups import RowsAhead
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import ConfigurationError, ShapeMismatchError
from ropewalk.distribute import MirroredStrategy, ParameterServerStrategy

Batch = dict[str, Array]


def on_servers(*, prefetch: bool = False, **options: Any) -> tuple[Any, Embeddings]:
    strategy = ParameterServerStrategy(prefetch=prefetch)
    grows, fixed = TableConfig("g", 4, **options), TableConfig("v", 2, 30, combiner="sum")
    with strategy.scope():
        features = [FeatureConfig("a", grows), FeatureConfig("b", grows), FeatureConfig("c", fixed)]
        embeddings = Embeddings(features, rw.optimizers.Adagrad(0.3))
    return strategy, embeddings


def batches(steps: int) -> list[Batch]:
    rng = np.random.default_rng(0)
    return [
        {"a": rng.integers(-20, 20, (8, 2)), "b": rng.integers(-20, 20, 8),
         "c": rng.integers(0, 30, (8, 3))}
        for _ in range(steps)
    ]  # fmt: skip


def train(count: int, **options: Any) -> list[Array]:
    """All rows that the steps of a program see, if it looks so many batches ahead."""
    strategy, embeddings = on_servers(**options)
    seen: list[Array] = []

    def step(number: int, batch: Batch) -> None:
        rows = embeddings.lookup(batch)
        seen.extend(rows.values())
        rows.apply_gradients({name: np.sin(each + 1) for name, each in rows.items()})
        if number == 4:  # in this step's push
            embeddings.variables["v"].assign(np.full((30, 2), 7, np.float32))
        if number == 6:
            seen.append(embeddings.lookup({"c": batch["a"] % 30})["c"])
            seen.append(embeddings.lookup(batch)["a"])
        batch["a"] += 1  # a program may change its own

    given: Any = batches(10)
    if count:
        given = embeddings.look_ahead(given, lambda batch: batch, count=count)
    for number, batch in enumerate(given):
        strategy.run(step, args=(number, batch))
        if number == 7:  # outside of steps
            table = embeddings.variables["v"]
            dense = np.ones((30, 2), np.float32)
            rw.optimizers.Adagrad(0.3).apply_gradients([(dense, table)])
    embeddings.flush()
    seen.append(embeddings.lookup({"a": np.arange(-20, 20)})["a"])
    return seen


@pytest.mark.parametrize(
    "options",
    [{}, {"staleness_writes": 2}, {"prefetch": True}],
    ids=["at once", "delayed", "prefetch"],
)
def test_one_worker_sees_the_same_bits_as_without(options: dict[str, Any]) -> None:
    usual = train(0, **options)
    for count in (1, 3, 20):
        for left, right in zip(train(count, **options), usual, strict=True):
            np.testing.assert_array_equal(left, right)


def test_rows_come_while_the_step_before_computes_and_only_changed_ones_again() -> None:
    strategy, embeddings = on_servers()
    session = strategy.extended.runtime.session
    asked: list[int] = []
    exchange, looked_up = session.exchange, threading.Event()

    def note(requests: Any, targets: Any) -> None:
        asked.append(sum(n.size for each in requests.values() for n in each.pull_rows))
        exchange(requests, targets)
        if len(asked) == 3:
            looked_up.set()

    ids = [np.arange(10), np.arange(5, 15), np.arange(8, 18)]
    given = embeddings.look_ahead(ids, lambda each: {"b": each}, count=2)

    def step(own: Array, *, waits: bool) -> None:
        rows = embeddings.lookup({"b": own})
        if waits:
            assert looked_up.wait(10)
        rows.apply_gradients({"b": np.ones_like(rows["b"])})

    session.rows.lookup_rows({"g": np.array([1])})  # all is defined
    session.exchange = note
    strategy.run(step, args=(next(given),), kwargs={"waits": True})
    assert asked == [10, 10, 10]
    strategy.run(step, args=(next(given),), kwargs={"waits": False})
    assert asked == [10, 10, 10, 5]  # of 5 to 14 those that the first step has trained
    strategy.run(step, args=(next(given),), kwargs={"waits": False})
    assert asked == [10, 10, 10, 5, 7]
    assert next(given, None) is None


def test_more_pushed_rows_than_can_be_noted_are_all() -> None:
    strategy, embeddings = on_servers()
    session = strategy.extended.runtime.session
    embeddings.lookup({"b": np.arange(3)})
    ahead: RowsAhead = session.rows.look_up_ahead({"g": np.arange(2)})
    for start in range(0, 40, 10):
        embeddings.lookup({"b": np.arange(start + 10, start + 20)}).apply_gradients(
            {"b": np.ones((10, 4), np.float32)}
        )
        assert [each.size for each in ahead.stale()] == [0 if start < 30 else 2]
    other = session.rows.look_up_ahead({"g": np.arange(2)})
    session.rows.note_changed()
    assert [each.size for each in other.stale()] == [2]
    assert session.rows.catch_up(other)["g"][0].shape == (2, 4)


# -- errors --------------------------------------------------------------------------------------


def test_an_error_of_the_batches_comes_in_its_turn() -> None:
    _, embeddings = on_servers()

    def broken() -> Iterator[Batch]:
        yield from batches(2)
        raise OSError("the disk is gone")

    given = embeddings.look_ahead(broken(), lambda batch: batch, count=5)
    for _ in range(2):
        embeddings.lookup(next(given))
    with pytest.raises(OSError, match="the disk is gone"):
        next(given)
    assert next(given, None) is None


@pytest.mark.parametrize("wrong", ["ids", "lookup"])
def test_an_error_of_a_lookup_reaches_the_step_that_needs_the_rows(wrong: str) -> None:
    _, embeddings = on_servers()
    own = [np.array([1]), np.array([99]), np.array([2])]

    def ids(each: Array) -> dict[str, Array]:
        if wrong == "ids" and each[0] == 99:
            raise ShapeMismatchError("row 99 of my own")
        return {"c": each}

    given = embeddings.look_ahead(own, ids, count=2)
    assert embeddings.lookup({"c": next(given)})["c"].shape == (1, 2)
    second = next(given)
    with pytest.raises(ShapeMismatchError, match="row 99 of"):
        embeddings.lookup({"c": second})
    assert embeddings.lookup({"c": next(given)})["c"].shape == (1, 2)


def test_batches_go_on_without_look_ahead_once_another_iterator_is_made() -> None:
    _, embeddings = on_servers()
    ids = [np.array([number]) for number in range(6)]
    first = embeddings.look_ahead(ids, lambda each: {"c": each}, count=2)
    seen = [next(first)[0]]
    assert [each[0] for each in embeddings.look_ahead(ids[:2], lambda each: {"c": each})] == [0, 1]
    for each in first:
        assert embeddings.lookup({"c": each})["c"].shape == (1, 2)
        seen.append(each[0])
    assert seen == list(range(6))


def test_what_is_looked_up_ahead_does_not_travel_with_closures() -> None:
    _, embeddings = on_servers()
    given = embeddings.look_ahead(batches(1), lambda batch: batch)
    assert copy.copy(embeddings)._ahead is None
    assert embeddings._ahead is given


def test_weights_leave_ids_out_ahead_as_well() -> None:
    _, embeddings = on_servers()
    ids, weights = {"c": np.array([[1, 2]])}, {"c": np.array([[1.0, 0.0]])}
    given: LookAhead[int] = embeddings.look_ahead([1], lambda _: (ids, weights))
    next(given)
    wanted = embeddings.lookup({"c": np.array([1])})["c"]
    assert embeddings._ahead is not None
    np.testing.assert_array_equal(embeddings.lookup(ids, weights)["c"], wanted)
    assert given._now.ahead is None  # taken


def test_what_cannot_be_looked_up_ahead_is_said() -> None:
    _, embeddings = on_servers(staleness_reads=2)
    with pytest.raises(ConfigurationError, match="table 'g' has staleness_reads, and look_ahead"):
        embeddings.look_ahead([], lambda batch: batch)
    for count in (0, 65):
        with pytest.raises(ValueError, match=f"between 1 and 64, got {count}"):
            embeddings.look_ahead([], lambda batch: batch, count=count)


def test_several_devices_look_up_their_own_ids(plain_process: None) -> None:
    rw.config.set_logical_cpu_devices(2)
    strategy = MirroredStrategy()
    with strategy.scope():
        features = [FeatureConfig("c", TableConfig("v", 2, 30))]
        embeddings = Embeddings(features, rw.optimizers.SGD(1.0))
    with pytest.raises(ConfigurationError, match="look_ahead with 2 devices"):
        embeddings.look_ahead([], lambda batch: batch)


def test_without_servers_rows_are_read_in_the_step() -> None:
    features = [FeatureConfig("c", TableConfig("v", 2, 30, rw.Initializer("ones")))]
    embeddings = Embeddings(features, rw.optimizers.SGD(1.0))
    for batch in embeddings.look_ahead([{"c": np.array([1])}] * 2, lambda batch: batch):
        rows = embeddings.lookup(batch)
        rows.apply_gradients({"c": np.ones((1, 2), np.float32)})
    assert embeddings.lookup({"c": np.array([1])})["c"].tolist() == [[-1, -1]]
