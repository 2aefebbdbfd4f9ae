"""Synchronous workers: every link carries frames whole and in order, and every survivor hears who is lost."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

from helpers.faulty_stream import Faults
from helpers.streams import open_descriptors, own_threads, result, start, stream_pairs
from helpers.waiting import scaled, wait_until
from windlass.cluster.resolved import ResolvedTask
from windlass.cluster.spec import ClusterSpec
from windlass.collectives.group import CollectiveGroup
from windlass.collectives.ring_frames import (
    HEAD_BYTES,
    MAX_PAYLOAD_BYTES,
    Call,
    Head,
    Kind,
    Receiver,
    RingMember,
    Sender,
)
from windlass.collectives.server import CollectiveServer
from windlass.collectives.slot_link import LINK_BYTES, SlotReceiver, SlotSender
from windlass.collectives.stream_link import StreamReceiver, StreamSender
from windlass.collectives.worker_client import SERVICE, WorkerClient
from windlass.core.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    JoinTimeoutError,
    PeerLostError,
    RefusedError,
    ShapeMismatchError,
    WindlassError,
)
from windlass.core.settings import Settings
from windlass.core.task import Incarnation, TaskId
from windlass.launch.processes import free_ports
from windlass.net.connection import Connection
from windlass.net.dial import Dialer, receive_message
from windlass.net.shared_memory import SharedSegment, unavailable
from windlass.net.stream import NEVER, ByteStream
from windlass.proto.v1 import session_pb2

Array = np.ndarray[Any, np.dtype[Any]]
Link = tuple[Sender, Receiver]
Work = Callable[[CollectiveGroup], Any]
Together = Callable[..., list[Any]]

pytestmark = pytest.mark.timeout(60)

NO_MEMORY = {"shared_memory": False}
# By rank: over shared memory, then to one that has none, then through gRPC.
KINDS: dict[str, list[dict[str, bool]]] = {
    "shm": [{}],
    "tcp": [NO_MEMORY],
    "grpc": [{"shared_memory": False, "tcp_sessions": False}],
    "mixed": [{}, {}, {"shared_memory": False, "tcp_sessions": False}, NO_MEMORY],
}
if unavailable():
    del KINDS["shm"], KINDS["mixed"]


# -- links -------------------------------------------------------------------------------------


@contextmanager
def links(kind: str) -> Iterator[Callable[[], Link]]:
    """Make links of a kind."""
    with stream_pairs("unix" if kind == "shm" else kind) as make_streams:

        def make() -> Link:
            left, right = (Connection(stream, 100) for stream in make_streams())
            if kind != "shm":
                return StreamSender(left), StreamReceiver(right)
            segment = SharedSegment.create(LINK_BYTES)
            left.send_with_descriptor(b"segment", segment.descriptor)
            right.receive()
            theirs = SharedSegment.receive(right.stream.take_descriptor(), segment.num_bytes)
            for each in (segment, theirs):
                each.close()
            return SlotSender(left, segment), SlotReceiver(right, theirs)

        yield make


@pytest.fixture(scope="module", params=["shm", "unix", "tcp", "tunnel"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[], Link]]:
    with links(request.param) as make:
        yield make


@pytest.fixture
def link(make: Callable[[], Link]) -> Iterator[Link]:
    sender, receiver = make()
    with closing(sender), closing(receiver):
        yield sender, receiver


def head_of(number: int, length: int) -> bytes:
    return Head(number, 0, length, Kind.DATA, Call.ALL_REDUCE, 0).pack()


def noise(size: int) -> Array:
    return np.random.default_rng(size).integers(0, 255, size, np.uint8)


def send_all(sender: Sender, sizes: list[int]) -> None:
    """Through one array, which changes when everything in it was sent."""
    memory = np.empty(MAX_PAYLOAD_BYTES, np.uint8)
    for number, size in enumerate(sizes):
        memory[:size] = noise(size)
        sender.send(head_of(number, size), memory[:size], 20)
        sender.flush(20)
        memory[:] = 255


def check_received(receiver: Receiver, sizes: list[int]) -> None:
    for number, size in enumerate(sizes):
        frame = receiver.receive(20)
        assert frame is not None
        assert frame[0] == head_of(number, size)
        np.testing.assert_array_equal(frame[1], noise(size))
        receiver.release()


def fill(sender: Sender) -> int:
    """Send until nothing more is taken; how many frames that were."""
    payload = noise(MAX_PAYLOAD_BYTES)
    for number in range(100):
        try:
            sender.send(head_of(number, MAX_PAYLOAD_BYTES), payload, 0.05)
        except TimeoutError:
            return number
    return 100


@profile(max_examples=20)
@given(st.lists(st.integers(0, 3000) | st.integers(0, MAX_PAYLOAD_BYTES), max_size=8))
def test_frames_of_any_size_arrive_in_order(make: Callable[[], Link], sizes: list[int]) -> None:
    sender, receiver = make()
    with closing(receiver), closing(sender):
        sending = start(partial(send_all, sender, sizes))
        check_received(receiver, sizes)
        result(sending, 20)


def test_neighbours_may_both_send_before_either_receives(
    make: Callable[[], Link], link: Link
) -> None:
    back = make()
    sizes = [MAX_PAYLOAD_BYTES] * 2  # as much as the ring sends ahead
    with closing(back[0]), closing(back[1]):
        for sender, _ in (link, back):
            for number, size in enumerate(sizes):
                sender.send(head_of(number, size), noise(size), 5)
        for _, receiver in (link, back):
            check_received(receiver, sizes)


def test_a_receiver_that_takes_nothing_is_a_timeout_and_can_be_tried_again(link: Link) -> None:
    count = fill(link[0])
    assert 4 <= count < 40  # a bound there is
    receiving = start(partial(check_received, link[1], [MAX_PAYLOAD_BYTES] * (count + 1)))
    link[0].send(head_of(count, MAX_PAYLOAD_BYTES), noise(MAX_PAYLOAD_BYTES), scaled(10))
    result(receiving)


def test_a_sender_that_computes_for_long_is_a_timeout_and_can_be_waited_for_again(
    link: Link,
) -> None:
    for number in range(2):
        for _ in range(3):
            with pytest.raises(TimeoutError):
                link[1].receive(0.15)
        link[0].send(head_of(number, 10), noise(10), 5)
        frame = link[1].receive(scaled(5))
        assert frame is not None
        assert frame[0] == head_of(number, 10)
        link[1].release()


@pytest.mark.parametrize("cut", [5, 12, 20, 12 + HEAD_BYTES, 900])
@pytest.mark.parametrize("kind", ["unix", "tcp", "tunnel"])
def test_a_frame_may_come_in_pieces_with_timeouts_between(kind: str, cut: int) -> None:
    with stream_pairs(kind) as make_streams:
        left, right = make_streams()
        whole = HEAD_BYTES.to_bytes(4, "little") + (1000).to_bytes(8, "little")
        whole += head_of(0, 1000) + noise(1000).tobytes()
        with closing(left), closing(StreamReceiver(Connection(right, 100))) as receiver:
            for start_of, end_of in ((0, cut), (cut, len(whole))):
                with suppress(TimeoutError):
                    assert receiver.receive(0.03) is None
                left.send(whole[start_of:end_of], NEVER)
            check_received(receiver, [1000])


def test_an_end_comes_after_what_was_sent_also_much_later(link: Link) -> None:
    sizes = [MAX_PAYLOAD_BYTES] * 2
    for number, size in enumerate(sizes):
        link[0].send(head_of(number, size), noise(size), 5)
    closing_it = start(partial(link[0].close, 10))
    time.sleep(0.3)
    check_received(link[1], sizes)
    assert link[1].receive(5) is None
    assert link[1].receive(5) is None
    result(closing_it)


def test_a_sender_does_not_linger_longer_than_it_may(link: Link) -> None:
    fill(link[0])
    result(start(partial(link[0].close, 0.1)))
    assert "outbox" not in own_threads()


def test_a_receiver_that_is_gone_breaks_the_link(link: Link) -> None:
    link[1].close()

    def breaks() -> bool:
        try:
            link[0].send(head_of(0, 1000), noise(1000), 1)
        except OSError as error:
            return not isinstance(error, TimeoutError)
        return False

    wait_until(breaks, 5)


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_who_waits_is_woken_when_another_thread_closes_its_end(link: Link, end: str) -> None:
    def wait() -> object:
        if end == "receiver":
            return link[1].receive(30)
        for number in range(100):
            link[0].send(head_of(number, MAX_PAYLOAD_BYTES), noise(MAX_PAYLOAD_BYTES), 30)
        return "sent"

    waiting = start(wait)
    time.sleep(0.05)
    (link[1] if end == "receiver" else link[0]).close()
    with suppress(ConnectionError, OSError):
        assert result(waiting) is None


def test_a_frame_that_is_too_long_is_refused(link: Link) -> None:
    size = MAX_PAYLOAD_BYTES + 1
    if isinstance(link[0], SlotSender):  # a neighbour of another mind
        link[0].send(head_of(0, size), noise(1), 1)
    else:
        link[0].send(head_of(0, size), noise(size), 1)
    with pytest.raises(RefusedError, match="1048577 bytes"):
        link[1].receive(5)


# -- at a worker's port ------------------------------------------------------------------------

RING = RingMember(ring=1, rank=2, size=3)
WHO = Incarnation(TaskId("worker", 2), 4)


@pytest.fixture
def server() -> Iterator[CollectiveServer]:
    made = CollectiveServer(TaskId("worker", 0), Settings())
    made.start("127.0.0.1:0")
    yield made
    made.stop()


def client_of(
    server: CollectiveServer, wishes: dict[str, bool] | None = None, faults: Faults | None = None
) -> WorkerClient:
    address, wrap = f"127.0.0.1:{server.port}", (faults or Faults()).wrap
    return WorkerClient(TaskId("worker", 0), address, Settings.model_validate(wishes or {}), wrap)


def works(server: CollectiveServer, sender: Sender) -> bool:
    """Whether the link that came is the one of the sender."""
    receiver = server.incoming.take(RING.ring, RING.rank, scaled(5))
    assert receiver is not None
    with closing(receiver), closing(sender):
        sender.send(head_of(5, 10), noise(10), 5)
        frame = receiver.receive(scaled(5))
        return frame is not None and frame[0] == head_of(5, 10)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mixed"])
def test_links_that_come_and_go_leave_nothing(server: CollectiveServer, kind: str) -> None:
    with closing(client_of(server, KINDS[kind][0])) as client:
        for turn in range(30):
            sender = client.open_link(WHO, RING, timeout_s=scaled(5))
            assert sender.description == kind
            assert works(server, sender)
            if not turn:
                before = open_descriptors()
        wait_until(lambda: set(own_threads()) <= {"listen", "grpc"}, 5)
        wait_until(lambda: open_descriptors() <= before, 5)
    assert server.incoming.take(RING.ring, RING.rank, 0) is None


def test_a_second_link_of_a_sender_breaks_its_first(server: CollectiveServer) -> None:
    with closing(client_of(server)) as client:
        first, second = (client.open_link(WHO, RING, timeout_s=scaled(5)) for _ in range(2))
        wait_until(lambda: broken(first), 5)
        first.close()
        assert works(server, second)


def broken(sender: Sender) -> bool:
    try:
        sender.send(head_of(0, 0), noise(0), 0.1)
    except OSError as error:
        return not isinstance(error, TimeoutError)
    return False


@contextmanager
def greeted(server: CollectiveServer) -> Iterator[Connection]:
    """A sender that has its Welcome, and has not begun."""
    address = f"127.0.0.1:{server.port}"
    member = session_pb2.RingMember(ring=RING.ring, rank=RING.rank, size=RING.size)
    hello = session_pb2.Hello(service=SERVICE, ring=member)
    dialer = Dialer(address, "worker 0", hello, WHO, Settings())
    with closing(dialer.tcp(5)) as connection:
        dialer.greet(connection, scaled(5))
        yield connection


def test_a_sender_that_gave_up_does_not_replace_a_good_link(server: CollectiveServer) -> None:
    """It has its Welcome, but no time was left to begin; meanwhile it has come in another way."""
    with closing(client_of(server)) as client, greeted(server) as given_up:
        good = client.open_link(WHO, RING, timeout_s=scaled(5))
        given_up.close()
        wait_until(lambda: "session" not in own_threads(), 5)
        assert works(server, good)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        pytest.param(session_pb2.ClientMessage(), "begins with BeginLink", id="something-else"),
        pytest.param(
            session_pb2.ClientMessage(begin_link=session_pb2.BeginLink(segment_bytes=LINK_BYTES)),
            "no file comes",
            id="memory-over-tcp",
        ),
    ],
)
def test_a_link_that_does_not_begin_as_it_should_is_told_why(
    server: CollectiveServer, message: session_pb2.ClientMessage, says: str
) -> None:
    with greeted(server) as connection:
        connection.deadline = time.monotonic() + scaled(5)
        connection.send([message.SerializeToString()])
        with pytest.raises(RefusedError, match=says):
            receive_message(connection)
    assert server.incoming.take(RING.ring, RING.rank, 0) is None


@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
def test_memory_that_cannot_be_mapped_means_tcp_and_a_warning(
    server: CollectiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(client_of(server, None, Faults(files="spoil"))) as client:
        with caplog.at_level(logging.WARNING):
            sender = client.open_link(WHO, RING, timeout_s=scaled(5))
        assert sender.description == "tcp"
        assert "the link shares no memory: a shared segment has 0 bytes" in caplog.text
        assert works(server, sender)


@pytest.mark.parametrize("after", [2, 4, 30])
def test_a_link_cut_while_it_begins_is_made_again(server: CollectiveServer, after: int) -> None:
    def plan(stream: ByteStream, number: int) -> None:
        if number == 0:
            faults.streams[0].cut(after, "send")

    faults = Faults(plan=plan)
    with closing(client_of(server, NO_MEMORY, faults)) as client:
        assert works(server, client.open_link(WHO, RING, timeout_s=scaled(10)))


# -- rings -------------------------------------------------------------------------------------


def groups_of(
    count: int,
    timeout_s: float | None,
    ports: list[int] | None = None,
    wishes: list[dict[str, bool]] | None = None,
    **settings: float,
) -> list[CollectiveGroup]:
    spec = ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in ports or free_ports(count)]})
    given = wishes or [{}]
    return [
        CollectiveGroup(
            ResolvedTask(
                TaskId("worker", i),
                spec,
                TaskId("worker", 0),
                address=spec.task_address("worker", i),
            ),
            Settings.model_validate({"join_timeout_s": 20, **settings, **given[i % len(given)]}),
            timeout_s=timeout_s,
        )
        for i in range(count)
    ]


def run_all(groups: list[CollectiveGroup], work: Work) -> list[Any]:
    """Run a function as each worker; their results, or their errors."""

    def worker(group: CollectiveGroup) -> Any:
        try:
            group.open()
            return work(group)
        except WindlassError as error:
            return error

    running = [start(partial(worker, group)) for group in groups]
    results = [result(each, 30) for each in running]
    closing_all = [start(group.close) for group in groups]
    for each in closing_all:
        result(each, 20)
    return results


@pytest.fixture(params=list(KINDS))
def together(request: pytest.FixtureRequest) -> Together:
    """Runs a function as each worker of a ring; gives their results or errors, by rank."""

    def run(count: int, work: Work, timeout_s: float | None = 20, lease_s: float = 2) -> list[Any]:
        groups = groups_of(count, timeout_s, None, KINDS[request.param], lease_s=lease_s)

        def checked(group: CollectiveGroup) -> Any:
            assert request.param in (group.transport, "mixed")
            return work(group)

        return run_all(groups, checked)

    return run


def mine(rank: int, shape: tuple[int, ...], dtype: str) -> Array:
    rng = np.random.default_rng(rank)
    return (rng.normal(size=shape) * 100).astype(dtype)


ARRAYS: list[tuple[tuple[int, ...], str]] = [
    ((), "float32"),
    ((0,), "float32"),
    ((2, 3), "float64"),
    ((100_003,), "float32"),
    ((700, 1001), "float32"),
    ((300_001,), "int64"),
]


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_all_reduce_is_the_sum_with_the_same_bits_everywhere(
    together: Together, workers: int
) -> None:
    def work(group: CollectiveGroup) -> list[Array]:
        return [group.all_reduce(mine(group.rank, *array)) for array in ARRAYS]

    results = together(workers, work)
    for number, (shape, dtype) in enumerate(ARRAYS):
        sums = [each[number] for each in results]
        expected = sum(mine(rank, shape, dtype).astype(np.float64) for rank in range(workers))
        assert {total.tobytes() for total in sums} == {sums[0].tobytes()}
        assert sums[0].shape == shape
        assert sums[0].dtype == dtype
        # float32 sums of hundreds
        np.testing.assert_allclose(sums[0], expected, rtol=1e-5, atol=1e-4)


def test_a_divisor_makes_means(together: Together) -> None:
    def work(group: CollectiveGroup) -> list[Array]:
        return [
            group.all_reduce(np.full(size, group.rank, np.float32), divisor=4)
            for size in (10, 200_000)
        ]

    for means in together(2, work):
        for mean in means:
            np.testing.assert_array_equal(mean, np.full(mean.size, 0.25))


@pytest.mark.parametrize("workers", [2, 3])
def test_all_gather_takes_arrays_of_different_length(together: Together, workers: int) -> None:
    def work(group: CollectiveGroup) -> list[Array]:
        return group.all_gather(mine(group.rank, (group.rank * 90_000, 2), "float32"))

    for found in together(workers, work):
        assert len(found) == workers
        for rank, part in enumerate(found):
            np.testing.assert_array_equal(part, mine(rank, (rank * 90_000, 2), "float32"))


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast_gives_everybody_the_roots_values(together: Together, root: int) -> None:
    def work(group: CollectiveGroup) -> Array:
        return group.broadcast(mine(group.rank, (150_000,), "float32"), root)

    for found in together(3, work):
        np.testing.assert_array_equal(found, mine(root, (150_000,), "float32"))


def test_reduce_scatter_gives_each_worker_its_part(together: Together) -> None:
    size = 250_001
    parts = together(3, lambda group: group.reduce_scatter(np.arange(size) + group.rank))
    np.testing.assert_array_equal(np.concatenate(parts), 3 * np.arange(size) + 3)


def test_many_calls_of_changing_size_stay_in_step(together: Together) -> None:
    def work(group: CollectiveGroup) -> bool:
        for i in range(60):
            size = (i * 7919) % 100_000 + 1
            total = group.all_reduce(np.full(size, i + group.rank, np.int64))
            if not (total == 2 * i + 1).all():
                return False
            if i % 10 == 0:
                group.barrier()
        return True

    assert together(2, work) == [True, True]


def test_a_worker_in_another_call_is_an_error_that_names_both(together: Together) -> None:
    def work(group: CollectiveGroup) -> Any:
        if group.rank == 0:
            return group.all_reduce(np.ones(10, np.float32))
        return group.all_reduce(np.ones(10, np.float64))

    errors = together(2, work)
    assert any(isinstance(error, CollectiveMismatchError) for error in errors)
    assert all(isinstance(error, WindlassError) for error in errors)
    text = " ".join(str(error) for error in errors)
    assert "all_reduce of 10 float32" in text
    assert "all_reduce of 10 float64" in text


def test_values_that_cannot_be_gathered_are_an_error_on_every_worker(together: Together) -> None:
    errors = together(2, lambda group: group.all_gather(np.ones((2, 1 + group.rank))))
    assert all(isinstance(error, ShapeMismatchError) for error in errors)


@pytest.mark.parametrize("workers", [2, 4])
def test_every_survivor_names_the_worker_that_left(together: Together, workers: int) -> None:
    def work(group: CollectiveGroup) -> Any:
        group.barrier()
        if group.rank == 1:
            group.close()
            return "left"
        for _ in range(20):
            group.all_reduce(np.ones(300_000, np.float32))
        return "went on"

    results = together(workers, work)
    assert results[1] == "left"
    survivors = results[:1] + results[2:]
    assert all(isinstance(error, CollectiveMismatchError) for error in survivors), survivors
    assert all("/job:worker/task:1" in str(error) for error in survivors)


def test_a_worker_that_takes_too_long_is_named_with_what_it_does(together: Together) -> None:
    late = threading.Event()

    def work(group: CollectiveGroup) -> Any:
        group.barrier()
        if group.rank == 2:
            late.wait(20)
            return "late"
        try:
            return group.all_reduce(np.ones(5, np.float32))
        finally:
            late.set()

    results = together(3, work, timeout_s=1.0)
    assert results[2] == "late"
    for error in results[:2]:
        assert isinstance(error, CollectiveTimeoutError)
        assert error.fields["task"] == "/job:worker/task:2"
        assert "It has finished call 1, barrier" in str(error)


@pytest.mark.parametrize("timeout_s", [0, 0.1], ids=["of-the-group", "of-the-call"])
def test_a_timeout_of_zero_is_none(together: Together, timeout_s: float) -> None:
    late = threading.Event()

    def work(group: CollectiveGroup) -> Any:
        if group.rank:
            late.wait(0.5)
        return group.all_reduce(np.ones(5, np.float32), timeout_s=0 if timeout_s else None).sum()

    assert together(2, work, timeout_s=timeout_s) == [10, 10]


def test_a_worker_that_computes_for_longer_than_a_lease_is_waited_for(together: Together) -> None:
    def work(group: CollectiveGroup) -> Any:
        total = 0.0
        for turn in range(2):
            if group.rank == turn:
                time.sleep(0.8)
            total += group.all_reduce(np.ones(5, np.float32)).sum()
        return total

    assert together(2, work, timeout_s=None, lease_s=0.2) == [20, 20]


def test_a_worker_that_leaves_after_its_last_call_has_sent_everything(together: Together) -> None:
    def work(group: CollectiveGroup) -> Any:
        if group.rank:
            time.sleep(1.5)
        found = group.broadcast(mine(0, (500_000,), "float32"))
        group.close()
        return found.tobytes() == mine(0, (500_000,), "float32").tobytes()

    assert together(2, work) == [True, True]


def test_a_call_that_cannot_be_made_is_not_counted(together: Together) -> None:
    def work(group: CollectiveGroup) -> Any:
        if group.rank == 0:
            with pytest.raises(TypeError, match="complex128"):
                group.all_reduce(np.ones(2, np.complex128))
        return group.all_reduce(np.ones(2)).tolist()

    assert together(2, work) == [[2.0, 2.0]] * 2


# -- forming a ring ----------------------------------------------------------------------------


def test_a_worker_that_never_comes_is_a_join_timeout_naming_it() -> None:
    group = groups_of(2, 5, join_timeout_s=0.6)[0]
    with pytest.raises(JoinTimeoutError, match=r"/job:worker/task:1 at 127\.0\.0\.1:\d+"):
        group.open()
    group.close()


def test_a_worker_that_starts_long_after_the_lease_is_waited_for() -> None:
    """Of four workers two have both their links before the late one has any."""
    groups = groups_of(4, 0.5, lease_s=0.5)

    def come(group: CollectiveGroup) -> Any:
        if group.rank == 2:
            time.sleep(2)  # it is what the others have to sit out
        group.open()
        return group.all_reduce(np.ones(2), timeout_s=20).tolist()

    running = [start(partial(come, group)) for group in groups]
    assert [result(each, 30) for each in running] == [[4.0, 4.0]] * 4
    for each in [start(group.close) for group in groups]:
        result(each, 20)


def test_a_worker_that_was_not_there_in_time_is_named_by_all_that_wait() -> None:
    groups = groups_of(4, None, join_timeout_s=1.5, lease_s=0.5)
    del groups[2]
    errors = run_all(groups, lambda group: "formed")
    assert all(isinstance(error, (JoinTimeoutError, PeerLostError)) for error in errors)
    assert isinstance(errors[1], JoinTimeoutError)
    assert "task:2" in str(errors[1])


def test_a_ring_that_did_not_form_is_tried_again_under_its_number() -> None:
    ports = free_ports(2)
    alone = groups_of(2, 20, ports, join_timeout_s=1)[0]
    with pytest.raises(JoinTimeoutError):
        alone.open()
    alone.close()
    again = run_all(groups_of(2, 20, ports), lambda group: group.all_reduce(np.ones(1)).tolist())
    assert again == [[2.0], [2.0]]


def test_a_forked_child_that_ends_leaves_the_ring_alone() -> None:
    """In a process of its own, since grpc's threads and a fork do not go together in this one."""
    program = f"""
import os, sys
sys.path[:0] = {sys.path!r}
import numpy as np
from tests.contract.test_contract_ring import NO_MEMORY, groups_of, result, start

groups = groups_of(2, 10, None, [NO_MEMORY], lease_s=2)
for each in [start(group.open) for group in groups]:
    result(each)
child = os.fork()
if not child:
    sys.exit(0)  # runs what is registered for the end of the program
os.waitpid(child, 0)
for each in [start(lambda group=group: group.all_reduce(np.ones(1))) for group in groups]:
    print(result(each)[0])
for each in [start(group.close) for group in groups]:
    result(each)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=scaled(50),
        check=False,
    )
    assert ran.stdout.split() == ["2.0", "2.0"], ran.stderr
