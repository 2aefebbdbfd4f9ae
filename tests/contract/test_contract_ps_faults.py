"""Whatever breaks between a worker and a ps, each push is applied once, over every connection."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.faulty_stream import Direction, Faults, FaultyStream
from helpers.ps_faults import DIRECTIONS, LARGE, SMALL, STEPS, Adder, Start, in_thread
from helpers.ps_peers import (
    ADD,
    PS,
    REMOTE,
    Ps,
    faults_on,
    get,
    put,
    remote,
    vector,
    worker_settings,
)
from helpers.waiting import scaled, wait_until
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import answered
from ropewalk.core.arrays.dtypes import as_bytes
from ropewalk.core.errors import (
    FencedError,
    JoinTimeoutError,
    PeerLostError,
)
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import PullTarget
from ropewalk.server.ps.server import PsServer


@STEPS
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_step_cut_at_any_byte_is_repeated_and_applied_once(
    start: Start, kind: str, variables: list[Any], direction: Direction
) -> None:
    ps, faults = start(kind), faults_on(kind)
    adder = Adder(ps.worker(faults=faults), variables)
    adder.step()  # its layouts are known from here on
    before = (faults.stream.sent, faults.stream.received)
    adder.step()
    moved = (faults.stream.sent - before[0], faults.stream.received - before[1])
    total = moved[DIRECTIONS.index(direction)]
    # In and around the lengths and the message in front, then anywhere, then the last byte.
    places = {0, 4, 11, 12, 13, 60, total // 3, total * 3 // 4, total - 1}
    for place in sorted(place for place in places if 0 <= place < total):
        faults.stream.cut(place, direction)
        streams = len(faults.streams)
        adder.step()
        assert len(faults.streams) > streams, f"no cut at {place}"
        adder.step()
    adder.check(adder.worker.pull(*adder.gets))
    assert ps.store.counters().pushes == adder.count + 1


@settings(
    deadline=None,
    max_examples=4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    cuts=st.lists(
        st.tuples(st.integers(0, 3000) | st.integers(0, 4_000_000), st.sampled_from(DIRECTIONS)),
        min_size=1,
        max_size=4,
    )
)
def test_connections_cut_again_and_again_also_while_they_greet(
    shared: dict[str, Ps], kind: str, cuts: list[tuple[int, Direction]]
) -> None:
    left = list(cuts)
    ps = shared[kind]
    armed = threading.Event()

    def plan(stream: FaultyStream, _number: int) -> None:
        if armed.is_set() and left:
            stream.cut(*left.pop())

    faults = Faults(files="refuse" if kind == "unix" else "pass", plan=plan)
    first = ps.store.counters().pushes
    generation = first + 1  # more than the last example's
    worker = ps.worker(0, generation, faults=faults)
    adder = Adder(worker, LARGE)
    global_step = worker.result.global_step
    armed.set()
    faults.stream.cut(*left.pop())
    for count in range(1, 4):
        values = worker.step(adder.puts, adder.gets, step_increment=1)
        assert {(float(v.min()), float(v.max())) for v in values} == {(count, count)}
        assert worker.result.global_step == global_step + count
    worker.peer.close()
    assert ps.store.counters().pushes == first + 4


@pytest.fixture(scope="module")
def shared() -> Iterator[dict[str, Ps]]:
    """A ps for each connection, for many examples."""
    made = {kind: Ps(kind) for kind in REMOTE}
    yield made
    for ps in made.values():
        ps.close()


@STEPS
def test_a_push_whose_answer_was_lost_is_a_duplicate(
    start: Start, kind: str, variables: list[Any]
) -> None:
    ps, faults = start(kind), faults_on(kind)
    adder = Adder(ps.worker(faults=faults), variables)
    adder.step()
    for count in range(1, 4):
        faults.stream.cut(0, "receive")
        adder.step()
        assert ps.store.counters().pushes == adder.count + 1
        # A tunnel answers a large step early, and the repeat may overtake the rest.
        assert kind == "grpc" or ps.store.counters().duplicates == count


def test_a_session_that_is_idle_and_cut_is_opened_again(
    start: Start, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    faults = faults_on(kind)
    adder = Adder(start(kind).worker(faults=faults), SMALL)
    for _ in range(3):
        faults.stream.cancel()
        adder.step()
    assert "reconnecting" in caplog.text


@pytest.mark.parametrize("detached", [False, True], ids=["attached", "detached"])
def test_a_broken_step_is_repeated_with_what_it_was_made_of(
    start: Start, kind: str, detached: bool
) -> None:
    """A detached one has its own copy by then: the caller's arrays have changed."""
    faults = faults_on(kind)
    worker = start(kind).worker(faults=faults)
    variables = [vector("v", 700_000), vector("w", 100_000)]
    worker.create(*variables)
    for count in range(1, 4):
        puts = [put(each, ADD, 1) for each in variables]
        gets = [get(each) for each in variables]
        out = [each.room() for each in gets]
        faults.stream.cut(0, "send" if count == 2 else "receive")
        targets = PullTarget([as_bytes(array) for array in out])
        exchange = worker.peer.step(worker.request(puts, gets, detached=detached), targets)
        next(exchange)
        next(exchange)
        if detached:
            for each in puts:
                each.values.fill(np.nan)
        answered(exchange)
        worker.sequence += 1
        assert {(v.min(), v.max()) for v in out} == {(count, count)}


