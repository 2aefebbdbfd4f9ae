"""Memory that cannot be shared, and payloads that cannot be made."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest

from helpers.faulty_stream import Faults
from helpers.ps_faults import LARGE, STEPS, Adder, Start, in_thread, shm
from helpers.ps_peers import (
    CONNECTIONS,
    SETTINGS,
    Worker,
    faults_on,
    get,
    remote,
    vector,
)
from helpers.waiting import wait_until
from ropewalk.client.ps.step import answered
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.arrays.gather_buffer import GatherBuffer
from ropewalk.core.errors import (
    FencedError,
    SequenceError,
)
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import StepRequest
from ropewalk.server.ps.store import Store


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
        for _ in range(20):
            writer.step()

    thread = in_thread(write, failures)
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
            answered(adder.worker.peer.step(request))

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
    exchange = adder.worker.peer.step(at_write(request, number, fail_with(error)))
    next(exchange)
    with pytest.raises(type(error)):
        next(exchange)
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
