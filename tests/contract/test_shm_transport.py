"""What the ``shm`` transport promises beyond the contract of all transports."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from windlass.client.ps.parameter_session import ParameterSession
from windlass.client.ps.push_plans import PushPayload
from windlass.client.ps.remote_ps import RemotePs
from windlass.client.ps.shared_payloads import ShmTransport
from windlass.core.arrays import Array
from windlass.core.definitions import VariableDefinition
from windlass.core.errors import PeerLostError, RefusedError
from windlass.core.settings import Settings
from windlass.core.steps import Operation
from windlass.core.task import Incarnation, TaskId
from windlass.core.update_rules import SGD
from windlass.net.shared_memory import SharedSegment, unavailable
from windlass.server.ps.server import PsServer

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())

PS = TaskId("ps", 0)
LARGE = (300, 500)  # 600 KB: over what a message carries
SETTINGS = Settings(reconnect_timeout_s=2.0, request_timeout_s=10.0)


@pytest.fixture
def server() -> Iterator[PsServer]:
    server = PsServer(PS, SETTINGS)
    server.start("127.0.0.1:0")
    yield server
    server.stop(grace_s=0)


def open_session(
    port: int, *, index: int = 0, settings: Settings = SETTINGS
) -> tuple[ParameterSession, ShmTransport]:
    who = Incarnation(TaskId("worker", index), 1)
    transport = RemotePs(PS, f"127.0.0.1:{port}", who, settings)
    assert isinstance(transport, ShmTransport)
    session = ParameterSession([transport], who, settings)
    session.connect()
    return session, transport


def define(session: ParameterSession, value: Array, name: str = "w") -> None:
    definition = VariableDefinition(name, value.shape, value.dtype)
    session.define([definition], {name: value}, create=True)


def add(session: ParameterSession, delta: Array, name: str = "w") -> Array:
    push = PushPayload({name: delta}, Operation.ASSIGN_ADD)
    return session.step(push, [name]).values[name]


def test_large_values_are_handed_over_and_come_back_to_the_bit(server: PsServer) -> None:
    session, transport = open_session(server.port)
    start = np.random.default_rng(0).normal(size=LARGE).astype(np.float32)
    define(session, start)
    session.bind(["w"], SGD(learning_rate=0.1))
    gradient = np.random.default_rng(1).normal(size=LARGE).astype(np.float32)
    expected = start.copy()
    for _ in range(5):
        expected -= np.float32(0.1) * gradient
        push = PushPayload({"w": gradient}, Operation.APPLY)
        values = session.step(push, ["w"], step_increment=1).values
        assert np.array_equal(values["w"], expected)
    assert transport.description == "shm"
    # What was read from its memory counts, although the ps sent nothing.
    assert server.store.counters().bytes_out == 5 * start.nbytes
    session.close()


def test_kept_values_do_not_change_with_the_servers_memory(server: PsServer) -> None:
    session, _ = open_session(server.port)
    define(session, np.zeros(LARGE, np.float32))
    kept = [add(session, np.ones(LARGE, np.float32)) for _ in range(6)]
    assert [float(value.max()) for value in kept] == [1, 2, 3, 4, 5, 6]
    session.close()


def test_a_segment_grows_with_the_steps(server: PsServer) -> None:
    session, _ = open_session(server.port)
    for rows in (100, 3000, 700):
        name = f"w{rows}"
        define(session, np.zeros((rows, 300), np.float32), name)
        assert (add(session, np.ones((rows, 300), np.float32), name) == 1).all()
    session.close()


def test_many_small_variables_are_read_as_few_pieces(server: PsServer) -> None:
    session, _ = open_session(server.port)
    names = [f"v{i}" for i in range(2000)]
    definitions = [VariableDefinition(name, (16,), np.dtype(np.float32)) for name in names]
    initial = {name: np.full(16, i, np.float32) for i, name in enumerate(names)}
    session.define(definitions, initial, create=True)
    values = session.step(None, names).values
    assert all((values[name] == i).all() for i, name in enumerate(names))
    session.close()


def test_memory_that_cannot_be_opened_means_the_stream_and_a_reason(
    server: PsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: object) -> SharedSegment:
        raise RefusedError("not on one machine")

    monkeypatch.setattr(SharedSegment, "open", refuse)
    session, transport = open_session(server.port)
    define(session, np.zeros(LARGE, np.float32))
    for step in range(1, 4):
        assert (add(session, np.ones(LARGE, np.float32)) == step).all()
    assert transport.description == "unix socket (not on one machine)"
    session.close()


def test_a_ps_without_shared_memory_says_so() -> None:
    server = PsServer(PS, Settings(shared_memory=False))
    server.start("127.0.0.1:0")
    try:
        session, transport = open_session(server.port)
        define(session, np.zeros(LARGE, np.float32))
        assert (add(session, np.ones(LARGE, np.float32)) == 1).all()
        assert transport.description == "tcp (shared_memory is off at the ps)"
        session.close()
    finally:
        server.stop(grace_s=0)


def test_a_reader_never_sees_half_a_write(server: PsServer) -> None:
    writer, _ = open_session(server.port, index=0)
    reader, _ = open_session(server.port, index=1)
    define(writer, np.zeros(LARGE, np.float32))
    define(reader, np.zeros(LARGE, np.float32))
    done = threading.Event()

    def write() -> None:
        ones = np.ones(LARGE, np.float32)
        for _ in range(150):
            writer.step(PushPayload({"w": ones}, Operation.ASSIGN_ADD))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    last, reads = 0.0, 0
    while not done.is_set():
        value = reader.step(None, ["w"]).values["w"]
        assert value.min() == value.max(), "two moments in one value"
        assert value[0, 0] >= last
        last, reads = float(value[0, 0]), reads + 1
    thread.join(30)
    assert reads > 0
    assert (reader.step(None, ["w"]).values["w"] == 150).all()
    writer.close()
    reader.close()


def test_a_block_that_is_always_being_written_is_asked_for_through_the_stream(
    server: PsServer,
) -> None:
    session, transport = open_session(server.port)
    define(session, np.full(LARGE, 3, np.float32))
    [block] = server.store.blocks()
    block.memory.sequence[0] += 1  # as if a writer never ended
    assert (session.step(None, ["w"]).values["w"] == 3).all()
    block.memory.sequence[0] += 1
    assert transport.description == "shm"
    session.close()


def test_a_session_that_ends_leaves_no_descriptor_at_the_ps(server: PsServer) -> None:
    def segments() -> int:
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        return sum("memfd:windlass" in os.readlink(link) for link in links if os.path.islink(link))

    session, _ = open_session(server.port)
    define(session, np.zeros(LARGE, np.float32))
    session.close()
    wait = threading.Event()
    gc.collect()
    before = segments()
    for index in range(1, 4):
        session, _ = open_session(server.port, index=index)
        define(session, np.zeros(LARGE, np.float32))
        add(session, np.ones(LARGE, np.float32))
        session.close()
        del session, _
    for _ in range(100):
        gc.collect()
        if segments() <= before:
            break
        wait.wait(0.05)
    assert segments() <= before


WORKER = """
import sys
import numpy as np
from windlass.client.ps.push_plans import PushPayload
from windlass.client.ps.parameter_session import ParameterSession
from windlass.client.ps.remote_ps import RemotePs
from windlass.core.definitions import VariableDefinition
from windlass.core.settings import Settings
from windlass.core.steps import Operation
from windlass.core.task import Incarnation, TaskId

