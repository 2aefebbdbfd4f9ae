"""Whatever breaks between a worker and a ps, each push is applied once, over every connection."""

import gc
import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.faulty_stream import Direction, Faults, FaultyStream
from helpers.ps_peers import (
    ADD,
    CONNECTIONS,
    F32,
    PS,
    REMOTE,
    SETTINGS,
    Ps,
    Worker,
    faults_on,
    get,
    put,
    remote,
    vector,
    worker_settings,
)
from helpers.waiting import scaled, wait_until
from windlass.client.ps.parameter_session import ParameterSession
from windlass.client.ps.push_plans import PushPayload
from windlass.core.arrays import Array, as_bytes
from windlass.core.errors import (
    FencedError,
    JoinTimeoutError,
    LimitExceededError,
    PeerLostError,
    SequenceError,
    WindlassError,
)
from windlass.core.gather_buffer import GatherBuffer
from windlass.core.steps import StepRequest
from windlass.core.task import Incarnation, TaskId
from windlass.server.ps.server import PsServer
from windlass.server.ps.store import Store

SMALL = [vector("a"), vector("b", 5)]
# Blocks of their own, and one that two share: together more than is overlapped.
LARGE = [
    vector("c", 300_000),
    vector("d", 150_000),
    vector("e", 7),
    vector("f", 300_000),
    vector("g"),
]
STEPS = pytest.mark.parametrize("variables", [SMALL, LARGE], ids=["small", "large"])
DIRECTIONS: tuple[Direction, ...] = ("send", "receive")


@pytest.fixture(params=REMOTE)
def kind(request: pytest.FixtureRequest) -> str:
    """A connection that can break."""
    return str(request.param)


@pytest.fixture
def start() -> Iterator[Callable[..., Ps]]:
    """``start(kind, index=0, **settings)``: a ps."""
    started: list[Ps] = []

    def make(kind: str, index: int = 0, **changes: Any) -> Ps:
        started.append(Ps(kind, index, **changes))
        return started[-1]

    yield make
    for ps in started:
        ps.close()


Start = Callable[..., Ps]


class Adder:
    """A worker that adds one to every variable in each step, and checks what came back."""

    def __init__(self, worker: Worker, variables: list[Any]) -> None:
        self.worker = worker
        self.puts = [put(each, ADD, 1) for each in variables]
        self.gets = [get(each) for each in variables]
        self.count = 0
        worker.create(*variables)

    def step(self, **fields: Any) -> None:
        values = self.worker.step(self.puts, self.gets, step_increment=1, **fields)
        self.count += 1
        self.check(values)
        assert self.worker.result.global_step == self.count

    def check(self, values: list[Array]) -> None:
        for value in values:
            assert (value.min(), value.max()) == (self.count, self.count)


