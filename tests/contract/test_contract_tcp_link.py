"""A link of a ring over TCP: every frame, in order, whole, and nobody waits for ever."""

import errno
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from windlass.collectives.tcp_link import SLOT_BYTES, TICKET_BYTES, TcpReceiver, TcpSender

from windlass.collectives.incoming import StreamReceiver
from windlass.collectives.ring_frames import HEAD_BYTES, Call, Head, Kind, Place
from windlass.collectives.server import CollectiveServer
from windlass.core.errors import RefusedError
from windlass.core.settings import Settings
from windlass.core.task import TaskId

PLACE = Place(ring=1, rank=2, size=3, life=4)
TICKET = bytes(range(TICKET_BYTES))
Array = np.ndarray[Any, np.dtype[Any]]

pytestmark = pytest.mark.timeout(30)


def connections() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection on loopback."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
    return left, right


class Link:
    """Both ends of a link."""

    def __init__(self) -> None:
        left, right = connections()
        made: list[TcpReceiver] = []

        def receive() -> None:
            receiver = TcpReceiver(right)
            receiver.accept()
            made.append(receiver)

        thread = threading.Thread(target=receive)
        thread.start()
        self.sender = TcpSender(left, PLACE, TICKET)
        thread.join(10)
        [self.receiver] = made

    def close(self) -> None:
        self.receiver.close()
        self.sender.close()


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    yield made
    made.close()


def head_of(number: int, length: int) -> bytes:
    return Head(number, 0, length, Kind.DATA, Call.ALL_REDUCE, 0).pack()