who = Incarnation(TaskId("worker", int(sys.argv[2])), 1)
session = ParameterSession([RemotePs(TaskId("ps", 0), sys.argv[1], who, Settings())], who, Settings())
session.connect()
value = np.zeros((300, 500), np.float32)
session.define([VariableDefinition("w", value.shape, value.dtype)], {"w": value}, create=True)
print("ready", flush=True)
for _ in range(100_000):
    session.step(PushPayload({"w": value + 1}, Operation.ASSIGN_ADD), ["w"])
"""


def test_a_worker_killed_in_the_middle_of_a_push_harms_nobody(server: PsServer) -> None:
    session, _ = open_session(server.port)
    define(session, np.zeros(LARGE, np.float32))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for index in range(1, 4):
        child = subprocess.Popen(
            [sys.executable, "-c", WORKER, f"127.0.0.1:{server.port}", str(index)],
            stdout=subprocess.PIPE,
            env=environment,
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            before = float(session.step(None, ["w"]).values["w"][0, 0])
            for _ in range(200):
                value = session.step(None, ["w"]).values["w"]
                if value[0, 0] > before:
                    break
            assert value[0, 0] > before
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait(10)
            if child.stdout is not None:
                child.stdout.close()
        value = add(session, np.ones(LARGE, np.float32))
        assert value.min() == value.max()
    shared = "/dev/shm"  # noqa: S108 - where named segments would be
    assert not [name for name in os.listdir(shared) if "windlass" in name]
    session.close()


def test_a_ps_killed_in_the_middle_of_a_push_is_an_error_that_names_it() -> None:
    code = (
        "from windlass.server.ps.server import PsServer\n"
        "from windlass.core.settings import Settings\n"
        "from windlass.core.task import TaskId\n"
        "server = PsServer(TaskId('ps', 0), Settings())\n"
        "server.start('127.0.0.1:0')\n"
        "print(server.port, flush=True)\n"
        "server.wait()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    try:
        assert child.stdout is not None
        session, _ = open_session(int(child.stdout.readline()))
        define(session, np.zeros(LARGE, np.float32))
        killer = threading.Timer(0.2, child.kill)
        killer.start()
        ones = np.ones(LARGE, np.float32)
        with pytest.raises(PeerLostError, match="/job:ps/task:0"):  # noqa: PT012 - in one of many
            for _ in range(100_000):
                add(session, ones)
        session.close()
    finally:
        child.kill()
        child.wait(10)
        if child.stdout is not None:
            child.stdout.close()
