"""A link between synchronous workers carries frames whole and in order, over every connection."""

import logging
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
from helpers.rings import KINDS, NO_MEMORY
from helpers.streams import open_descriptors, own_threads, result, start, stream_pairs
from helpers.waiting import scaled, wait_until
from ropewalk.annexes.ring.server import CollectiveServer
from ropewalk.annexes.ring.slot_link import LINK_BYTES, SlotReceiver, SlotSender
from ropewalk.annexes.ring.stream_link import (
    HEAD_BYTES,
    MAX_PAYLOAD_BYTES,
    Call,
    Head,
    Receiver,
    RingFrameKind,
    RingMember,
    Sender,
    StreamReceiver,
    StreamSender,
)
from ropewalk.annexes.ring.worker_client import SERVICE, WorkerClient
from ropewalk.core.errors import (
    RefusedError,
)
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.net.connection import Connection
from ropewalk.net.dial import Dialer, receive_message
from ropewalk.net.shared_memory import SharedSegment, unavailable
from ropewalk.net.stream import NEVER, ByteStream
from ropewalk.proto.v1 import session_pb2

Array = np.ndarray[Any, np.dtype[Any]]
Link = tuple[Sender, Receiver]

pytestmark = pytest.mark.timeout(60)


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
    return Head(number, 0, length, RingFrameKind.DATA, Call.ALL_REDUCE, 0).pack()


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


@profile(max_examples=12)
@given(st.lists(st.integers(0, 3000) | st.integers(0, MAX_PAYLOAD_BYTES), max_size=8))
def test_frames_of_any_size_arrive_in_order(make: Callable[[], Link], sizes: list[int]) -> None:
    sender, receiver = make()
    with closing(receiver), closing(sender):
        sending = start(partial(send_all, sender, sizes))
        check_received(receiver, sizes)
        result(sending, 20)


def test_a_sender_knows_without_sending_that_the_receiver_has_ended(link: Link) -> None:
    sender, receiver = link
    sender.send(head_of(0, 8), noise(8), 5)
    assert not sender.has_hung_up
    receiver.close()
    if sender.description.startswith("grpc"):
        assert not sender.has_hung_up, "which a call of gRPC does not show"
    else:
        wait_until(lambda: sender.has_hung_up, 10)


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
def server(request: pytest.FixtureRequest) -> Iterator[CollectiveServer]:
    callspec = getattr(request.node, "callspec", None)
    kind = callspec.params.get("kind", "") if callspec is not None else ""
    settings = Settings(**KINDS["tls"][0]) if kind == "tls" else Settings()
    made = CollectiveServer(TaskId("worker", 0), settings)
    made.start("127.0.0.1:0")
    yield made
    made.stop()


def client_of(
    server: CollectiveServer, wishes: dict[str, Any] | None = None, faults: Faults | None = None
) -> WorkerClient:
    address, wrap = f"127.0.0.1:{server.port}", (faults or Faults()).wrap
    return WorkerClient(
        TaskId("worker", 0),
        address,
        Settings.model_validate(wishes or {}),
        TaskId("worker", 2),
        wrap,
    )


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
