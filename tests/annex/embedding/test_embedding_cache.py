"""A worker's cache of rows: none is older than its bound, and what is read often stays."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk.annexes.embedding.features.config import FeatureConfig, TableConfig
from ropewalk.annexes.embedding.features.row_cache import ROW_BYTES, RowCache
from ropewalk.annexes.embedding.features.tables import Embeddings
from ropewalk.client.ps.step import Exchange
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import ConfigurationError, LimitExceededError
from ropewalk.core.wire.closure_pushes import ClosureRun
from ropewalk.core.wire.steps import PullTarget, StepRequest
from ropewalk.distribute import ParameterServerStrategy
from ropewalk.distribute.coordinator.shipping import pickle_for_workers

F32 = np.dtype(np.float32)
ROW = ROW_BYTES + 8


def a_cache(staleness: int, rows: int) -> RowCache:
    return RowCache("t", 2, F32, staleness, rows * ROW)


def look_up(cache: RowCache, ids: Any, version: int) -> tuple[Array, int]:
    """Rows of ids, (key, version of its pull) each; and how many were pulled."""
    lookup = cache.begin(np.asarray(ids, np.int64))
    pulled = np.stack([lookup.wanted, np.full(lookup.wanted.size, version)], 1).astype(np.float32)
    return cache.finish(lookup, pulled)[lookup.inverse], lookup.missing.size


keys = st.one_of(st.integers(-6, 6), st.integers(-1000, 1000))


@settings(max_examples=50, deadline=None)
@given(
    lookups=st.lists(st.lists(keys, max_size=20), max_size=30),
    staleness=st.integers(1, 5),
    rows=st.integers(1, 12),
)
def test_no_row_is_older_than_the_bound(
    lookups: list[list[int]], staleness: int, rows: int
) -> None:
    cache = a_cache(staleness, rows)
    for version, ids in enumerate(lookups):
        found, _ = look_up(cache, ids, version)
        assert found[:, 0].tolist() == ids
        assert (found[:, 1] >= version - staleness).all()
        assert len(cache) <= rows
        assert len(cache._index) == len(cache)


def test_a_row_is_read_as_often_as_the_bound_says_and_no_oftener() -> None:
    cache = a_cache(3, 10)
    assert [look_up(cache, [7, 7], version)[1] for version in range(9)] == [1, 0, 0, 0] * 2 + [1]
    assert (cache.hits, cache.misses) == (6, 3)


def test_rows_that_are_looked_up_often_stay() -> None:
    cache, rng = a_cache(1000, 20), np.random.default_rng(0)
    for version in range(100):
        look_up(cache, [*range(16), *rng.integers(1000, 10**6, 20)], version)
    assert look_up(cache, range(16), 100)[1] == 0


def test_rows_that_become_frequent_take_the_places_of_others() -> None:
    cache = a_cache(1000, 20)
    for version in range(10):
        look_up(cache, range(20), version)
    for version in range(10, 200):
        look_up(cache, range(100, 120), version)
    assert look_up(cache, range(100, 120), 200)[1] == 0
    assert len(cache) == 20


def test_a_lookup_that_began_earlier_does_not_bring_an_older_row() -> None:
    cache = a_cache(2, 10)
    early, late = cache.begin(np.array([1])), cache.begin(np.array([1]))
    cache.finish(late, np.full((1, 2), 9, np.float32))
    assert cache.finish(early, np.zeros((1, 2), np.float32)).tolist() == [[0, 0]]
    lookup = cache.begin(np.array([1]))
    assert cache.finish(lookup, np.empty((0, 2), np.float32)).tolist() == [[9, 9]]


def test_threads_share_a_cache() -> None:
    cache, wrong = a_cache(5, 50), list[int]()

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for version in range(50):
            ids = rng.zipf(1.3, 100) % 500
            found, _ = look_up(cache, ids, version)
            wrong.append(int((found[:, 0] != ids).sum()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 150
    assert sum(wrong) == 0


def on_servers(table: TableConfig) -> tuple[Any, Embeddings]:
    strategy = ParameterServerStrategy()
    with strategy.scope():
        embeddings = Embeddings([FeatureConfig("f", table)], rw.optimizers.SGD(1.0))
    return strategy, embeddings


def test_a_table_is_read_up_to_its_bound_of_lookups_ago() -> None:
    table = TableConfig("t", 2, 50, rw.Initializer("ones"), staleness_reads=2)
    strategy, embeddings = on_servers(table)
    ids = np.array([3, 4, 3])
    seen = []
    for _ in range(7):
        rows = embeddings.lookup({"f": ids})
        seen.append(rows["f"][:, 0].tolist())
        rows.apply_gradients({"f": np.ones((3, 2), np.float32)})
    # Rows of the first lookup are read three times; what was pushed meanwhile shows then.
    assert [row[0] for row in seen] == [1, 1, 1, -5, -5, -5, -11]
    assert [row[1] for row in seen] == [1, 1, 1, -2, -2, -2, -5]
    pulls = strategy.extended.runtime.session.peers[0].store.counters().pulls
    rows = embeddings.lookup({"f": ids})
    assert strategy.extended.runtime.session.peers[0].store.counters().pulls == pulls
    assert rows["f"].shape == (3, 2)
    samples = [s for collect in strategy.extended.runtime.measures for s in collect()]
    assert [(s.metric.name, s.value, s.labels) for s in samples] == [
        ("ropewalk_embedding_cached_rows_total", 10, ("t",)),
        ("ropewalk_embedding_pulled_rows_total", 6, ("t",)),
    ]


@pytest.mark.parametrize("vocabulary_size", [None, 50], ids=["growing", "dense"])
def test_closures_read_rows_as_they_are(vocabulary_size: int | None) -> None:
    strategy, embeddings = on_servers(TableConfig("t", 2, vocabulary_size, staleness_reads=2))
    sent = pickle_for_workers(embeddings, strategy)
    assert sent.num_bytes > 0
    (table,) = copy.copy(embeddings)._tables.values()
    assert table.cache is None
    (own,) = embeddings._tables.values()
    assert own.cache is not None


@pytest.mark.parametrize("rows", [1000, (1 << 16) + 1])
def test_all_that_is_kept_beside_rows_is_within_the_bound(rows: int) -> None:
    """A sketch has a power of two of counters: just above one they take most."""
    cache = a_cache(1, rows)
    look_up(cache, np.arange(rows), 0)
    arrays = (cache._values, cache._keys, cache._pulled_at, cache._uses._counts, cache._victims)
    taken = sum(array.nbytes for array in arrays) + cache._index.num_bytes
    assert len(cache) == rows
    assert taken <= cache.num_bytes <= rows * ROW


def test_without_a_bound_every_lookup_reads_rows_as_they_are() -> None:
    strategy, embeddings = on_servers(TableConfig("t", 2, 10, rw.Initializer("ones")))
    for step in range(3):
        rows = embeddings.lookup({"f": np.array([1])})
        assert rows["f"].tolist() == [[1 - step] * 2]
        rows.apply_gradients({"f": np.ones((1, 2), np.float32)})
    assert list(strategy.extended.runtime.measures) == []


@pytest.mark.parametrize("wrong", [{"staleness_reads": -1}, {"cache_bytes": 0}], ids=str)
def test_a_bound_that_is_none_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"table 't' has {next(iter(wrong))}="):
        TableConfig("t", 2, **wrong)


# -- gradients that wait -----------------------------------------------------------------------


def values_of(strategy: Any, key: int = 1) -> float:
    """The first element of a key's row as it is on the ps."""
    session = strategy.extended.runtime.session
    rows, _ = session.rows.lookup_rows({"t": np.array([key])})["t"]
    return float(rows[0, 0])


