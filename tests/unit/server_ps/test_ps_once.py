"""Pushes that advance a row are applied once, whichever worker makes them, and all or nothing."""

import threading
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.faulty_stream import Faults, FaultyStream
from helpers.ps_peers import REMOTE, Ps, open_session
from helpers.sessions import Cluster, faulty, variable
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Advance, Step, Write
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import PeerLostError, RefusedError, RopewalkError
from ropewalk.core.wire.steps import Operation

I64 = np.dtype(np.int64)
ROWS = 5


def define(session: ParameterSession, *, create: bool = True) -> ParameterSession:
    """Define a counter and a large variable on all ps, and rows that pushes advance on each."""
    count = len(session.peers)
    definitions = {
        "count": variable("count", 2 * count, dtype=I64),
        "large": variable("large", 40_000 * count),
        "rows": variable("rows", ROWS * count, dtype=I64),
    }
    for name, definition in definitions.items():
        session.define(
            [definition],
            {name: np.zeros(definition.shape, definition.dtype)},
            create=create,
            partitioner=lambda shape, dtype: [count],
            placement=lambda sizes, loads, placed: list(range(count)),
        )
    return session


def push(session: ParameterSession, row: int, to: int, settled: tuple[int, int] = (0, 0)) -> None:
    """Add 1 to everything by a push that advances a row."""
    count = len(session.peers)
    ones = Write(
        Operation.ASSIGN_ADD,
        {"count": np.ones(2 * count, np.int64), "large": np.ones(40_000 * count, np.float32)},
    )
    session.step(Step([ones], increment=1, advance=Advance("rows", row, to, *settled)))


def read(session: ParameterSession, name: str) -> Array:
    """Read a variable."""
    return session.step(Step(reads=[name])).values[name]


@pytest.fixture
def cluster() -> Cluster:
    """Two ps."""
    return Cluster(2)


def workers(cluster: Cluster, number: int) -> list[ParameterSession]:
    """Sessions of workers."""
    return [define(cluster.session(index), create=index == 0) for index in range(number)]


def test_a_push_that_another_worker_has_made_is_not_applied_and_not_counted(
    cluster: Cluster,
) -> None:
    first, second = workers(cluster, 2)
    push(first, 3, 1)
    push(second, 3, 1)
    assert read(second, "count").tolist() == [1] * 4
    assert second.global_step == 1
    push(second, 3, 2)  # its own numbers go on
    push(first, 3, 2)
    push(first, 4, 1)
    assert read(first, "count").tolist() == [3] * 4
    assert first.global_step == 3
    assert read(first, "rows").reshape(2, ROWS).tolist() == [[0, 0, 0, 2, 1]] * 2


def test_a_step_that_only_one_ps_has_is_completed_by_another_worker(cluster: Cluster) -> None:
    first, second = workers(cluster, 2)
    faulty(first, 1).fail_send = PeerLostError("killed between two servers")
    with suppress(RopewalkError):
        push(first, 0, 1)
    assert read(second, "count").tolist() == [1, 1, 0, 0]
    push(second, 0, 1)
    assert read(second, "count").tolist() == [1] * 4
    assert not (read(second, "large") - 1).any()


def test_a_settled_row_is_raised_and_decides_nothing(cluster: Cluster) -> None:
    (session,) = workers(cluster, 1)
    push(session, 2, 7)
    push(session, 1, 4, settled=(2, 9))
    push(session, 3, 4, settled=(2, 9))
    push(session, 4, 1, settled=(2, 8))  # never lowered
    assert read(session, "count").tolist() == [4] * 4
    assert read(session, "rows").reshape(2, ROWS).tolist() == [[0, 4, 9, 4, 1]] * 2


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, ROWS - 1), st.integers(1, 4))))
def test_each_pair_of_row_and_number_is_applied_by_the_first_in_order(
    pushes: list[tuple[int, int, int]],
) -> None:
    made = workers(Cluster(2), 3)
    place, applied = [0] * ROWS, 0
    for worker, row, to in pushes:
        push(made[worker], row, to)
        applied += to > place[row]
        place[row] = max(place[row], to)
    assert read(made[0], "count").tolist() == [applied] * 4
    assert read(made[1], "rows").tolist() == place * 2


def test_of_workers_that_push_the_same_at_one_time_one_is_applied(cluster: Cluster) -> None:
    made = workers(cluster, 4)
    ready = threading.Barrier(len(made))

    def run(session: ParameterSession) -> None:
        for to in range(1, 40):
            ready.wait()
            push(session, 1, to)

    threads = [threading.Thread(target=run, args=(session,)) for session in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(made[0], "count").tolist() == [39] * 4
    assert not (read(made[0], "large") - 39).any()


@pytest.mark.parametrize(
    ("advance", "why"),
    [
        (Advance("rows", ROWS, 1), "row 5 of 'rows.*which has 5 here"),
        (Advance("rows", 0, 1, ROWS, 1), "row 5 of 'rows.*which has 5 here"),
        (Advance("large", 0, 1), "has no rows of one int64"),
        (Advance("rows", 0, 0), "its layout says otherwise"),
    ],
    ids=["row", "settled row", "floats", "zero"],
)
def test_what_cannot_be_advanced_is_refused_whole(
    cluster: Cluster, advance: Advance, why: str
) -> None:
    (session,) = workers(cluster, 1)
    ones = Write(Operation.ASSIGN_ADD, {"count": np.ones(4, np.int64)})
    with pytest.raises(RefusedError, match=why):
        session.step(Step([ones], advance=advance))
    assert not read(session, "count").any()


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[list[Ps]]:
    """Two ps behind connections."""
    made = [Ps(request.param, 0), Ps(request.param, 1)]
    yield made
    for each in made:
        each.close()


@pytest.mark.parametrize("servers", REMOTE, indirect=True)
def test_a_worker_that_is_lost_while_it_sends_leaves_nothing_half_done(servers: list[Ps]) -> None:
    """Its large variable is cut off on the way, behind a small one that has arrived whole."""
    kind, lost = servers[0].kind, threading.Event()
    second = define(open_session(*servers, index=1))

    def plan(stream: FaultyStream, _: int) -> None:
        if lost.is_set():
            stream.cut(0)

    faults = Faults(files="refuse" if kind == "unix" else "pass", plan=plan)
    first = define(open_session(*servers, faults=faults, reconnect_timeout_s=0.1), create=False)
    lost.set()
    for stream in faults.streams:
        stream.cut(30_000, "send")
    with suppress(RopewalkError):  # where memory is shared, all of it has arrived
        push(first, 0, 1)
    before = read(second, "count").reshape(2, 2)
    assert all(len(set(part)) == 1 for part in before.tolist())
    for part, large in zip(before, read(second, "large").reshape(2, -1), strict=True):
        assert np.all(large == part[0])
    push(second, 0, 1)
    assert read(second, "count").tolist() == [1] * 4
    assert not (read(second, "large") - 1).any()