# -- peers that say nothing --------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_step_that_is_not_answered_in_time_is_repeated(
    start: Start, kind: str, direction: Direction
) -> None:
    ps, faults = start(kind), faults_on(kind)
    adder = Adder(ps.worker(faults=faults, request_timeout_s=1.0), SMALL)
    faults.stream.drop(direction)
    adder.step()
    assert ps.store.counters().pushes == 2
    assert ps.store.counters().duplicates == (direction == "receive")


def test_a_slow_connection_is_no_broken_one(start: Start, kind: str) -> None:
    faults = faults_on(kind)
    adder = Adder(start(kind).worker(faults=faults), LARGE)
    faults.stream.delay(0.005)
    streams = len(faults.streams)
    for _ in range(3):
        adder.step()
    assert len(faults.streams) == streams


def test_a_ps_that_is_stuck_is_lost_when_the_time_is_up(start: Start, kind: str) -> None:
    ps = start(kind, max_sessions=1)
    worker = ps.worker(request_timeout_s=0.3, reconnect_timeout_s=0.3)
    adder = Adder(worker, LARGE)
    block = ps.store.table.blocks()[1]
    with block.lock, pytest.raises(PeerLostError, match="/job:ps/task:0"):
        adder.step()
    # Its next incarnation has its place, though the ps was the only one's of one worker.
    again = ps.worker(0, generation=2)
    for value in again.pull(*adder.gets):  # as far as it had come
        assert value.min() == value.max()
        assert value[0] in (0, 1)


def test_a_worker_that_comes_back_while_its_last_step_is_at_work_has_its_place(
    start: Start, kind: str
) -> None:
    """The ps has not heard yet that the session it works for is dead."""
    ps = start(kind, max_sessions=1)
    adder = Adder(ps.worker(request_timeout_s=0.5, reconnect_timeout_s=20.0), LARGE)
    received, step = ps.store.counters().bytes_in, sum(each.num_bytes for each in LARGE)
    failures: list[BaseException] = []
    with ps.store.table.blocks()[1].lock:  # somebody else's push takes long
        thread = in_thread(adder.step, failures)
        wait_until(
            lambda: failures or ps.store.counters().bytes_in >= received + 2 * step,
            20, "the step and its repeat",
        )  # fmt: skip
    thread.join(scaled(20))
    assert failures == []
    assert adder.count == 1
    assert ps.store.counters().pushes == 2


@STEPS
def test_an_abort_ends_a_step_that_waits(start: Start, kind: str, variables: list[Any]) -> None:
    ps = start(kind, request_timeout_s=60.0)
    adder, failures = Adder(ps.worker(), variables), list[BaseException]()
    before = ps.store.counters().bytes_in
    error = PeerLostError("the chief is lost")
    with ps.store.table.blocks()[-1].lock:
        thread = in_thread(adder.step, failures)
        wait_until(lambda: ps.store.counters().bytes_in > before, 10, "the step to arrive")
        adder.worker.peer.abort(error)
        thread.join(scaled(20))
    assert failures == [error]


# -- ps that are gone, or new ------------------------------------------------------------------


def test_a_ps_that_was_replaced_is_told_from_the_one_that_was_there(
    start: Start, kind: str
) -> None:
    first = start(kind)
    adder = Adder(first.worker(), SMALL)
    assert first.server is not None
    first.server.stop(grace_s=0)
    second = PsServer(PS, first.settings)
    second.start(first.address)
    try:
        with pytest.raises(FencedError, match=r"task:0 restarted and lost its variables.*restart"):
            adder.step()
        assert second.store.counters().pushes == 0
    finally:
        second.stop(grace_s=0)


@pytest.mark.parametrize("where", ["between", "within"])
def test_a_ps_that_is_gone_is_lost_after_the_reconnect_timeout(
    start: Start, kind: str, where: str
) -> None:
    ps, faults = start(kind), faults_on(kind)
    adder = Adder(ps.worker(faults=faults, reconnect_timeout_s=0.5), LARGE)
    assert ps.server is not None
    stop = ps.server.stop
    if where == "within":
        faults.stream.before_send = lambda _count: stop(grace_s=0)
    else:
        stop(grace_s=0)
    began = time.monotonic()
    with pytest.raises(PeerLostError, match="/job:ps/task:0"):
        adder.step()
    assert time.monotonic() - began < scaled(8)


@pytest.mark.parametrize("listens", [False, True], ids=["nobody", "silent"])
@pytest.mark.parametrize("kind", ["tcp", "grpc"])
def test_a_ps_that_does_not_come_is_a_join_timeout_naming_it(kind: str, listens: bool) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: nobody else gets the port
        if listens:
            taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        who, ours = Incarnation(TaskId("worker", 0), 1), worker_settings(kind, join_timeout_s=1.0)
        session = ParameterSession([remote(kind, address, who, ours)], who, ours)
        with pytest.raises(JoinTimeoutError, match=r"waited 1 s \(join_timeout_s\)") as caught:
            session.connect()
        session.close()
    assert caught.value.fields["missing"] == "/job:ps/task:0"
    assert address in caught.value.message