def noise(size: int) -> Array:
    return np.random.default_rng(size).integers(0, 255, size, np.uint8)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does, 5 s at most."""
    deadline = time.monotonic() + 5
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 5 s"
        pause.wait(0.002)


def send_all(link: Link, sizes: list[int]) -> threading.Thread:
    """Send frames from another thread, through one array that changes after each."""

    def run() -> None:
        memory = np.empty(SLOT_BYTES, np.uint8)
        for number, size in enumerate(sizes):
            memory[:size] = noise(size)
            link.sender.send(head_of(number, size), memory[:size], timeout_s=20)
            memory[:size] = 255  # it may be changed as soon as it is sent

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def fill(link: Link) -> int:
    """Send until nothing more is taken; how many frames that were."""
    for number in range(100):
        try:
            link.sender.send(head_of(number, SLOT_BYTES), noise(SLOT_BYTES), timeout_s=0.1)
        except TimeoutError:
            return number
    return 100


def check_received(link: Link, sizes: list[int]) -> None:
    for number, size in enumerate(sizes):
        received = link.receiver.receive(timeout_s=20)
        assert received is not None
        head, payload = received
        assert head == head_of(number, size)
        np.testing.assert_array_equal(payload, noise(size))
        link.receiver.release()


def test_the_receiver_knows_whose_link_it_is_and_the_ticket(link: Link) -> None:
    assert link.receiver.place == PLACE
    assert link.receiver.ticket == TICKET


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 3000) | st.integers(0, SLOT_BYTES), max_size=8))
def test_frames_of_any_size_arrive_in_order(sizes: list[int]) -> None:
    with closing(Link()) as link:
        thread = send_all(link, sizes)
        check_received(link, sizes)
        thread.join(10)


def test_more_than_the_kernel_takes_is_sent_behind_the_callers_back(link: Link) -> None:
    sizes = [SLOT_BYTES] * 60 + [10] * 100 + [SLOT_BYTES] * 3
    thread = send_all(link, sizes)
    check_received(link, sizes)
    thread.join(10)
    assert not thread.is_alive()


def test_neighbours_may_both_send_before_either_receives(link: Link) -> None:
    back = Link()
    with closing(back):
        for each in (link, back):  # as much as the ring sends ahead
            for number in range(2):
                each.sender.send(head_of(number, SLOT_BYTES), noise(SLOT_BYTES), timeout_s=5)
        check_received(link, [SLOT_BYTES] * 2)
        check_received(back, [SLOT_BYTES] * 2)


def test_a_receiver_that_takes_nothing_is_a_timeout_and_can_be_tried_again(link: Link) -> None:
    sent = fill(link)
    assert 4 <= sent < 100  # a bound there is
    thread = threading.Thread(target=check_received, args=(link, [SLOT_BYTES] * (sent + 1)))
    thread.start()
    link.sender.send(head_of(sent, SLOT_BYTES), noise(SLOT_BYTES), timeout_s=10)
    thread.join(10)
    assert not thread.is_alive()


def test_a_frame_may_come_in_pieces_with_timeouts_between(link: Link) -> None:
    frame = head_of(7, 1000) + noise(1000).tobytes()
    for cut in (0, 5, HEAD_BYTES, HEAD_BYTES + 1, 900):
        raw = link.sender._socket
        raw.sendall(frame[:cut])
        with pytest.raises(TimeoutError):
            link.receiver.receive(timeout_s=0.05)
        raw.sendall(frame[cut:])
        received = link.receiver.receive(timeout_s=5)
        assert received is not None
        assert received[0] == head_of(7, 1000)
        np.testing.assert_array_equal(received[1], noise(1000))
        link.receiver.release()


def test_an_end_between_frames_is_told_from_one_inside(link: Link) -> None:
    link.sender.send(head_of(0, 3), noise(3), timeout_s=1)
    link.sender.close()
    check_received(link, [3])
    assert link.receiver.receive(timeout_s=5) is None
    assert link.receiver.receive(timeout_s=5) is None

    other = Link()
    other.sender._socket.sendall(head_of(0, 1000) + bytes(10))
    other.sender.close()
    with pytest.raises(ConnectionError, match="inside a frame"):
        other.receiver.receive(timeout_s=5)
    other.receiver.close()


def test_a_payload_over_the_limit_is_refused(link: Link) -> None:
    link.sender._socket.sendall(head_of(0, SLOT_BYTES + 1))
    with pytest.raises(RefusedError, match="of 1048576 at most"):
        link.receiver.receive(timeout_s=5)


def test_a_receiver_that_is_gone_breaks_the_link(link: Link) -> None:
    link.receiver.close()

    def send() -> bool:
        try:
            link.sender.send(head_of(0, SLOT_BYTES), noise(SLOT_BYTES), timeout_s=1)
        except OSError as error:
            return not isinstance(error, TimeoutError)
        return False

    until(send)


def test_what_was_sent_arrives_if_it_is_read_while_the_sender_lingers(link: Link) -> None:
    sizes = [SLOT_BYTES] * 4
    for number, size in enumerate(sizes):
        link.sender.send(head_of(number, size), noise(size), timeout_s=5)
    closing_thread = threading.Thread(target=link.sender.close, args=(10,))
    closing_thread.start()
    check_received(link, sizes)
    assert link.receiver.receive(timeout_s=5) is None
    closing_thread.join(10)
    assert not closing_thread.is_alive()


def test_a_sender_does_not_linger_longer_than_it_may(link: Link) -> None:
    fill(link)
    link.sender.close(linger_s=0.1)
    assert not link.sender._thread.is_alive()


def test_a_frame_that_was_interrupted_is_never_continued_by_another(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        def get(self, timeout: float) -> Array:
            raise KeyboardInterrupt(timeout)

    ahead = SLOT_BYTES
    with monkeypatch.context() as patch:
        patch.setattr(link.sender, "_free", Interrupted())
        for number in range(100):  # until the kernel takes only the beginning of one
            try:
                link.sender.send(head_of(number, ahead), noise(ahead), timeout_s=1)
            except KeyboardInterrupt:
                break
    assert number < 99
    with pytest.raises(ConnectionError):  # the news that the ring is broken, say
        link.sender.send(head_of(0, 10), noise(10), timeout_s=0.5)
    thread = threading.Thread(target=link.sender.close)
    thread.start()
    check_received(link, [ahead] * number)
    with pytest.raises(ConnectionError, match="inside a frame"):
        link.receiver.receive(timeout_s=5)
    thread.join(10)


def test_a_sender_that_another_thread_closes_is_broken_not_slow(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = link.sender._free

    class ClosedMeanwhile:
        def get(self, timeout: float) -> Array:
            link.sender.close(0.1)
            return free.get(timeout=timeout)

    with monkeypatch.context() as patch:
        patch.setattr(link.sender, "_free", ClosedMeanwhile())
        for number in range(100):
            link.sender.send(head_of(number, SLOT_BYTES), noise(SLOT_BYTES), timeout_s=0.1)
            if not link.sender._thread.is_alive():
                break
    with pytest.raises(ConnectionError):
        link.sender.send(head_of(0, 1), noise(1), timeout_s=0.1)


def lose_the_peer(connection: socket.socket) -> None:
    """Let the system give it up, as it does one that has vanished."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 50)
    with suppress(BlockingIOError):
        while True:
            connection.send(bytes(SLOT_BYTES), socket.MSG_DONTWAIT)
    poll = select.poll()
    poll.register(connection, 0)
    assert poll.poll(10_000), "the system has not given it up"


