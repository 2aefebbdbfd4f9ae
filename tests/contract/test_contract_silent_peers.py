"""Peers that connect, or call, and say nothing: bounded in number and time, and in nobody's way."""

import contextlib
import os
import queue
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from helpers import processes
from helpers.hosts import Serve
from helpers.ps_peers import ADD, SETTINGS, Ps, put, vector
from helpers.streams import start
from helpers.waiting import scaled, wait_until
from ropewalk.cluster.access import Principal
from ropewalk.core.errors import TooManyWorkersError
from ropewalk.core.task import TaskId
from ropewalk.net.arrival import Arrival
from ropewalk.net.channel import open_channel
from ropewalk.net.connection import MAGIC
from ropewalk.net.endpoint import Newcomers
from ropewalk.net.tunnel import METHOD as TUNNEL
from ropewalk.proto.v1 import ps_pb2
from ropewalk.server.ps.limits import SessionLimiter

pytestmark = pytest.mark.timeout(120)

W = vector()
INSECURE = SETTINGS.model_copy(update={"insecure": True})
CALLER = Principal("worker", index=0)
GET_JOB = "/ropewalk.proto.v1.ParameterServer/GetJob"
WATCH = "/grpc.health.v1.Health/Watch"


@pytest.fixture
def ps() -> Iterator[Ps]:
    made = Ps("grpc", max_sessions=4, insecure=True)
    made.worker(1).create(W)
    yield made
    made.close()


def works(ps: Ps, index: int = 2) -> bool:
    """Whether a worker gets in through a tunnel, defines, and pushes."""
    worker = ps.worker(index, generation=int(time.time()))
    worker.define(W)
    worker.push(put(W, ADD, 1))
    worker.peer.close()
    return True


class Silence:
    """Calls that are begun and then say nothing, over some connections."""

    def __init__(self, address: str, method: str, count: int, connections: int = 20) -> None:
        self._over = threading.Event()
        self._channels = [open_channel(address, INSECURE, CALLER) for _ in range(connections)]
        self.calls: list[Any] = []
        for number in range(count):
            stub: Any = self._channels[number % connections].stream_stream(method)
            self.calls.append(stub(self._nothing()))

    def _nothing(self) -> Iterator[bytes]:
        self._over.wait(scaled(60))
        yield from ()

    def going_on(self) -> int:
        """How many have not been ended by the server."""
        return sum(call.is_active() for call in self.calls)

    def __enter__(self) -> "Silence":
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for call in self.calls:
            call.cancel()
        for channel in self._channels:
            channel.close()


@pytest.mark.parametrize("method", [TUNNEL, GET_JOB], ids=["tunnels", "calls"])
def test_streams_that_say_nothing_keep_nobody_out_and_are_ended(ps: Ps, method: str) -> None:
    threads = threading.active_count()
    with Silence(ps.address, method, 200) as silence:
        assert works(ps)
        assert works(ps, 3)
        # A thread for each call here, and for each there up to three as long as it is silent.
        assert threading.active_count() < threads + 200 + 250
        # gRPC lets so many through at a time on a connection, and each has ten seconds.
        wait_until(lambda: silence.going_on() < 100, 40, "most to be ended")
    # The pool of gRPC keeps its threads.
    wait_until(lambda: threading.active_count() < threads + 120, 20, "threads to end")
    assert works(ps, 4)


def test_nobody_watches_the_health_of_a_task(ps: Ps) -> None:
    """A watch has no end, and its name is kept."""
    with open_channel(ps.address, INSECURE, CALLER) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            next(iter(stub.Watch(health_pb2.HealthCheckRequest(service="x" * 1000), timeout=5)))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status


def test_a_call_that_is_ended_without_a_message_is_told_so(ps: Ps) -> None:
    with open_channel(ps.address, INSECURE, CALLER) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.stream_unary(GET_JOB)(iter(()), timeout=scaled(5))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "no message came" in str(caught.value.details())
        get_job: Any = channel.unary_unary(GET_JOB)
        answer = get_job(b"", timeout=scaled(5))
        assert ps_pb2.GetJobResponse.FromString(answer).chief_address == ""


def test_metadata_beyond_the_limit_is_refused(ps: Ps) -> None:
    with open_channel(ps.address, INSECURE, CALLER) as channel:
        call: Any = channel.unary_unary(GET_JOB)
        with pytest.raises(grpc.RpcError):
            call(b"", timeout=scaled(5), metadata=[("x", "y" * 100_000)])
        call(b"", timeout=scaled(5))


def test_connections_that_begin_a_greeting_and_stop_cost_no_thread(ps: Ps) -> None:
    threads = threading.active_count()
    port = int(ps.address.rpartition(":")[2])
    begun = MAGIC + bytes([200, 0, 0, 0]) + bytes(8) + b"half a hello"
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(begun)
        assert works(ps)
        assert threading.active_count() <= threads + 20  # gRPC's, of the worker


def test_a_connection_that_speaks_no_http2_after_its_first_bytes_is_closed(ps: Ps) -> None:
    port = int(ps.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"PRI ")
        connection.settimeout(scaled(15))
        with contextlib.suppress(OSError):
            while connection.recv(1000):
                pass
    assert works(ps)