# -- connections that break --------------------------------------------------------------------


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
    places = {0, 1, 4, 11, 12, 13, 30, 60, 100, *(total * i // 9 for i in range(1, 9)), total - 1}
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
    max_examples=15,
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
        worker.peer.prepare(worker.request(puts, gets, detached=detached))
        worker.peer.send()
        if detached:
            for each in puts:
                each.values.fill(np.nan)
        worker.peer.receive([as_bytes(array) for array in out])
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
        thread = _in_thread(adder.step, failures)
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
        thread = _in_thread(adder.step, failures)
        wait_until(lambda: ps.store.counters().bytes_in > before, 10, "the step to arrive")
        adder.worker.peer.abort(error)
        thread.join(scaled(20))
    assert failures == [error]


def _in_thread(work: Callable[[], object], failures: list[BaseException]) -> threading.Thread:
    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failures.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    return thread


# -- ps that are gone, or new ------------------------------------------------------------------


def test_a_ps_that_was_replaced_is_told_from_the_one_that_was_there(
    start: Start, kind: str
) -> None:
    first = start(kind)
    adder = Adder(first.worker(), SMALL)
    assert first.server is not None
    first.server.stop(grace_s=0)
    second = PsServer(PS, SETTINGS)
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


# -- memory that cannot be shared --------------------------------------------------------------

shm = pytest.mark.skipif("shm" not in REMOTE, reason="no shared memory here")


@contextmanager
def small_files() -> Iterator[None]:
    """No new segment is made: this process may not have files of its size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512 * 1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@shm
@pytest.mark.parametrize("detached", [False, True], ids=["attached", "detached"])
@pytest.mark.parametrize("why", ["ps-cannot-map", "worker-has-none"])
@STEPS
def test_without_a_segment_payloads_travel_and_cost_the_same(
    start: Start, variables: list[Any], why: str, detached: bool
) -> None:
    spoilt = why == "ps-cannot-map"
    ps, usual = start("shm"), start("unix")
    faults = Faults(files="spoil" if spoilt else "pass")
    for each in (ps, usual):
        each.worker(9).define(*variables)
    with nullcontext() if spoilt else small_files():
        adder = Adder(ps.worker(faults=faults), variables)
        for _ in range(3):
            adder.step(detached=detached)
    if variables is LARGE:
        reason = "a shared segment" if spoilt else "no segment of 3000040 bytes: File too large"
        assert adder.worker.peer.description.startswith(f"unix ({reason}")
        assert not adder.worker.peer.shares_memory
    other = Adder(usual.worker(), variables)
    for _ in range(3):
        other.step(detached=detached)

    def accounts(store: Store) -> list[int]:
        found = store.counters()
        return [
            found.pushes, found.duplicates, found.refused, found.pulls,
            found.bytes_in, found.bytes_out,
        ]  # fmt: skip

    wait_until(lambda: accounts(ps.store) == accounts(usual.store), 5, "the same accounts")


@shm
def test_a_ps_without_shared_memory_is_reached_over_tcp(start: Start) -> None:
    ps = start("shm", shared_memory=False)
    who = Incarnation(TaskId("worker", 0), 1)
    peer = remote("shm", ps.address, who, SETTINGS)
    peer.connect(5)
    Adder(Worker(peer), LARGE).step()
    assert peer.description == "tcp (the peer shares no memory)"
    peer.close()


@shm
def test_a_small_limit_on_steps_does_not_keep_them_out_of_shared_memory(start: Start) -> None:
    adder = Adder(start("shm", max_step_bytes=512 * 1024).worker(), [vector("w", 50_000)])
    adder.step()
    assert adder.worker.peer.description == "shm"


@shm
def test_a_block_that_is_always_being_written_is_asked_for_through_the_stream(start: Start) -> None:
    ps = start("shm")
    adder = Adder(ps.worker(), LARGE)
    [block] = [b for b in ps.store.table.blocks() if b.shards[0].variable.name == "c"]
    block.memory.sequence[0] += 1  # as if a writer never ended
    adder.check(adder.worker.pull(*adder.gets))
    block.memory.sequence[0] += 1
    assert adder.worker.peer.description == "shm"  # the next time it looks again
    adder.step()


def test_a_reader_never_sees_half_a_write(start: Start, kind: str) -> None:
    ps = start(kind)
    writer, reader, gets = Adder(ps.worker(0), LARGE), ps.worker(1), [get(each) for each in LARGE]
    reader.define(*LARGE)
    failures: list[BaseException] = []

    def write() -> None:
        for _ in range(40):
            writer.step()

    thread = _in_thread(write, failures)
    last = [0.0] * len(gets)
    while thread.is_alive():
        values = reader.pull(*gets)
        for i, value in enumerate(values):
            assert value.min() == value.max(), "two moments in one value"
            assert value[0] >= last[i]
            last[i] = float(value[0])
    assert failures == []
    writer.check(reader.pull(*gets))


# -- payloads that cannot be made --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watched(GatherBuffer):
    """Tells when it is gathered or written."""

    act: Callable[[], object] = lambda: None

    def write(self, out: Array) -> None:
        self.act()
        GatherBuffer.write(self, out)

    def buffer(self) -> memoryview:
        self.act()
        return GatherBuffer.buffer(self)


def at_write(request: StepRequest, number: int, act: Callable[[], object]) -> StepRequest:
    """The same step, that acts when it comes to its so manyth value."""
    values = list(request.values)
    old = values[number]
    assert isinstance(old, GatherBuffer)
    values[number] = Watched(old.arrays, old.dtype, old.num_bytes, act=act)
    return replace(request, values=values)


def fail_with(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("kind", CONNECTIONS)
@STEPS
def test_of_a_push_that_cannot_be_gathered_nothing_is_applied(
    start: Start, kind: str, variables: list[Any]
) -> None:
    """There is no memory for it, after others were gathered; the session goes on."""
    ps = start(kind)
    adder = Adder(ps.worker(), variables)
    adder.step()
    for number in (0, len(variables) - 1):
        request = adder.worker.request(adder.puts)
        values = list(request.values)
        whole = values[number]
        assert isinstance(whole, GatherBuffer)
        arrays = [whole.arrays[0][:2], whole.arrays[0][2:]]
        values[number] = replace(whole, arrays=arrays)
        request = at_write(replace(request, values=values), number, fail_with(MemoryError()))

        def push(request: StepRequest = request) -> None:
            adder.worker.peer.prepare(request)
            adder.worker.peer.send()
            adder.worker.peer.receive(())

        with pytest.raises(MemoryError):
            push()
        adder.check(adder.worker.pull(*adder.gets))
        adder.step()
    assert ps.store.counters().pushes == adder.count + 1


@shm
@pytest.mark.parametrize("number", range(len(LARGE)), ids=lambda n: f"value-{n}")
@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_a_worker_that_fails_while_it_writes_an_overlapped_push_is_not_waited_for(
    start: Start, number: int, error: BaseException
) -> None:
    """Whole blocks of it are applied or not; the same push can be repeated, and is applied once."""
    ps = start("shm")
    adder, other = Adder(ps.worker(0), LARGE), ps.worker(1)
    adder.step()
    other.define(*LARGE)
    request = adder.worker.request(adder.puts, adder.gets, step_increment=1)
    adder.worker.peer.prepare(at_write(request, number, fail_with(error)))
    with pytest.raises(type(error)):
        adder.worker.peer.send()
    for value in other.pull(*adder.gets):
        assert value.min() == value.max()
    out = [each.room() for each in adder.gets]
    adder.worker.exchange(request, out)
    adder.count += 1
    adder.check(out)
    adder.step()


@shm
@pytest.mark.parametrize("number", range(len(LARGE)), ids=lambda n: f"value-{n}")
def test_a_connection_cut_while_an_overlapped_push_is_written(start: Start, number: int) -> None:
    faults = faults_on("shm")
    adder = Adder(start("shm").worker(faults=faults), LARGE)
    for _ in range(3):
        request = adder.worker.request(adder.puts, adder.gets, step_increment=1)
        out = [each.room() for each in adder.gets]
        # The stream of now: when the step is repeated, it is another one.
        adder.worker.exchange(at_write(request, number, faults.stream.cancel), out)
        adder.count += 1
        adder.check(out)


@pytest.mark.parametrize("generation", [1, 2], ids=["out-of-turn", "superseded"])
@STEPS
def test_a_push_refused_while_it_is_on_its_way_leaves_the_next_one_alone(
    start: Start, kind: str, variables: list[Any], generation: int
) -> None:
    ps = start(kind)
    adder = Adder(ps.worker(0), variables)
    adder.step()
    if generation == 1:
        for _ in range(3):
            with pytest.raises(SequenceError):
                adder.worker.push(*adder.puts, sequence=adder.worker.sequence + 5)
            adder.step()
    else:
        newer = ps.worker(0, generation=2)
        newer.define(*variables)
        for count in range(2, 5):
            with pytest.raises(FencedError, match="superseded"):
                adder.worker.push(*adder.puts)
            for value in newer.step(adder.puts, adder.gets):
                assert (value.min(), value.max()) == (count, count)


# -- several ps, several machines --------------------------------------------------------------


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
    push = PushPayload({v.name: np.ones(v.shape, F32) for v in variables}, ADD)
    values = session.step(push, [v.name for v in variables]).values
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
    for worker in slow:
        for _ in range(4):
            worker.peer.prepare(worker.request((), adder.gets))
            worker.peer.send()
    pull = sum(each.num_bytes for each in variables)
    wait_until(
        lambda: ps.store.counters().bytes_out - before.bytes_out >= 3 * pull, 10, "their answers"
    )
    for _ in range(4):
        adder.step()
    # None of the unread pulls was answered whole; ours were.
    assert ps.store.counters().pulls - before.pulls == 4
    for worker in slow:
        worker.peer.close()
    adder.step()


def test_many_reconnects_leave_nothing_behind(
    start: Start, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither descriptors, threads nor mappings, on both sides: they are this process."""
    # A record of an error would keep the frames that it passed, and their memory.
    caplog.set_level(logging.ERROR, "windlass")
    faults = faults_on(kind)
    adder = Adder(start(kind).worker(faults=faults), LARGE)

    def held() -> tuple[int, int, int]:
        gc.collect()
        mapped = Path("/proc/self/maps").read_text().count("memfd:windlass")
        return len(os.listdir("/proc/self/fd")), threading.active_count(), mapped

    def reconnect(times: int) -> None:
        for count in range(times):
            faults.stream.cut(count * 7, DIRECTIONS[count % 2])
            adder.step()
        faults.stream.cut(None)
        adder.step()

    reconnect(4)
    usual = held()
    reconnect(20)
    wait_until(
        lambda: all(now <= was + 2 for now, was in zip(held(), usual, strict=True)),
        10, f"{held()} to become {usual}",
    )  # fmt: skip


def test_sixty_four_workers_at_once_add_up_and_one_more_is_refused(start: Start, kind: str) -> None:
    count, steps = 64, 4
    variables = [vector("small", 50), vector("large", 20_000)]
    ps = start(kind, max_sessions=count, request_timeout_s=60.0)
    first = ps.worker(0)
    first.create(*variables)
    workers = [first, *(ps.worker(index) for index in range(1, count))]
    with pytest.raises(LimitExceededError, match=r"max_sessions=64") as caught:
        ps.worker(count)
    assert caught.value.fields["limit"] == "max_sessions"
    failures: list[BaseException] = []

    def work(worker: Worker, value: int) -> None:
        worker.define(*variables)
        for _ in range(steps):
            worker.step([put(v, ADD, value) for v in variables], [get(v) for v in variables])

    threads = [
        _in_thread(lambda each=each, value=i + 1: work(each, value), failures)  # type: ignore[misc]
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
        except WindlassError:
            return False
        return True

    wait_until(room, 10, "room for another worker")