def test_a_peer_the_system_gave_up_is_lost_and_not_tried_again(link: Link) -> None:
    lose_the_peer(link.receiver._socket)
    with pytest.raises(ConnectionError) as caught:
        link.receiver.receive(timeout_s=5)
    assert caught.value.errno == errno.ETIMEDOUT
    other = Link()
    with closing(other):
        lose_the_peer(other.sender._socket)
        with pytest.raises(ConnectionError) as caught:
            other.sender.send(head_of(0, 3), noise(3), timeout_s=5)
        assert caught.value.errno == errno.ETIMEDOUT


def test_a_receiver_closed_by_another_thread_stops_waiting(link: Link) -> None:
    ended = threading.Event()

    def receive() -> None:
        try:
            received = link.receiver.receive(timeout_s=20)
        except OSError:
            received = None
        if received is None:
            ended.set()

    thread = threading.Thread(target=receive)
    thread.start()
    link.receiver.close()
    thread.join(10)
    assert ended.is_set()


# -- at a worker's port ------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[CollectiveServer]:
    made = CollectiveServer(TaskId("worker", 0), Settings())
    made.start("127.0.0.1:0")
    yield made
    made.stop()


def dial(server: CollectiveServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server._tcp_port), timeout=5)


def test_a_ticket_lets_one_link_in(server: CollectiveServer) -> None:
    ticket = server._tickets.issue()
    sender = TcpSender(dial(server), PLACE, ticket)
    receiver = server.incoming.take(PLACE.ring, PLACE.rank, 5)
    assert isinstance(receiver, TcpReceiver)
    with closing(dial(server)) as again, pytest.raises(OSError, match=r"not in|reset"):
        TcpSender(again, PLACE, ticket)
    assert server.incoming.take(PLACE.ring, PLACE.rank, 0) is None
    sender.close()
    receiver.close()


def test_what_speaks_first_at_the_port_is_no_receiver() -> None:
    """A port that is mapped to something else, sshd for one."""
    left, right = connections()
    with closing(left), closing(right):
        right.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        with pytest.raises(ConnectionError, match="something else"):
            TcpSender(left, PLACE, TICKET)


def test_a_sender_that_has_gone_on_to_another_link_does_not_break_it(
    server: CollectiveServer,
) -> None:
    """The server was stopped for longer than the sender waits, and reads the hello of a closed connection."""
    left, right = connections()
    better = StreamReceiver()
    server.incoming.put(PLACE.ring, PLACE.rank, better)
    left.sendall(PLACE.pack() + server._tickets.issue())
    left.close()
    server._tcp_link(right)
    assert right.fileno() < 0
    assert server.incoming.take(PLACE.ring, PLACE.rank, 0) is better
    assert not better._closed.is_set()


@pytest.mark.parametrize(
    "hello",
    [
        pytest.param(PLACE.pack() + TICKET, id="a-ticket-of-nobody"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: windlass\r\n\r\n" * 3, id="http"),
        pytest.param(PLACE.pack()[:5], id="half-a-hello"),
    ],
)
def test_a_stranger_at_the_port_is_shown_out(server: CollectiveServer, hello: bytes) -> None:
    with closing(dial(server)) as stranger:
        try:
            stranger.sendall(hello)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
        except OSError:  # reset before it had said all
            assert not server.incoming._links
    assert not server.incoming._links


def test_a_hello_byte_by_byte_takes_no_longer_than_any(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = connections()
    monkeypatch.setattr(TcpReceiver.__init__, "__defaults__", (0.3,))
    stop = threading.Event()

    def drip() -> None:
        for byte in PLACE.pack() + TICKET:
            if stop.wait(0.1):
                return
            left.sendall(struct.pack("B", byte))

    thread = threading.Thread(target=drip)
    thread.start()
    with closing(left), closing(right):
        with pytest.raises(TimeoutError):
            TcpReceiver(right)
        stop.set()
        thread.join(10)


def test_no_port_is_open_where_nobody_wants_it() -> None:
    made = CollectiveServer(TaskId("worker", 0), Settings(tcp_sessions=False))
    made.start("127.0.0.1:0")
    assert made._tcp is None
    assert made._tcp_port == 0
    made.stop()


def test_workers_of_one_host_may_be_given_one_session_port() -> None:
    first = CollectiveServer(TaskId("worker", 0), Settings())
    first.start("127.0.0.1:0")
    taken = Settings(session_port=first._tcp_port)
    second = CollectiveServer(TaskId("worker", 1), taken)
    second.start("127.0.0.1:0")
    assert second._tcp_port == 0  # links come in another way
    second.stop()
    first.stop()