# -- the parts ---------------------------------------------------------------------------------


def fed(data: bytes) -> tuple[Arrival, int]:
    """What a listener that reads byte by byte makes of it; how many bytes it reads."""
    arrival, read = Arrival(), 0
    while (wanted := arrival.wanted()) and read < len(data):
        piece = data[read : read + min(wanted, 1)]
        arrival.first += piece
        read += len(piece)
    return arrival, read


@pytest.mark.parametrize(
    ("data", "is_ours", "is_grpc", "read"),
    [
        pytest.param(b"PRI * HTTP/2.0", False, True, 4, id="http2"),
        pytest.param(b"\x16\x03\x01\x02", False, True, 2, id="tls"),
        pytest.param(b"GET / HTTP/1.1", False, False, 1, id="http1"),
        pytest.param(b"PRX", False, False, 3, id="nearly"),
        pytest.param(MAGIC + b"\x03\0\0\0" + bytes(8) + b"abcMORE", True, False, 19, id="greeting"),
        pytest.param(MAGIC + b"\xff\xff\xff\xff" + bytes(8) + b"abc", True, False, 16, id="too-long"),
        pytest.param(MAGIC + bytes(12) + b"more", True, False, 16, id="empty"),
    ],
)  # fmt: skip
def test_a_connection_is_read_as_far_as_its_greeting_and_no_further(
    data: bytes, is_ours: bool, is_grpc: bool, read: int
) -> None:
    arrival, count = fed(data)
    assert (arrival.is_ours, arrival.is_grpc, count) == (is_ours, is_grpc, read)
    assert not arrival.wanted()


def test_the_longest_silent_makes_room() -> None:
    newcomers = Newcomers(2)
    cancelled: queue.SimpleQueue[str] = queue.SimpleQueue()
    over = threading.Event()

    def silent(name: str) -> None:
        with newcomers.silent(partial(cancelled.put, name)):
            over.wait(scaled(10))

    for name in ("first", "second", "third"):
        start(partial(silent, name))
        time.sleep(0.05)
    try:
        assert cancelled.get(timeout=scaled(5)) == "first"
    finally:
        over.set()
    assert cancelled.empty()


def test_who_speaks_is_not_cancelled() -> None:
    newcomers = Newcomers(1)
    for _ in range(3):
        with newcomers.silent(lambda: pytest.fail("cancelled")):
            pass


def test_the_worker_too_many_has_an_error_of_its_own() -> None:
    limiter = SessionLimiter(TaskId("ps", 0), 1)
    second = limiter.session(TaskId("worker", 1))
    with limiter.session(TaskId("worker", 0)), pytest.raises(TooManyWorkersError), second:
        pass


# -- descriptors -------------------------------------------------------------------------------

IDLE = """
import os, resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (512, {hard}))
sys.path.append({tests!r})  # a fork has the paths of the process that forked it
from helpers.ps_peers import ADD, Ps, put, vector
ps = Ps("tcp", max_sessions=4, insecure=True)
print("soft", resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
print("port", ps.address.rpartition(":")[2], flush=True)
sys.stdin.readline()
for n in range(32):  # a checkpoint and its logs
    open(f"{{n}}.file", "w").write("x")
files = [open(f"{{n}}.file") for n in range(32)]
worker = ps.worker(1)
worker.create(vector())
print("works", flush=True)
"""


@pytest.mark.parametrize("hard", [512, 4096])
def test_idle_connections_leave_descriptors_for_checkpoints(
    hard: int, tmp_path: Path, no_process_left: str
) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root / 'tests'}"}
    program = textwrap.dedent(IDLE.format(hard=hard, tests=str(root / "tests")))
    with processes.start(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process, contextlib.ExitStack() as stack:  # fmt: skip
        assert process.stdout is not None
        words = [process.stdout.readline().split() for _ in range(2)]
        assert words[0] == ["soft", str(hard)]
        port = int(words[1][1])
        for number in range(1000):
            with contextlib.suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", port), scaled(5))
                stack.enter_context(connection)
                if number % 2:
                    connection.sendall(b"PRI ")
        output, errors = process.communicate("go\n", timeout=scaled(60))
        assert "works" in output, errors


def test_a_connection_without_a_call_is_closed_and_the_next_call_connects_anew(
    serve: Serve,
) -> None:
    port = serve(idle_s=1.0).port
    with open_channel(f"127.0.0.1:{port}", INSECURE, CALLER) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        stub.Check(health_pb2.HealthCheckRequest(), timeout=scaled(5))
        wait_until(lambda: not connections_to(port), 10, "the idle connection to be closed")
        stub.Check(health_pb2.HealthCheckRequest(), timeout=scaled(5))
        assert connections_to(port)


def connections_to(port: int) -> int:
    """Established TCP connections of this machine to a port, as the kernel lists them."""
    files = [Path("/proc/net") / name for name in ("tcp", "tcp6")]  # gRPC uses mapped addresses
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    remote = [(fields[2], fields[3]) for line in lines if (fields := line.split())]
    return sum(address.endswith(f":{port:04X}") and state == "01" for address, state in remote)