def waiting_table(steps: int, **options: Any) -> TableConfig:
    return TableConfig("t", 2, None, rw.Initializer("zeros"), staleness_writes=steps, **options)


def train(strategy: Any, embeddings: Embeddings, gradient: float = -1.0) -> None:
    def step() -> None:
        rows = embeddings.lookup({"f": np.array([1])})
        rows.apply_gradients({"f": np.full((1, 2), gradient, np.float32)})

    strategy.run(step)


@pytest.mark.parametrize("in_run", [True, False], ids=["in run", "outside"])
def test_gradients_wait_for_so_many_steps_and_travel_as_one(in_run: bool) -> None:
    strategy, embeddings = on_servers(waiting_table(2))
    seen = []
    for _ in range(7):
        if in_run:
            train(strategy, embeddings)
        else:
            rows = embeddings.lookup({"f": np.array([1])})
            rows.apply_gradients({"f": np.full((1, 2), -1, np.float32)})
        seen.append(values_of(strategy))
    assert seen == [0, 0, 3, 3, 3, 6, 6]
    table = strategy.extended.runtime.session.peers[0].store.table.tables()[0].table
    (tile,) = table.tiles()
    assert tile.counts.tolist() == [2]  # pushes
    assert strategy.global_step == 7
    embeddings.flush()
    assert values_of(strategy) == 7
    embeddings.flush()
    assert (values_of(strategy), strategy.global_step) == (7, 7)


