"""One port for sessions, tunnels and gRPC: who is let in, who is not, and nothing is left."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from typing import Any, cast

import pytest

from helpers.hosts import (
    PREFACE,
    PS,
    SETTINGS,
    Proxy,
    Serve,
    can_call,
    dial,
    dialer_to,
    echo,
    echoes,
    every_kind,
    hello_frame,
    is_shown_out,
    make_host,
    reached,
    works,
)
from helpers.streams import open_descriptors, own_threads, result, start
from helpers.waiting import scaled, wait_until
from ropewalk.core.errors import (
    RopewalkError,
    TooManyWorkersError,
)
from ropewalk.net.auth.guard import Guard
from ropewalk.net.auth.tls_stream import TlsStream
from ropewalk.net.connection import MAGIC, Connection
from ropewalk.net.dial import reach, receive_message
from ropewalk.net.endpoint import Endpoint
from ropewalk.net.listener import Listener
from ropewalk.net.shared_memory import unavailable
from ropewalk.net.sockets import (
    UnixStream,
    connect_unix,
    listen_tcp,
    listen_unix,
    tcp_stream,
    unix_stream,
)
from ropewalk.net.stream import NEVER, SocketStream

pytestmark = pytest.mark.timeout(60)


@every_kind
def test_sessions_calls_and_tunnels_share_the_port(serve: Serve, kind: str) -> None:
    host = serve(SETTINGS[kind])
    with reached(host.port, SETTINGS[kind]) as found:
        assert found.choice.kind == kind
        assert not found.choice.is_degraded
        assert found.welcome.ps_generation == 7
        assert found.connection.deadline == NEVER
        assert echoes(found.connection)
        assert can_call(host.port)
        assert works(host.port)
        assert echoes(found.connection)


def test_a_greeting_may_come_byte_by_byte(serve: Serve) -> None:
    host = serve()
    with dial(host.port) as bare:
        bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in hello_frame():
            bare.sendall(bytes([byte]))
            time.sleep(0.001)
        bare.settimeout(None)
        with closing(Connection(tcp_stream(bare.dup()), 100_000)) as connection:
            connection.deadline = time.monotonic() + scaled(5)
            assert receive_message(connection).welcome.ps_generation == 7
            assert echoes(connection)


def test_grpcs_first_bytes_may_come_one_by_one(serve: Serve) -> None:
    host = serve()

    def forward(client: socket.socket, server: socket.socket) -> None:
        for _ in range(len(PREFACE)):
            server.sendall(client.recv(1))
            time.sleep(0.002)

    with Proxy(host.port, forward) as proxy:
        assert can_call(proxy.port)


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        bytes(8),
        b"RPWX",
        b"PRX",
        b"\x16\x04",
        b"X",
    ],
)
def test_what_is_neither_ours_nor_grpcs_is_shown_out(serve: Serve, first: bytes) -> None:
    host = serve()
    with dial(host.port) as stranger:
        stranger.sendall(first)
        assert is_shown_out(stranger)
    assert works(host.port)


@pytest.mark.parametrize("first", [b"", b"R", b"RPW", b"PRI", b"\x16"])
def test_who_leaves_in_the_middle_of_its_first_bytes_is_forgotten(
    serve: Serve, first: bytes
) -> None:
    host = serve()
    with dial(host.port) as stranger:
        stranger.sendall(first)
        stranger.shutdown(socket.SHUT_WR)
        assert is_shown_out(stranger)


def test_a_greeting_that_is_not_complete_costs_no_processor_time() -> None:
    """A selector says again and again that bytes are there, as long as they are only looked at."""
    listener, name = (
        Listener(lambda stream, greeting: stream.close(), None, 1),
        f"@ropewalk-test-{os.getpid()}",
    )
    listener.add(listen_unix(name, 8), unix_stream)
    listener.start()
    with contextlib.closing(connect_unix(name)) as stream:
        stream.send(b"WN", NEVER)
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.4)
        assert time.process_time() - before < 0.2
    listener.stop()


def test_silent_and_slow_connections_are_closed_in_time_and_cost_no_thread() -> None:
    listener = Listener(lambda stream, greeting: stream.close(), None, 1, greeting_timeout_s=0.5)
    listening = listen_tcp("127.0.0.1", 0, 64)
    port = listening.getsockname()[1]
    listener.add(listening, tcp_stream)
    listener.start()
    threads = threading.active_count()
    began = time.monotonic()
    connections = [dial(port) for _ in range(20)]
    slow = connections[0]
    assert threading.active_count() == threads
    with contextlib.suppress(OSError):
        for byte in MAGIC[:3]:
            slow.sendall(bytes([byte]))
            time.sleep(0.15)
    assert all(is_shown_out(each) for each in connections)
    assert time.monotonic() - began >= 0.45
    for each in connections:
        each.close()
    listener.stop()


def test_a_greeting_that_dribbles_in_is_given_up_in_time() -> None:
    endpoint = Endpoint(
        PS, SETTINGS["tcp"], {"echo": echo}, Guard(PS, SETTINGS["tcp"]), greeting_timeout_s=0.4
    )
    whole, said = hello_frame()[len(MAGIC) :], 0
    left, right = socket.socketpair()
    serving = start(lambda: endpoint.serve(UnixStream(right)))
    with left, contextlib.suppress(OSError):
        while not serving.done():
            left.sendall(whole[said : said + 1])
            said += 1
            time.sleep(0.05)
    result(serving)
    assert said < len(whole)


def test_more_silent_connections_than_are_kept_do_not_keep_others_out(serve: Serve) -> None:
    host = serve()
    silent = [dial(host.port) for _ in range(300)]
    assert works(host.port)
    assert can_call(host.port)
    assert is_shown_out(silent[0])  # the oldest went
    for each in silent:
        each.close()
    assert works(host.port)


def test_connections_beyond_the_limit_are_refused_and_leave_room_when_they_end(
    serve: Serve,
) -> None:
    host = serve(max_sessions=2)
    with reached(host.port, SETTINGS["tcp"]) as first, reached(host.port, SETTINGS["tcp"]):
        dialer = dialer_to(host.port, SETTINGS["tcp"])
        third = dialer.tcp(scaled(5))
        with pytest.raises(TooManyWorkersError, match="serves 2 connections already"):
            dialer.greet(third, scaled(5))
        assert echoes(first.connection)

    def has_room() -> bool:
        with contextlib.suppress(RopewalkError):
            return works(host.port)
        return False

    wait_until(has_room, 5)


def test_whatever_goes_wrong_with_one_connection_others_are_accepted() -> None:
    heard: list[SocketStream | TlsStream] = []
    mishaps = iter(
        [RuntimeError("no more threads"), PermissionError("another user"), ValueError("?")]
    )

    def make_stream(connection: socket.socket) -> SocketStream:
        for mishap in mishaps:
            raise mishap
        return tcp_stream(connection)

    class Full:
        def has_room(self) -> bool:
            return True

        def accept(self, *_: object) -> None:
            raise ConnectionError("too many")

    listener = Listener(lambda stream, greeting: heard.append(stream), cast(Any, Full()), 1)
    listening = listen_tcp("127.0.0.1", 0, 8)
    port = listening.getsockname()[1]
    listener.add(listening, make_stream)
    listener.start()
    for first in (MAGIC, MAGIC, MAGIC, b"PRI ", MAGIC):
        with dial(port) as connection:
            connection.sendall(hello_frame() if first == MAGIC else first)
            if not heard and (first != MAGIC or is_shown_out(connection, 0.5)):
                continue
    wait_until(lambda: heard, 5)
    heard[0].close()
    listener.stop()


def test_a_greeting_beyond_the_limit_is_shown_out_until_there_is_room() -> None:
    over = threading.Event()
    heard: list[SocketStream | TlsStream] = []

    def greeted(stream: SocketStream | TlsStream, _: bytes) -> None:
        heard.append(stream)
        over.wait(scaled(10))
        stream.close()

    listener = Listener(greeted, None, 1)
    listening = listen_tcp("127.0.0.1", 0, 8)
    listener.add(listening, tcp_stream)
    listener.start()
    port = listening.getsockname()[1]
    with dial(port) as first, dial(port) as second:
        first.sendall(hello_frame())
        wait_until(lambda: heard, 5)
        second.sendall(hello_frame())
        assert is_shown_out(second)
        assert (listener.served, listener.refused) == (1, 1)
        over.set()
        wait_until(lambda: not listener.served, 5)
    with dial(port) as third:
        third.sendall(hello_frame())
        wait_until(lambda: len(heard) == 2, 5)
    listener.stop()


def test_a_host_without_descriptors_takes_sessions_again_when_it_has_some(serve: Serve) -> None:
    host = serve()
    assert works(host.port)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as late:
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(highest)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(spare) + 1, hard))
            late.connect(("127.0.0.1", host.port))
            late.sendall(hello_greeting := MAGIC)
            time.sleep(0.3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for each in spare:
                os.close(each)
        late.sendall(hello_frame()[len(hello_greeting) :])
        late.settimeout(scaled(5))
        assert late.recv(1)
    assert works(host.port)


# -- ends --------------------------------------------------------------------------------------


@every_kind
def test_stopping_ends_sessions_is_idempotent_and_leaves_nothing(kind: str) -> None:
    def once() -> None:
        host = make_host(SETTINGS[kind])
        host.start("127.0.0.1:0")
        with reached(host.port, SETTINGS[kind]) as found:
            assert echoes(found.connection)
            with dial(host.port) as silent:
                host.stop(0)
                host.stop(0)
                assert is_shown_out(silent)
            with pytest.raises(OSError, match=r"."):
                receive_message(found.connection)
            with pytest.raises(ConnectionRefusedError):
                dial(host.port)

    once()  # grpc keeps some files of its first server
    before = open_descriptors()
    once()
    wait_until(lambda: not own_threads(), 5, "the end of the threads")
    wait_until(lambda: open_descriptors() <= before, 5, "files to be closed")


@pytest.mark.parametrize(("kind", "count"), [("shm", 70), ("tcp", 70), ("grpc", 30)])
def test_workers_that_come_and_go_leave_nothing(serve: Serve, kind: str, count: int) -> None:
    if kind not in SETTINGS:
        pytest.skip(unavailable())
    settings = SETTINGS[kind]
    host = serve(settings, max_sessions=64)
    dialer = dialer_to(host.port, settings)

    def once(number: int) -> None:
        found = reach(dialer, settings, scaled(5), peer="ps")
        if number % 2:
            assert echoes(found.connection)
        if number % 3 == 0:
            found.connection.cancel()
        found.connection.close()

    def sessions() -> int:
        return len([name for name in own_threads() if name in ("session", "tunnel", "outbox")])

    once(1)
    wait_until(lambda: not sessions(), 5)
    before = open_descriptors()
    for number in range(count):
        once(number)
    wait_until(lambda: not sessions(), 5, "the end of the threads")
    wait_until(lambda: open_descriptors() <= before, 5, "files to be closed")


@pytest.mark.parametrize("kind", ["tcp", "grpc"])
def test_a_process_ends_although_it_serves_and_is_connected(kind: str) -> None:
    """Who ends without a stop, by an error say, must not wait for the calls of others."""
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from helpers import hosts as t
host = t.make_host(t.SETTINGS[{kind!r}])
host.start("127.0.0.1:0")
address, settings = f"127.0.0.1:{{host.port}}", t.SETTINGS[{kind!r}]
dialer = t.Dialer(address, "ps", t.hello(), t.Incarnation(t.PS, 1), settings)
found = t.reach(dialer, settings, 30, peer="ps")
print(t.echoes(found.connection), t.can_call(host.port), flush=True)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=scaled(30),
        check=False,
    )
    assert (ran.stdout, ran.returncode) == ("True True\n", 0), ran.stderr
