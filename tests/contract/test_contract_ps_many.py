"""Several ps, several machines, many workers, and what they leave behind."""

import gc
import logging
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from helpers.faulty_stream import Direction, Faults
from helpers.ps_faults import DIRECTIONS, LARGE, SMALL, Adder, Start, in_thread
from helpers.ps_peers import (
    ADD,
    F32,
    REMOTE,
    SETTINGS,
    Worker,
    faults_on,
    get,
    put,
    vector,
)
from helpers.waiting import scaled, wait_until
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step, Write
from ropewalk.core.errors import (
    LimitExceededError,
    RopewalkError,
)
from ropewalk.core.task import Incarnation, TaskId


@pytest.mark.parametrize("kind", [kind for kind in REMOTE if kind != "shm"])
def test_large_pushes_to_several_ps_are_on_their_way_together(start: Start, kind: str) -> None:
    """Each waits at its payload's first byte until the other one is there, too."""
    meeting, variables = threading.Barrier(2), [vector(f"v{i}", 700_000) for i in range(2)]
    faults = [faults_on(kind) for _ in range(2)]
    peers = [start(kind, i).peer(faults=faults[i]) for i in range(2)]
    session = ParameterSession(peers, Incarnation(TaskId("worker", 0), 1), SETTINGS)
    session.connect()
    session.define(variables, {v.name: np.zeros(v.shape, F32) for v in variables}, create=True)
    for each in faults:
        each.stream.before_send = lambda count: count > 1024**2 and meeting.wait(scaled(10))
    push = [Write(ADD, {v.name: np.ones(v.shape, F32) for v in variables})]
    values = session.step(Step(push, [v.name for v in variables])).values
    assert all((values[v.name] == 1).all() for v in variables)
    assert not meeting.broken
    session.close()


@pytest.mark.parametrize("kind", ["tcp", "grpc"])
def test_on_a_network_large_steps_are_answered_while_they_arrive(start: Start, kind: str) -> None:
    """The last value is sent when the answer to the first one has come."""
    faults = Faults(remote=True)
    variables = [vector(f"v{i}", 300_000) for i in range(3)]
    adder = Adder(start(kind).worker(faults=faults), variables)
    adder.step()
    stream, sent = faults.stream, 0
    before = stream.received

    def before_send(count: int) -> None:
        nonlocal sent
        sent += count > 1024**2
        if sent == len(variables):
            wait_until(lambda: stream.received > before, 10, "an early answer")

    stream.before_send = before_send
    adder.step()
    assert sent == len(variables)