@pytest.mark.parametrize("how", ["barrier", "end"])
def test_what_waits_is_pushed_before_others_rely_on_it(how: str) -> None:
    strategy, embeddings = on_servers(waiting_table(100))
    train(strategy, embeddings)
    if how == "barrier":
        strategy.extended.barrier(1)
    else:
        for leave in strategy.extended.runtime.at_end:
            leave()
    assert values_of(strategy) == 1


def test_what_cannot_be_pushed_at_the_end_is_said(caplog: pytest.LogCaptureFixture) -> None:
    strategy, embeddings = on_servers(waiting_table(100))
    train(strategy, embeddings)
    strategy.extended.runtime.session.abort(ConfigurationError("the ps is gone"))
    for leave in strategy.extended.runtime.at_end:
        leave()
    assert "staleness_writes) are lost: the ps is gone" in caplog.text


def test_what_waits_is_bounded_in_bytes() -> None:
    strategy, embeddings = on_servers(waiting_table(100, cache_bytes=40))
    for _ in range(3):
        train(strategy, embeddings)  # 16 bytes each
    assert values_of(strategy) == 3


@pytest.mark.parametrize("is_due", [True, False], ids=["due", "flushed"])
def test_a_push_that_cannot_be_sent_leaves_what_waits_as_it_was(
    is_due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is over max_step_bytes, or has another variable's gradient in a wrong shape."""
    strategy, embeddings = on_servers(waiting_table(2 if is_due else 100))
    train(strategy, embeddings)
    train(strategy, embeddings)
    peer = strategy.extended.runtime.session.peers[0]
    step: Callable[..., Exchange] = peer.step

    def refuse(request: StepRequest, target: PullTarget) -> Exchange:
        if request.push is not None:
            raise LimitExceededError("a step is over max_step_bytes")
        return step(request, target)

    with monkeypatch.context() as patch:
        patch.setattr(peer, "step", refuse)
        with pytest.raises(LimitExceededError):
            train(strategy, embeddings, -5.0) if is_due else embeddings.flush()
    train(strategy, embeddings)
    embeddings.flush()
    assert values_of(strategy) == 3


def test_a_step_that_fails_or_is_refused_leaves_what_waits_as_it_was() -> None:
    strategy, embeddings = on_servers(waiting_table(100))
    train(strategy, embeddings)

    def fails() -> None:
        rows = embeddings.lookup({"f": np.array([1])})
        rows.apply_gradients({"f": np.full((1, 2), -5, np.float32)})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        strategy.run(fails)
    train(strategy, embeddings, np.nan)
    embeddings.flush()
    assert values_of(strategy) == 1


def test_gradients_of_a_closure_travel_with_it() -> None:
    strategy, embeddings = on_servers(waiting_table(100))
    train(strategy, embeddings)
    with strategy.extended.runtime.session.in_closure(ClosureRun(1, 0, 1)):
        train(strategy, embeddings, -5.0)
    assert values_of(strategy) == 5
    embeddings.flush()
    assert values_of(strategy) == 6


def test_a_program_may_change_a_gradient_that_waits() -> None:
    strategy, embeddings = on_servers(waiting_table(100))
    gradient = np.full((1, 2), -1, np.float32)
    embeddings.lookup({"f": np.array([1])}).apply_gradients({"f": gradient})
    gradient[:] = 9
    embeddings.flush()
    assert values_of(strategy) == 1


@pytest.mark.parametrize("option", [{"staleness_writes": 1}, {"row_norm": 0.0}], ids=str)
def test_a_dense_table_has_no_options_of_growing_ones(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(option))}, which is for tables that"):
        TableConfig("t", 2, 10, **option)
