"""Callers who have not shown who they are: what they may cost, and whom they may not hold up."""

import contextlib
import resource
import socket
import ssl
import threading
import time

import pytest

from helpers.hosts import SETTINGS, Serve, can_call, dial, echoes, is_shown_out, reached
from helpers.tls_files import tls_settings
from helpers.waiting import scaled, wait_until
from ropewalk.net.connection import MAGIC
from ropewalk.net.http2 import frames
from ropewalk.net.http2.frames import PREFACE, Kind, encode_fields

pytestmark = pytest.mark.timeout(120)

OPENING = PREFACE + frames.settings({})
PING = frames.frame(Kind.PING, 0, 0, bytes(8))
SETTING = frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 70_000})
FIELDS = encode_fields(
    [(":method", "POST"), (":scheme", "http"), (":path", "/ropewalk.proto.v1.Tunnel/Nothing"),
     (":authority", "x"), ("content-type", "application/grpc"), ("te", "trailers")]
)  # fmt: skip


def _resets() -> bytes:
    calls = (
        frames.frame(Kind.HEADERS, 5, number, FIELDS) + frames.reset(number, frames.Code.CANCEL)
        for number in range(1, 2001, 2)
    )
    return OPENING + b"".join(calls)


def _tls_hello() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


FLOODS = {
    "pings": OPENING + PING * 20_000,
    "settings": OPENING + SETTING * 20_000,
    "windows": OPENING + frames.window_update(0, 1) * 20_000,
    "resets": _resets(),
    "continuations": OPENING
    + frames.frame(Kind.HEADERS, 0, 1, FIELDS)
    + frames.frame(Kind.CONTINUATION, 0, 1, b"") * 20_000,
    "data": OPENING + frames.frame(Kind.HEADERS, 4, 1, FIELDS)
    + frames.frame(Kind.DATA, 0, 1, bytes(16_000)) * 100,
    "zeros": OPENING + bytes(200_000),
    "http1": b"GET / HTTP/1.1\r\n" * 1000,
}  # fmt: skip


def pour(connection: socket.socket, data: bytes) -> None:
    """Send and never read, as far as the other side lets us."""
    connection.settimeout(scaled(5))
    with contextlib.suppress(OSError):
        connection.sendall(data)


@pytest.mark.parametrize("name", FLOODS)
def test_who_sends_too_much_is_shown_out_and_a_session_goes_on(serve: Serve, name: str) -> None:
    host = serve()
    with reached(host.port, SETTINGS["tcp"]) as found, contextlib.ExitStack() as stack:
        before = threading.active_count()
        floods = [stack.enter_context(dial(host.port)) for _ in range(20)]
        for each in floods:
            threading.Thread(target=pour, args=(each, FLOODS[name]), daemon=True).start()
        assert echoes(found.connection)
        assert can_call(host.port)
        for each in floods:
            wait_until(lambda each=each: gone(each), 20, "the flood to be shown out")  # type: ignore[misc]
        assert echoes(found.connection)
        assert threading.active_count() <= before + len(floods)  # those that pour


def test_a_stranger_s_bytes_are_counted_however_few_their_frames(serve: Serve) -> None:
    host = serve()
    with dial(host.port) as connection:
        connection.sendall(OPENING + frames.frame(Kind.HEADERS, 4, 1, FIELDS))
        connection.sendall(frames.frame(Kind.DATA, 0, 1, bytes(200_000)))
        wait_until(lambda: gone(connection), 3, "the connection to be closed")


def gone(connection: socket.socket) -> bool:
    """Whether the other side has closed the connection; what it said is read."""
    connection.settimeout(0.01)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize("first", [b"", OPENING, MAGIC], ids=["silent", "http2", "greeting"])
def test_three_hundred_that_wait_cost_no_thread_and_keep_nobody_out(
    serve: Serve, first: bytes
) -> None:
    host = serve()
    before = threading.active_count()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            connection = stack.enter_context(dial(host.port))
            with contextlib.suppress(OSError):
                connection.sendall(first)
        began = time.monotonic()
        assert can_call(host.port)
        assert time.monotonic() - began < scaled(2)
        with reached(host.port, SETTINGS["tcp"]) as found:
            assert echoes(found.connection)
        assert threading.active_count() <= before + 8  # gRPC's, of the caller
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    assert grown < 20 * 1024  # KiB


def test_who_makes_no_call_is_closed_soon_and_who_asks_for_health_is_not(serve: Serve) -> None:
    host = serve()
    with dial(host.port) as silent, dial(host.port) as probe:
        silent.sendall(OPENING)
        health = encode_fields(
            [(":method", "POST"), (":scheme", "http"), (":path", "/grpc.health.v1.Health/Check"),
             (":authority", "x"), ("content-type", "application/grpc")]
        )  # fmt: skip
        probe.sendall(OPENING)
        for number in (1, 3, 5):
            probe.sendall(
                frames.frame(Kind.HEADERS, 4, number, health)
                + frames.frame(Kind.DATA, 1, number, bytes(5))
            )
        wait_until(lambda: gone(silent), 20, "the one that makes no call to be closed")
        assert not gone(probe)


@pytest.fixture
def tls_host(serve: Serve) -> int:
    return serve(SETTINGS["tcp"].model_copy(update={**tls_settings(), "insecure": False})).port


@pytest.mark.parametrize("ours", [False, True], ids=["calls", "sessions"])
def test_handshakes_that_do_not_end_cost_no_thread(tls_host: int, ours: bool) -> None:
    before = threading.active_count()
    hello = (MAGIC if ours else b"") + _tls_hello()
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(dial(tls_host)) for _ in range(60)]
        for each in held:
            each.sendall(hello)
        for each in held:
            each.settimeout(scaled(10))
            assert each.recv(1)  # the server's part of the handshake
        assert threading.active_count() == before
    assert is_plaintext_told(tls_host)


def test_one_handshake_too_many_takes_the_place_of_the_oldest(tls_host: int) -> None:
    hello = _tls_hello()
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(dial(tls_host)) for _ in range(65)]
        for each in held:
            each.sendall(hello)
        wait_until(lambda: gone(held[0]), 5, "the oldest to leave")
        assert not gone(held[-1])


def is_plaintext_told(port: int) -> bool:
    """Whether who speaks no TLS is answered, and let go."""
    with dial(port) as plain:
        plain.sendall(MAGIC + bytes(12))
        plain.settimeout(scaled(10))
        heard = b""
        while more := plain.recv(65536):
            heard += more
    return b"TLS" in heard


def test_a_call_that_is_refused_twice_ends_the_connection(serve: Serve) -> None:
    host = serve()
    with dial(host.port) as connection:
        connection.sendall(OPENING + frames.frame(Kind.HEADERS, 5, 1, FIELDS))
        assert not is_shown_out(connection, 0.3)
        connection.sendall(
            frames.frame(Kind.HEADERS, 5, 3, FIELDS) + frames.frame(Kind.HEADERS, 5, 5, FIELDS)
        )
        wait_until(lambda: gone(connection), 5)
