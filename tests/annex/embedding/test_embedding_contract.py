"""Growing tables over every connection: rows by key, in the steps that arrays travel in."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from helpers.ps_faults import DIRECTIONS, shm
from helpers.ps_peers import CONNECTIONS, REMOTE, Ps, faults_on, open_session
from helpers.tables import DIM, EXTREMES, Reference, gradients, on_disk, table
from ropewalk.annexes.embedding.keyed.row_store import counts_of
from ropewalk.client.ps.distinct_rows import DistinctRows, RowSums
from ropewalk.client.ps.step import Step
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.rules.definitions import VariableDefinition


@pytest.fixture(params=CONNECTIONS)
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Ps]]:
    folder = str(tmp_path / "rows")
    made = [Ps(request.param, index, table_folder=folder) for index in range(2)]
    yield made
    for ps in made:
        ps.close()


def test_steps_on_two_ps_are_those_of_numpy(servers: list[Ps]) -> None:
    on_disk_too = on_disk(table("u", max_rows=20_000))
    definitions = [table("t"), on_disk_too, VariableDefinition("w", (3,), np.dtype(np.float32))]
    session = open_session(*servers)
    session.define(definitions, {"w": np.zeros(3, np.float32)}, create=True)
    references = {name: Reference(table(name)) for name in ("t", "u")}
    rng = np.random.default_rng(0)
    for _ in range(5):
        keys = {name: rng.choice(EXTREMES, 40) for name in ("t", "u")}
        found = session.rows.lookup_rows(keys)
        for name, (rows, inverse) in found.items():
            assert inverse is not None
            np.testing.assert_allclose(rows[inverse], references[name].read(keys[name]), rtol=2e-6)
        values = {name: rng.standard_normal((40, DIM), np.float32) for name in keys}
        session.step(Step(gradients(**{n: (keys[n], values[n]) for n in keys}), ["w"]))
        for name, reference in references.items():
            reference.push(keys[name], values[name])
    session.close()
    counted = [table for ps in servers for table in ps.store.counters().tables]
    assert all(ps.store.table.held().disk > 0 for ps in servers)
    assert sum(each.rows for each in counted) == 2 * EXTREMES.size


class _Watcher:
    """Counts what it is shown."""

    pushes = doubts = 0

    def pushed(self, rows: DistinctRows, sums: RowSums, step: int) -> None:
        self.pushes += 1
        assert sums.array().shape == (rows.unique.size, DIM)

    def forget(self) -> None:
        self.doubts += 1


def test_rows_come_with_their_slots_and_counts_beside_plain_ones(servers: list[Ps]) -> None:
    session = open_session(*servers)
    session.define([table("t"), table("u")], {}, create=True)
    keys, ones = np.arange(40), np.ones((40, DIM), np.float32)
    for count in (10, 20):
        session.step(Step(gradients(t=(keys[:count], ones[:count]))))
    wanted = {"t": EXTREMES, "u": keys}
    rows, states = session.rows.lookup_states(wanted, {"t": keys})
    found, inverse = states["t"]
    assert inverse is not None
    found = found[inverse]
    for name, ids in wanted.items():
        own, order = rows[name]
        np.testing.assert_array_equal(own[order], session.rows.lookup(name, ids))
    np.testing.assert_array_equal(found[:, :DIM], session.rows.lookup("t", keys))
    assert counts_of(found).tolist() == [2] * 10 + [1] * 10 + [0] * 20
    for accumulators, sum_of_squares in ((found[:10], 2.1), (found[10:20], 1.1)):
        np.testing.assert_allclose(accumulators[:, DIM:-1], sum_of_squares, rtol=1e-6)
    session.close()


@pytest.mark.parametrize("kind", REMOTE)
def test_a_step_cut_at_any_byte_is_repeated_and_applied_once(kind: str) -> None:
    ps, faults = Ps(kind), faults_on(kind)
    session = open_session(ps, faults=faults)
    session.define([table()], {}, create=True)
    reference, rng = Reference(table()), np.random.default_rng(1)
    watcher = _Watcher()
    session.rows.watch_pushes("t", watcher)

    def step() -> None:
        keys = rng.choice(EXTREMES, 20)
        values = rng.standard_normal((20, DIM), np.float32)
        session.step(Step(gradients(t=(keys, values))))
        reference.push(keys, values)
        found = session.rows.lookup("t", EXTREMES)
        np.testing.assert_allclose(found, reference.read(EXTREMES), rtol=2e-6)

    step()
    before = faults.stream.sent, faults.stream.received
    step()
    moved = faults.stream.sent - before[0], faults.stream.received - before[1]
    for direction, total in zip(DIRECTIONS, moved, strict=True):
        for place in (0, 13, *(total * part // 6 for part in range(1, 6)), total - 1):
            faults.stream.cut(place, direction)
            step()
    assert ps.store.counters().pushes == 2 + 2 * 8
    assert watcher.pushes == 2 + 2 * 8
    assert watcher.doubts == ps.store.counters().duplicates > 0
    session.close()
    ps.close()


@pytest.mark.parametrize("kind", ["local", "tcp"])
def test_workers_share_rows_and_a_read_makes_none(kind: str) -> None:
    servers = [Ps(kind, index) for index in range(2)]
    chief, other = (open_session(*servers, index=index) for index in range(2))
    chief.define([table()], {}, create=True)
    other.define([table()], {}, create=False)
    start = other.rows.lookup("t", EXTREMES)
    ones = np.ones((EXTREMES.size, DIM), np.float32)
    assert sum(each.rows for ps in servers for each in ps.store.counters().tables) == 0
    for session in (chief, other):
        session.step(Step(gradients(t=(EXTREMES, ones))))
    assert (chief.rows.lookup("t", EXTREMES) < start).all()
    np.testing.assert_array_equal(
        chief.rows.lookup("t", EXTREMES), other.rows.lookup("t", EXTREMES)
    )
    chief.close()
    other.close()
    for ps in servers:
        ps.close()


@pytest.mark.parametrize("num_ps", [1, 3])
def test_any_number_of_ps_has_the_same_rows(num_ps: int) -> None:
    def train(count: int) -> Array:
        servers = [Ps("local", index) for index in range(count)]
        session = open_session(*servers)
        session.define([table()], {}, create=True)
        rng = np.random.default_rng(2)
        for _ in range(4):
            keys = rng.integers(-50, 50, 100)
            session.step(Step(gradients(t=(keys, rng.standard_normal((100, DIM), np.float32)))))
        return session.rows.lookup("t", np.arange(-60, 60))

    np.testing.assert_array_equal(train(num_ps), train(2))


def test_tables_that_are_small_among_others_are_whole_on_one_ps() -> None:
    small = [table(f"small {i}") for i in range(9)]
    definitions = [*small, table("large", max_rows=100_000)]
    servers = [Ps("local", index) for index in range(2)]
    session = open_session(*servers)
    session.define(definitions, {}, create=True)
    other = open_session(*servers, index=1)
    other.define(definitions, {}, create=False)
    session.define(definitions, {}, create=True)  # as a chief that starts again
    for each in (session, other):
        shards = {d.name: each.variables.shards(d.name) for d in definitions}
        assert [ps for ps, _ in shards.pop("large")] == [0, 1]
        places = [ps for [(ps, shard)] in shards.values() if shard.num_parts == 1]
        assert sorted([places.count(0), places.count(1)]) == [4, 5]
    rng = np.random.default_rng(3)
    references = {each.name: Reference(each) for each in definitions}
    for worker in (session, other, session):
        keys = {name: rng.choice(EXTREMES, 30) for name in references}
        found = worker.rows.lookup_rows(keys)
        values = {name: rng.standard_normal((30, DIM), np.float32) for name in keys}
        for name, (rows, inverse) in found.items():
            own = rows if inverse is None else rows[inverse]
            np.testing.assert_allclose(own, references[name].read(keys[name]), rtol=2e-6)
            references[name].push(keys[name], values[name])
        worker.step(Step(gradients(**{name: (keys[name], values[name]) for name in keys})))


@shm
def test_rows_of_a_table_come_in_the_worker_s_segment() -> None:
    ps, faults = Ps("shm"), faults_on("shm")
    session = open_session(ps, faults=faults)
    dense = VariableDefinition("w", (5000, DIM), np.dtype(np.float32))
    session.define(
        [table(max_rows=40_000), dense], {"w": np.ones((5000, DIM), np.float32)}, create=True
    )
    rng = np.random.default_rng(3)
    keys = rng.integers(-(2**62), 2**62, 20_000)
    values = rng.standard_normal((keys.size, DIM), np.float32)
    session.step(Step(gradients(t=(keys, values))))
    before = faults.stream.received
    found = session.rows.lookup_rows({"t": keys, "w": np.arange(4000)})
    assert faults.stream.received - before < 200
    reference = Reference(table(max_rows=40_000))
    reference.push(keys, values)
    rows, inverse = found["t"]
    each = rows if inverse is None else rows[inverse]
    np.testing.assert_allclose(each, reference.read(keys), rtol=2e-6)
    assert (found["w"][0] == 1).all()
    kept = rows.copy()
    session.step(Step(gradients(t=(keys, values))))  # in the same segment
    np.testing.assert_array_equal(rows, kept)
    session.close()
    ps.close()


@shm
def test_rows_that_no_segment_has_room_for_follow_the_answer() -> None:
    ps = Ps("shm", max_step_bytes=1_100_000)
    session = open_session(ps)
    session.define([table()], {}, create=True)
    keys = np.arange(46_500)  # with 16 bytes for each row they have 1,116,000 bytes
    rows, _ = session.rows.lookup_rows({"t": keys})["t"]
    np.testing.assert_array_equal(rows[:5], session.rows.lookup("t", keys[:5]))
    assert session.peers[0].shares_memory
    session.close()
    ps.close()