@pytest.mark.parametrize("kind", ["tcp", "grpc"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_early_answers_cut_in_the_middle_are_repeated(
    start: Start, kind: str, direction: Direction
) -> None:
    ps, faults = start(kind), Faults(remote=True)
    adder = Adder(ps.worker(faults=faults), LARGE)
    for share in range(10):
        faults.stream.cut(share * sum(each.num_bytes for each in LARGE) // 10, direction)
        adder.step()
    assert ps.store.counters().pushes == adder.count + 1


# -- many, and what they leave behind ----------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in REMOTE if kind != "shm"])
def test_clients_that_do_not_read_hold_up_nobody(start: Start, kind: str) -> None:
    ps, variables = start(kind), [vector(f"p{i}", 1_000_000) for i in range(4)]
    adder = Adder(ps.worker(0), variables)
    slow = [ps.worker(index) for index in (1, 2, 3)]
    before = ps.store.counters()
    unread = []
    for worker in slow:
        for _ in range(4):
            unread.append(worker.peer.step(worker.request((), adder.gets)))
            for _ in ("gather", "send"):
                next(unread[-1])
    pull = sum(each.num_bytes for each in variables)
    wait_until(
        lambda: ps.store.counters().bytes_out - before.bytes_out >= 3 * pull, 10, "their answers"
    )
    for _ in range(4):
        adder.step()
    # None of the unread pulls was answered whole; ours were, each counted when it was sent.
    wait_until(lambda: ps.store.counters().pulls - before.pulls >= 4, 10, "our pulls")
    assert ps.store.counters().pulls - before.pulls == 4
    for worker in slow:
        worker.peer.close()
    adder.step()


def held() -> tuple[int, int, int]:
    """Descriptors, threads and mappings of shared memory in this process."""
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().count("memfd:ropewalk")
    return len(os.listdir("/proc/self/fd")), threading.active_count(), mapped


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_many_reconnects_leave_nothing_behind(
    start: Start, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither descriptors, threads nor mappings, on both sides: they are this process."""
    # A record of an error would keep the frames that it passed, and their memory.
    caplog.set_level(logging.ERROR, "ropewalk")
    faults = faults_on(kind)
    adder = Adder(start(kind).worker(faults=faults), LARGE)

    def reconnect(times: int) -> None:
        for count in range(times):
            faults.stream.cut(count * 7, DIRECTIONS[count % 2])
            adder.step()
        faults.stream.cut(None)
        adder.step()

    reconnect(4)
    usual = held()
    reconnect(10)
    wait_until(
        lambda: all(now <= was + 2 for now, was in zip(held(), usual, strict=True)),
        10, f"{held()} to become {usual}",
    )  # fmt: skip


def test_a_tunnel_that_broke_is_freed_without_a_collection_of_garbage(start: Start) -> None:
    """gRPC's server refuses calls of a connection on which it counts 64, also broken ones."""
    faults = faults_on("grpc")
    adder = Adder(start("grpc").worker(faults=faults), SMALL)
    gc.disable()
    try:
        for _ in range(100):
            faults.stream.cut(0)
            adder.step()
    finally:
        gc.enable()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_ten_thousand_reconnects_cost_no_memory(
    start: Start, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each cut comes at another byte; after the first tenth nothing grows any more."""
    if kind == "local":
        pytest.skip("nothing is connected")
    caplog.set_level(logging.CRITICAL, "ropewalk")
    faults = faults_on(kind)
    adder = Adder(start(kind).worker(faults=faults), SMALL)
    adder.step()
    sent, received = faults.stream.sent, faults.stream.received
    adder.step()
    sizes = faults.stream.sent - sent, faults.stream.received - received

    def reconnect(times: int) -> None:
        for count in range(times):
            faults.stream.cut(count * 7 % sizes[count % 2], DIRECTIONS[count % 2])
            adder.step()
            assert len(faults.streams) > 1, f"no connection broke, {count}, {sizes}"
            del faults.streams[:-1]
        faults.stream.cut(None)
        adder.step()

    reconnect(1_000)
    usual, before = held(), resident_bytes()
    reconnect(9_000)
    wait_until(
        lambda: all(now <= was + 2 for now, was in zip(held(), usual, strict=True)),
        10, f"{held()} to become {usual}",
    )  # fmt: skip
    assert resident_bytes() - before < 8 * 1024**2


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_thousand_idle_workers_slow_nobody_and_leave_nothing_behind(
    start: Start, kind: str
) -> None:
    count = 1_000 if kind != "grpc" else 100  # each tunnel has threads of its own
    if kind == "local":
        pytest.skip("nothing is connected")
    ps = start(kind, max_sessions=count, request_timeout_s=60.0)
    adder = Adder(ps.worker(0), SMALL)
    adder.step()
    files, threads, mappings = held()
    kept = count if kind == "grpc" else 0  # the pool of gRPC's server keeps its threads
    usual, once = (files + 4, threads + 4 + kept, mappings), 0
    for turn in range(3):
        idle = [ps.worker(index, turn + 1) for index in range(1, count)]
        for _ in range(100):
            adder.step()
        while idle:
            ps.leave(idle.pop())
        once = once or resident_bytes()
    wait_until(
        lambda: all(now <= was for now, was in zip(held(), usual, strict=True)),
        30, f"{held()} to become {usual}",
    )  # fmt: skip
    assert resident_bytes() - once < 8 * 1024**2


def test_two_dozen_workers_at_once_add_up_and_one_more_is_refused(start: Start, kind: str) -> None:
    count, steps = 24, 4
    variables = [vector("small", 50), vector("large", 20_000)]
    ps = start(kind, max_sessions=count, request_timeout_s=60.0)
    first = ps.worker(0)
    first.create(*variables)
    workers = [first, *(ps.worker(index) for index in range(1, count))]
    with pytest.raises(LimitExceededError, match=r"max_sessions=24") as caught:
        ps.worker(count)
    assert caught.value.fields["limit"] == "max_sessions"
    failures: list[BaseException] = []

    def work(worker: Worker, value: int) -> None:
        worker.define(*variables)
        for _ in range(steps):
            worker.step([put(v, ADD, value) for v in variables], [get(v) for v in variables])

    threads = [
        in_thread(lambda each=each, value=i + 1: work(each, value), failures)  # type: ignore[misc]
        for i, each in enumerate(workers)
    ]
    for thread in threads:
        thread.join(scaled(60))
    assert failures == []
    for value in first.pull(*(get(each) for each in variables)):
        np.testing.assert_array_equal(value, steps * count * (count + 1) / 2)
    workers[1].peer.close()

    def room() -> bool:
        try:
            ps.worker(count)
        except RopewalkError:
            return False
        return True

    wait_until(room, 10, "room for another worker")
