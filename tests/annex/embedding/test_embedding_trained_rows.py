"""Rows of growing tables that a worker keeps: its own gradients show, and nothing is too old."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk as rw
from helpers.tables import gradients
from ropewalk.annexes.embedding.features.config import FeatureConfig, TableConfig
from ropewalk.annexes.embedding.features.row_cache import (
    ROW_BYTES,
    TrainedLookup,
    TrainedRows,
    cache_of,
)
from ropewalk.annexes.embedding.features.tables import Embeddings
from ropewalk.annexes.embedding.keyed.row_store import counts_of
from ropewalk.client.ps.distinct_rows import DistinctRows
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step
from ropewalk.core.arrays.buffers import BufferPools
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.rules.definitions import ShardDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.distribute import ParameterServerStrategy
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.server.ps.store import Store

emb = rw.embedding
MANY = 1000  # updates that a row has had, so that few are missing


def a_cache(staleness: int, rows: int = 100) -> TrainedRows:
    table = TableConfig("t", 2, staleness_reads=staleness, cache_bytes=rows * (ROW_BYTES + 24))
    cache = cache_of(table, table.definition(rw.optimizers.SGD(1.0)))
    assert isinstance(cache, TrainedRows)
    return cache


def begin(cache: TrainedRows, ids: Any) -> TrainedLookup:
    lookup = cache.begin(np.asarray(ids, np.int64))
    assert isinstance(lookup, TrainedLookup)
    return lookup


def finish(cache: TrainedRows, lookup: TrainedLookup, version: float, count: int = MANY) -> Array:
    """Rows of a lookup: what is pulled has (key, version), and so many updates."""

    def rows(keys: Array) -> Array:
        return np.stack([keys, np.full(keys.size, version)], 1).astype(np.float32)

    keys = lookup.wanted_states
    states = np.concatenate([rows(keys), np.zeros((keys.size, 1), np.float32)], 1)
    counts_of(states)[:] = count
    return cache.finish_states(lookup, rows(lookup.wanted), states)[lookup.inverse]


def look_up(cache: TrainedRows, ids: Any, version: float, count: int = MANY) -> Array:
    return finish(cache, begin(cache, ids), version, count)


def push(cache: TrainedRows, keys: list[int], gradient: float = -1.0) -> None:
    ids = np.array(keys, np.int64)
    values = np.full((ids.size, 2), gradient, np.float32)
    rows = DistinctRows(ids, ids, None)
    cache.pushed(rows, rows.sums(values, BufferPools()), 0)


keys_of = st.one_of(st.integers(-6, 6), st.integers(-1000, 1000))


@settings(max_examples=20, deadline=None)
@given(
    lookups=st.lists(st.lists(keys_of, max_size=20), max_size=30),
    staleness=st.integers(1, 5),
    rows=st.integers(1, 12),
    count=st.integers(0, 30),
)
def test_no_row_is_older_than_the_bound(
    lookups: list[list[int]], staleness: int, rows: int, count: int
) -> None:
    cache = a_cache(staleness, rows)
    for version, ids in enumerate(lookups):
        found = look_up(cache, ids, version, count)
        push(cache, sorted(set(ids)), 0.0)
        assert found[:, 0].tolist() == ids
        assert (found[:, 1] >= version - staleness).all()
        assert len(cache) <= rows


def test_its_own_gradients_show_at_once_and_count_as_updates() -> None:
    cache = a_cache(3)
    assert look_up(cache, [7], 0).tolist() == [[7, 0]]
    for own in range(1, 4):
        push(cache, [7, 8])
        assert look_up(cache, [7], 99).tolist() == [[7 + own, own]]
    assert look_up(cache, [7], 99).tolist() == [[7, 99]]
    assert (cache.hits, cache.misses) == (3, 2)


def test_a_row_of_few_updates_is_pulled_again_before_others_have_made_many_more() -> None:
    """By what the last pulls have shown: others make as many updates as this worker."""
    cache = a_cache(1000)
    reads, count = [], 20
    look_up(cache, [7], 0, count)
    while count < 200:
        push(cache, [7], 0.0)
        lookup = begin(cache, [7])
        if lookup.whole.size:
            reads.append(int(cache._own[0]))
            count += 2 * reads[-1]
        finish(cache, lookup, 0, count)
    assert reads[0] == 3  # of 23 updates more than a tenth may be missing
    assert all(before <= after for before, after in pairwise(reads))
    assert reads[-1] >= 15


def test_a_worker_alone_pulls_no_row_again_for_want_of_updates() -> None:
    cache = a_cache(1000)
    look_up(cache, [7], 0, 1)
    pulled = 0
    for count in range(2, 100):
        push(cache, [7], 0.0)
        lookup = begin(cache, [7])
        pulled += lookup.whole.size
        finish(cache, lookup, 0, count)
    assert pulled < 15


def test_keys_without_a_row_are_not_kept() -> None:
    cache = a_cache(100)
    assert [look_up(cache, [7], version, 0)[0, 1] for version in range(3)] == [0, 1, 2]
    assert len(cache) == 0


def test_a_push_while_rows_are_pulled_keeps_them_out() -> None:
    cache = a_cache(100)
    lookup = begin(cache, [7])
    push(cache, [7])
    assert finish(cache, lookup, 0).tolist() == [[7, 0]]
    assert look_up(cache, [7], 1).tolist() == [[7, 1]]


def test_rows_that_may_lack_a_gradient_are_read_no_more() -> None:
    cache = a_cache(100)
    look_up(cache, [7], 0)
    cache.forget()
    assert look_up(cache, [7], 1).tolist() == [[7, 1]]
    assert look_up(cache, [7], 2).tolist() == [[7, 1]]


# -- on servers --------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": rw.optimizers.SGD(0.5),
    "momentum": rw.optimizers.SGD(0.5, momentum=0.9),
    "adagrad": rw.optimizers.Adagrad(0.5),
    "rowwise adagrad": emb.RowwiseAdagrad(0.5),
    "adam": rw.optimizers.Adam(0.5),
    "ftrl": rw.optimizers.Ftrl(0.5),
    "group ftrl": emb.GroupFtrl(0.5),
    "schedule": rw.optimizers.SGD(rw.optimizers.ExponentialDecay(0.5, 2, 0.5)),
}


def run(staleness: int, optimizer: Any, **options: Any) -> tuple[list[Array], Embeddings]:
    """What a worker alone reads in 20 steps."""
    strategy, rng, seen = ParameterServerStrategy(), np.random.default_rng(0), list[Array]()
    table = TableConfig("t", 3, optimizer=optimizer, staleness_reads=staleness, **options)
    with strategy.scope():
        embeddings = Embeddings([FeatureConfig("f", table)])

    def step(ids: Array) -> None:
        rows = embeddings.lookup({"f": ids})
        seen.append(rows["f"].copy())
        rows.apply_gradients({"f": rng.standard_normal(rows["f"].shape, np.float32)})

    for _ in range(20):
        strategy.run(step, args=(rng.zipf(1.5, 30) % 40,))
    return seen, embeddings


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_worker_alone_reads_the_same_bits_as_without_a_cache(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    plain, _ = run(0, optimizer)
    kept, embeddings = run(100, optimizer)
    for one, other in zip(plain, kept, strict=True):
        assert one.tobytes() == other.tobytes()
    (table,) = embeddings._tables.values()
    assert table.cache is not None
    assert table.cache.hits > 0.5 * (table.cache.hits + table.cache.misses)


OPTIONS: dict[str, dict[str, Any]] = {
    "clipped": {"row_norm": 0.5, "table_norm": 1.0},
    "sightings": {"admission": emb.Sightings(2)},
    "clipped without rows": {"table_norm": 1.0, "admission": emb.Sightings(2)},
    "clipped and full": {"table_norm": 1.0, "max_rows": 10, "evicts": None},
    "zeros": {"unknown": "zeros"},
    "float64": {"dtype": np.float64},
    "waiting": {"staleness_writes": 3},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_that_holds_whatever_the_table_does(name: str) -> None:
    plain, _ = run(0, OPTIMIZERS["adagrad"], **OPTIONS[name])
    kept, _ = run(100, OPTIMIZERS["adagrad"], **OPTIONS[name])
    for one, other in zip(plain, kept, strict=True):
        assert one.tobytes() == other.tobytes()


def test_what_another_worker_trains_shows_within_the_bound() -> None:
    table = TableConfig("t", 2, initializer=rw.Initializer("zeros"), staleness_reads=4)
    definition = table.definition(rw.optimizers.SGD(1.0))
    who = Incarnation(TaskId("chief", 0), 1)
    store = Store(TaskId("ps", 0), Settings())
    store.table.define([ShardDefinition(definition)], who)
    sessions = []
    for index in range(2):
        who = Incarnation(TaskId("worker", index), 1)
        peer = LocalPs(store.task, who, Settings(), store)
        sessions.append(ParameterSession([peer], who, Settings()))
        sessions[-1].connect()
        sessions[-1].define([definition], {}, create=False)
    mine, other = sessions
    cache = TrainedRows(definition, 4, 1 << 20)
    mine.rows.watch_pushes("t", cache)
    key = np.array([5], np.int64)

    def train(session: ParameterSession, gradient: float) -> None:
        session.step(Step(gradients(t=(key, np.full((1, 2), gradient, np.float32)))))

    def read() -> float:
        lookup = begin(cache, key)
        rows, states = mine.rows.lookup_states({"t": lookup.wanted}, {"t": lookup.wanted_states})
        return float(cache.finish_states(lookup, rows["t"][0], states["t"][0])[0, 0])

    for _ in range(50):
        train(mine, -1.0)
    assert read() == 50
    train(other, -100.0)
    train(mine, -1.0)
    assert [read() for _ in range(6)] == [51, 51, 51, 51, 151, 151]
