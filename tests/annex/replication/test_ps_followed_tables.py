"""A follower of growing tables has the same rows, to the last bit, whenever it joined."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.calls import Calls
from helpers.digests import digest_of
from helpers.replication.stores import FOLLOWER, Link, follow, run_together
from helpers.rules import Adam
from helpers.tables import DIM, gradients, on_disk, table
from ropewalk.annexes.embedding.keyed.block import KeyedBlock
from ropewalk.annexes.embedding.options import Sightings, SketchedSightings
from ropewalk.annexes.replication.server import copying as table_copying
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.engine.row_changes import ChangeMark
from ropewalk.server.ps.store import Store

pytestmark = pytest.mark.annex("embedding")

SETTINGS = Settings()
TABLES = {
    "all rows stay": table(rule=Adam(learning_rate=0.1), max_rows=50_000),
    "the least used go": table(rule=Adam(learning_rate=0.1), max_rows=2000, evicts="least_recent"),
    "the unseen go": table(max_rows=50_000, max_unseen_steps=20),
    "seen twice": table(max_rows=3000, admission=Sightings(2, 1000), evicts="least_frequent"),
    "sketched": table(
        max_rows=3000, admission=SketchedSightings(2, 1 << 12), evicts="least_recent"
    ),
    "on disk": on_disk(
        table(rule=Adam(learning_rate=0.1), max_rows=8000, evicts="least_recent"), 1 << 14
    ),
}


def session_of(store: Store, index: int) -> ParameterSession:
    who = Incarnation(TaskId("worker", index), 1)
    session = ParameterSession([LocalPs(store.task, who, SETTINGS, store)], who, SETTINGS)
    session.connect()
    return session


def push(session: ParameterSession, draw: np.random.Generator, num_keys: int = 200) -> None:
    keys = np.unique(draw.zipf(1.2, num_keys) % 10_000)
    values = draw.standard_normal((keys.size, DIM)).astype(np.float32)
    session.step(Step(gradients(t=(keys, values)), increment=1))


@pytest.mark.parametrize("definition", TABLES.values(), ids=TABLES)
def test_a_follower_that_joins_while_workers_push_has_the_same_rows(
    definition: VariableDefinition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(table_folder=str(tmp_path / "rows"))  # the follower has none
    monkeypatch.setattr(table_copying, "LOCKED_BYTES", 4096)
    monkeypatch.setattr(table_copying, "_FEW_BYTES", 1024)
    store = Store(TaskId("ps", 0), settings)
    sessions = [session_of(store, index) for index in range(2)]
    sessions[0].define([definition], {}, create=True)
    sessions[1].define([definition], {}, create=False)
    draws = [np.random.default_rng(index) for index in range(2)]
    for _ in range(40):
        push(sessions[0], draws[0])
    has_joined = threading.Event()

    def train(index: int) -> None:
        while not has_joined.is_set():
            push(sessions[index], draws[index])
        for _ in range(20):
            push(sessions[index], draws[index])

    joined: list[tuple[Store, Link]] = []

    def join() -> None:
        try:
            joined.append(follow(store))
        finally:
            has_joined.set()

    run_together(lambda: train(0), lambda: train(1), join)
    [(follower, link)] = joined
    link.finish()
    assert digest_of(follower) == digest_of(store)
    [mine], [theirs] = store.counters().tables, follower.counters().tables
    # Places may be others, and in memory.
    one, other = (replace(each, num_bytes=0, disk_bytes=0) for each in (mine, theirs))
    assert one == other


def test_a_table_that_is_defined_later_is_followed_from_the_start() -> None:
    store = Store(TaskId("ps", 0), SETTINGS)
    follower, link = follow(store)
    session = session_of(store, 0)
    session.define([TABLES["all rows stay"]], {}, create=True)
    draw = np.random.default_rng(0)
    for _ in range(5):
        push(session, draw)
    link.finish()
    assert digest_of(follower) == digest_of(store)
    assert len(follower.table.tables()) == 1


def test_rows_that_come_and_go_between_two_passes_are_copied_as_they_are_then(
    calls: Calls,
) -> None:
    """A row that is removed and made again while it is copied is the one that was made last."""
    store = Store(TaskId("ps", 0), SETTINGS)
    store.table.define([ShardDefinition(TABLES["all rows stay"])], Incarnation(FOLLOWER, 1))
    [block] = store.table.tables()
    assert isinstance(block, KeyedBlock)
    rows, keys = np.ones((100, DIM), np.float32), np.arange(100)
    block.table.push(keys, rows, 5)
    table = block.table
    work: list[Callable[[], object]] = [
        lambda: table.evict(keys[:50]),
        lambda: table.push(keys, rows, 9),
    ]
    changes = iter(work)

    def change(result: tuple[ChangeMark, int], *arguments: Any) -> tuple[ChangeMark, int]:
        mark = result[0]
        with block.lock:
            for each in changes:
                each()
                return mark, 1 << 30  # so that another pass follows
        return mark, 0

    calls.after(table_copying._Copy, "one_pass", change)
    follower, link = follow(store)
    link.finish()
    assert digest_of(follower) == digest_of(store)


def test_what_goes_is_not_remembered_once_a_follower_has_joined() -> None:
    """Nobody asks for it then, and in no budget is room for it."""
    store = Store(TaskId("ps", 0), SETTINGS)
    session = session_of(store, 0)
    session.define([TABLES["the least used go"]], {}, create=True)
    draw = np.random.default_rng(0)
    push(session, draw)
    _, link = follow(store)
    [block] = store.table.tables()
    assert isinstance(block, KeyedBlock)
    while not block.table.counts.evicted:
        push(session, draw, 3000)
    link.finish()
    assert (block.changes, block.table.changes) == ({}, None)


@pytest.mark.parametrize("times", [1, 100], ids=["once", "in each pass"])
def test_a_table_whose_changes_are_forgotten_meanwhile_is_copied_all_the_same(
    times: int, calls: Calls
) -> None:
    """They give way where memory is short: a pass begins anew, or all is of one moment."""
    store = Store(TaskId("ps", 0), SETTINGS)
    session = session_of(store, 0)
    session.define([TABLES["the least used go"]], {}, create=True)
    draw = np.random.default_rng(0)
    for _ in range(20):
        push(session, draw)
    [block] = store.table.tables()
    left = iter(range(times))

    def overtake(result: tuple[ChangeMark, int], *arguments: Any) -> tuple[ChangeMark, int]:
        for _ in range(3):
            push(session, draw, 3000)
        if next(left, None) is None:
            return result
        block.forget_changes()
        return result[0], 1 << 30

    calls.after(table_copying._Copy, "one_pass", overtake)
    follower, link = follow(store)
    push(session, draw)
    link.finish()
    assert digest_of(follower) == digest_of(store)
