"""Sessions of which one side is killed, stopped, slow or out of memory: real processes, every transport.

Importing NumPy, Numba and grpc takes a second, so processes are forked from one that has done that and
nothing else: a life then begins within milliseconds, and a test can afford a hundred of them. That process is
this file, run as a program; what it says on its standard output are lines of JSON.
"""

import ctypes
import errno
import json
import logging
import os
import queue
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from windlass.client.ps.streams import local_connection, tcp_connection
from windlass.net.frame_socket import FrameSocket, frame_head

from helpers.waiting import scaled
from windlass.client.ps.control import PsControl
from windlass.client.ps.parameter_session import ParameterSession, StepResult
from windlass.client.ps.push_plans import PushPayload
from windlass.client.ps.remote_ps import RemotePs
from windlass.client.ps.shared_payloads import ShmTransport
from windlass.core import codec
from windlass.core.arrays import Array
from windlass.core.checkpoint import CheckpointReader, latest_checkpoint
from windlass.core.definitions import ShardDefinition, VariableDefinition
from windlass.core.errors import LimitExceededError, PeerLostError, WindlassError
from windlass.core.report import PsCounters
from windlass.core.settings import Settings
from windlass.core.states import Phase
from windlass.core.steps import LayoutEntry, Operation, WireLayout
from windlass.core.task import Incarnation, TaskId
from windlass.core.versions import own_versions
from windlass.engine.block import Block, Gradient
from windlass.net.channel import open_channel
from windlass.net.shared_memory import SharedSegment, unavailable
from windlass.proto.v1 import ps_pb2, ps_pb2_grpc
from windlass.server.ps.server import PsServer
from windlass.testing import FaultPlan, run_script

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())

PS = TaskId("ps", 0)
CHIEF = Incarnation(TaskId("chief", 0), 1)
F32 = np.dtype(np.float32)
MANY = 100_000_000  # steps: more than anybody waits for
HANG_S = 30.0  # no promise about speed: what takes this long will never end

# Four blocks of 600 kB with a lock each: a push can break off between them.
BLOCKS = [VariableDefinition(f"v{i}", (150_000,), F32) for i in range(4)]
NAMES = [block.name for block in BLOCKS]

# How a worker's session goes on, and the settings of both sides that make it do so.
WAYS: dict[str, dict[str, Any]] = {
    "shm": {"shared_memory": True},
    "tcp": {"shared_memory": False, "tcp_sessions": True},
    "grpc": {"shared_memory": False, "tcp_sessions": False},
}
ways = pytest.mark.parametrize("way", list(WAYS))


def transport_in(way: str) -> str:
    return "grpc (tcp_sessions is off)" if way == "grpc" else way


# -- in the processes ------------------------------------------------------------------------


def say(event: str, **fields: Any) -> None:
    """A line for the test. One write, shorter than what a pipe takes at once: lines do not mix."""
    line = json.dumps({"pid": os.getpid(), "event": event, **fields})
    os.write(1, line.encode() + b"\n")


def open_session(
    address: str, index: int, *, generation: int = 1, **settings: Any
) -> ParameterSession:
    """A connected session of ``worker:index``."""
    who = Incarnation(TaskId("worker", index), generation)
    loaded = Settings(**{"join_timeout_s": 20.0, **settings})
    session = ParameterSession([RemotePs(PS, address, who, loaded)], who, loaded)
    try:
        session.connect()
    except WindlassError:
        session.close()
        raise
    return session


def define(session: ParameterSession, variables: Sequence[VariableDefinition]) -> None:
    zeros = {v.name: np.zeros(v.shape, v.dtype) for v in variables}
    session.define(variables, zeros, create=True)


def add(
    session: ParameterSession,
    variables: Sequence[VariableDefinition],
    value: float = 1,
    pulls: Sequence[str] = (),
) -> StepResult:
    values: dict[str, Any] = {v.name: np.full(v.shape, value, v.dtype) for v in variables}
    return session.step(PushPayload(values, Operation.ASSIGN_ADD), pulls, step_increment=1)


def run_ps(*, break_memory: str = "", **settings: Any) -> None:
    """A ps, until it is killed."""
    break_off(break_memory)
    server = PsServer(PS, Settings(**settings))
    server.start("127.0.0.1:0")
    say("ready", port=server.port)
    server.wait()


def run_worker(
    *,
    address: str,
    index: int,
    steps: int,
    generation: int = 1,
    pull: bool = False,
    break_memory: str = "",
    **settings: Any,
) -> None:
    """A worker that adds one to every block in each step, and says so after each."""
    break_off(break_memory)
    session = open_session(address, index, generation=generation, **settings)
    define(session, BLOCKS)
    say("ready")
    for step in range(1, steps + 1):
        add(session, BLOCKS, 1, NAMES if pull else ())
        say("acked", step=step)
    say("done", transports=list(session.transports))
    session.close()


def run_reader(*, address: str, index: int, until: float, reads: int, **settings: Any) -> None:
    """Reads every block until it has the value ``until``; every value must be whole and not older."""
    session = open_session(address, index, **settings)
    define(session, BLOCKS)
    say("ready")
    last = dict.fromkeys(NAMES, 0.0)
    for _ in range(reads):
        values = session.step(None, NAMES).values
        for name in NAMES:
            low, high = float(values[name].min()), float(values[name].max())
            if low != high or low < last[name]:
                say("torn", name=name, low=low, high=high, last=last[name])
                return
            last[name] = low
        if min(last.values()) >= until:
            break
    say("done", last=last, transports=list(session.transports))
    session.close()


def run_swarm(
    *,
    address: str,
    first: int,
    count: int,
    steps: int,
    sizes: Sequence[int],
    **settings: Any,
) -> None:
    """Workers in threads: worker i adds i + 1 in every step. They go on, and leave, at SIGUSR1."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    variables = swarm_variables(sizes)
    failures: list[BaseException] = []

    def in_threads(work: Callable[[int], None]) -> None:
        def guarded(index: int) -> None:
            try:
                work(index)
            except BaseException as error:  # noqa: BLE001 - told to the test
                failures.append(error)

        threads = [
            threading.Thread(target=guarded, args=(index,)) for index in range(first, first + count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    sessions: dict[int, ParameterSession] = {}

    def join(index: int) -> None:
        sessions[index] = open_session(address, index, **settings)
        define(sessions[index], variables)

    def work(index: int) -> None:
        for _ in range(steps):
            add(sessions[index], variables, index + 1, [v.name for v in variables])

    in_threads(join)
    say("connected")
    signal.sigwait({signal.SIGUSR1})
    in_threads(work)
    say("pushed")
    signal.sigwait({signal.SIGUSR1})
    for session in sessions.values():
        session.close()
    say("done")


def swarm_variables(sizes: Sequence[int]) -> list[VariableDefinition]:
    return [VariableDefinition(f"s{size}", (size,), np.dtype(np.float64)) for size in sizes]


def break_off(what: str) -> None:
    """Make this process one that cannot share memory."""
    if what == "file size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    elif what == "proc":
        os.open = refuse_proc(os.open)


def refuse_proc(opens: Callable[..., int]) -> Callable[..., int]:
    """``os.open`` of a process that may not look into others."""

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).startswith("/proc/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opens(path, *arguments, **options)

    return refuse


class _Saying(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say("warned", text=record.getMessage()[:1000])


def live(role: str, arguments: dict[str, Any]) -> NoReturn:
    """The life of a forked process."""
    # If the test itself is killed nobody else ends us.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    logging.getLogger("windlass").addHandler(_Saying(logging.WARNING))
    roles: dict[str, Callable[..., None]] = {
        "ps": run_ps,
        "worker": run_worker,
        "reader": run_reader,
        "swarm": run_swarm,
    }
    try:
        roles[role](**arguments)
    except BaseException as error:  # noqa: BLE001 - told to the test
        said = error.message if isinstance(error, WindlassError) else str(error)
        say("failed", kind=type(error).__name__, message=said[:2000])
    os._exit(0)


def main() -> None:
    """Fork what is asked for, and bury it."""
    for dtype in ("float32", "float64"):  # loaded once, not by every ps
        block = Block([ShardDefinition(VariableDefinition("w", (1,), np.dtype(dtype)))])
        block.assign_add(block.range_of(0), Gradient(np.zeros(1, dtype)))
    say("up", threads=len(os.listdir("/proc/self/task")))
    for line in sys.stdin:
        order = json.loads(line)
        if "bury" in order:
            _, status = os.waitpid(order["bury"], 0)
            say("ended", child=order["bury"], status=os.waitstatus_to_exitcode(status))
        elif (child := os.fork()) == 0:
            live(order["role"], order["arguments"])
        else:
            say("forked", child=child)


# -- in the test -----------------------------------------------------------------------------

Line = dict[str, Any]
LAST_WORDS = ("failed", "torn", "done")


class Life:
    """A forked process, as the test sees it."""

    def __init__(self, nursery: "Nursery", pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self.acked = 0  # the last step it knows to be done
        self.last_word: Line | None = None
        self.over = False

    def until(self, event: str, timeout_s: float = HANG_S) -> Line:
        """The next line of this kind. One that says what went wrong fails the test."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                pytest.fail(f"waited {timeout_s:g} s for {event!r} of process {self.pid}")
            if line["event"] == event:
                return line
            if line["event"] in LAST_WORDS:
                pytest.fail(f"expected {event!r} of process {self.pid}, it said {line}")

    def until_acked(self, step: int) -> None:
        wait_for(lambda: self.acked >= step or self.last_word is not None, f"step {step}")
        if self.acked < step:
            pytest.fail(f"expected step {step} of process {self.pid}, it said {self.last_word}")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9; all it had said is known afterwards."""
        self.signal(signal.SIGKILL)
        self.bury()

    def bury(self) -> None:
        """Wait for its end. Until then nobody else gets its pid."""
        if not self.over:
            self._nursery.ask({"bury": self.pid}, "ended")
            self.over = True


class Nursery:
    """Forks processes, and ends them all."""

    def __init__(self, folder: Path) -> None:
        self._lives: dict[int, Life] = {}
        self._answers: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self.folder = folder
        environment = {k: v for k, v in os.environ.items() if not k.startswith("WINDLASS_")}
        environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder)}
        # One thread: BLAS would make more, and a fork has only the one that forks.
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=folder,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        up = self._answers.get(timeout=HANG_S)
        assert up["threads"] == 1, "a fork of a process with threads may hang"

    def start(self, role: str, **arguments: Any) -> Life:
        pid = self.ask({"role": role, "arguments": arguments}, "forked")["child"]
        return self._lives[pid]

    def ask(self, order: Line, event: str) -> Line:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answers.get(timeout=HANG_S)
        assert answer["event"] == event
        return answer

    def empty(self) -> None:
        """End every process, by its pid."""
        for life in list(self._lives.values()):
            if not life.over:
                life.kill()
        self._lives.clear()

    def close(self) -> None:
        self._process.kill()  # what it had forked goes with it
        self._process.wait(10)
        self._reader.join(10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            if line["event"] in ("up", "forked", "ended"):
                if line["event"] == "forked":
                    self._life(line["child"])
                self._answers.put(line)
                continue
            life = self._life(line["pid"])
            if line["event"] in LAST_WORDS:
                life.last_word = line
            if line["event"] == "acked":
                life.acked = line["step"]
            else:
                life.lines.put(line)

    def _life(self, pid: int) -> Life:
        # A child may be heard of before its parent says that it is there.
        return self._lives.setdefault(pid, Life(self, pid))


class Ps:
    """A ps process."""

    def __init__(self, nursery: Nursery, way: str, **settings: Any) -> None:
        self.way = way
        self.life = nursery.start("ps", **WAYS[way], **settings)
        self.address = f"127.0.0.1:{self.life.until('ready')['port']}"
        self._control = PsControl(PS, self.address, Settings())

    @property
    def pid(self) -> int:
        return self.life.pid

    def counters(self) -> PsCounters:
        return self._control.attach(CHIEF, "127.0.0.1:1", lease_s=60, timeout_s=10).counters

    def until_sessions(self, count: int) -> None:
        wait_for(lambda: self.counters().sessions == count, f"{count} sessions")

    def close(self) -> None:
        self._control.close()
        if not self.life.over:
            self.life.kill()


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = HANG_S) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:g} s for {what}")
        pause.wait(0.005)


StartPs = Callable[..., Ps]
Join = Callable[..., ParameterSession]


@pytest.fixture(scope="module")
def one_nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("processes"))
    yield made
    made.close()


@pytest.fixture
def nursery(one_nursery: Nursery) -> Iterator[Nursery]:
    """Without processes at the beginning, and at the end."""
    yield one_nursery
    one_nursery.empty()


@pytest.fixture
def start_ps(nursery: Nursery) -> Iterator[StartPs]:
    started: list[Ps] = []

    def start(way: str, **settings: Any) -> Ps:
        started.append(Ps(nursery, way, **settings))
        return started[-1]

    yield start
    for ps in started:
        ps.close()


@pytest.fixture
def join() -> Iterator[Join]:
    """``join(ps, index, **settings)``: a session of this process."""
    opened: list[ParameterSession] = []

    def make(ps: Ps, index: int, **settings: Any) -> ParameterSession:
        opened.append(open_session(ps.address, index, **{**WAYS[ps.way], **settings}))
        return opened[-1]

    yield make
    for session in opened:
        session.close()


def whole(values: Any, names: Sequence[str] = NAMES) -> dict[str, float]:
    """How many pushes each block shows; all its elements show the same."""
    found = {}
    for name in names:
        low, high = float(values[name].min()), float(values[name].max())
        assert low == high, f"{name} is torn: {low} and {high}"
        assert low == int(low)
        found[name] = low
    return found


def segments(pid: int) -> list[tuple[int, int]]:
    """Segments a process has a descriptor of: (device, inode), once per descriptor."""
    found = []
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            if "memfd:windlass" in os.readlink(link):
                status = os.stat(link)
                found.append((status.st_dev, status.st_ino))
        except OSError:
            continue  # closed meanwhile
    return sorted(found)


def segments_mapped(pid: int) -> int:
    """How many mappings of segments a process has."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:windlass")


def status_of(pid: int, field: str) -> int:
    """A number of ``/proc/<pid>/status``; memory in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            number, *unit = rest.split()
            return int(number) * (1024 if unit else 1)
    raise KeyError(field)


@contextmanager
def most_memory(pid: int) -> Iterator[Callable[[], int]]:
    """``most() - before`` of a process's own memory, sampled all the time. Shared pages do not count."""
    over, samples = threading.Event(), [status_of(pid, "RssAnon")]

    def sample() -> None:
        while not over.wait(0.01):
            samples.append(status_of(pid, "RssAnon"))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield lambda: max(samples) - samples[0]
    finally:
        over.set()
        thread.join()


# -- killed workers --------------------------------------------------------------------------


@ways
def test_a_worker_killed_in_mid_push_leaves_whole_blocks_and_its_next_life_goes_on(
    nursery: Nursery, start_ps: StartPs, join: Join, way: str
) -> None:
    ps = start_ps(way)
    other = join(ps, 1)
    define(other, BLOCKS)
    mine = [VariableDefinition("mine", (200_000,), F32)]
    define(other, mine)
    add(other, [*mine])
    ps.until_sessions(1)
    held = len(segments(ps.pid)), segments_mapped(ps.pid)
    rng = random.Random(20)
    lives, done = 8, dict.fromkeys(NAMES, 0.0)
    steps = other.step(None, ["mine"]).global_step
    for life in range(1, lives + 1):
        worker = nursery.start(
            "worker", address=ps.address, index=0, steps=MANY, generation=life,
            **WAYS[way],
        )  # fmt: skip
        worker.until_acked(rng.randrange(1, 6))
        threading.Event().wait(rng.uniform(0, 0.02))  # where in a step it is hit is left to chance
        worker.kill()
        ps.until_sessions(1)
        # Others are served, and see all of what was acknowledged and at most the push under way.
        result = add(other, mine, 1, [*NAMES, "mine"])
        now = whole(result.values)
        added = {now[name] - done[name] for name in NAMES}
        assert added <= {worker.acked, worker.acked + 1}
        counted = result.global_step - steps - 1
        assert counted in (worker.acked, worker.acked + 1)
        assert counted <= min(added)  # a step counts when all of it is applied
        done, steps = now, result.global_step
        assert (result.values["mine"] == life + 1).all()
        wait_for(
            lambda: (len(segments(ps.pid)), segments_mapped(ps.pid)) == held,
            "the ps to give the dead worker's memory back",
        )
    last = nursery.start(
        "worker", address=ps.address, index=0, steps=5, generation=lives + 1, **WAYS[way]
    )
    last.until("done")
    last.bury()
    result = other.step(None, NAMES)
    assert whole(result.values) == {name: count + 5 for name, count in done.items()}
    assert result.global_step == steps + 5
    other.close()
    ps.until_sessions(0)


@ways
def test_an_older_life_that_only_hung_is_fenced_and_changes_nothing(
    nursery: Nursery, start_ps: StartPs, join: Join, way: str
) -> None:
    ps = start_ps(way)
    other = join(ps, 1)
    define(other, BLOCKS)
    older = nursery.start(
        "worker", address=ps.address, index=0, steps=MANY, **WAYS[way]
    )  # fmt: skip
    older.until_acked(3)
    older.signal(signal.SIGSTOP)
    newer = nursery.start("worker", address=ps.address, index=0, steps=5, generation=2, **WAYS[way])
    newer.until("done")
    before = whole(other.step(None, NAMES).values)
    assert set(before.values()) <= {older.acked + 5.0, older.acked + 6.0}
    older.signal(signal.SIGCONT)
    assert older.until("failed")["kind"] == "FencedError"
    assert whole(other.step(None, NAMES).values) == before
    older.bury()
    newer.bury()


# -- killed ps -------------------------------------------------------------------------------


@ways
def test_a_ps_killed_in_mid_push_is_an_error_that_names_it_and_never_a_hang(
    nursery: Nursery, start_ps: StartPs, way: str
) -> None:
    rng = random.Random(21)
    for _ in range(2):
        ps = start_ps(way)
        workers = [
            nursery.start(
                "worker", address=ps.address, index=index, steps=MANY, pull=bool(index),
                **WAYS[way], reconnect_timeout_s=0.5,
            )
            for index in range(2)
        ]  # fmt: skip
        for worker in workers:
            worker.until_acked(rng.randrange(1, 4))
        threading.Event().wait(rng.uniform(0, 0.02))
        ps.life.kill()
        for worker in workers:
            failed = worker.until("failed", 10)
            assert failed["kind"] == "PeerLostError"
            assert "/job:ps/task:0" in failed["message"]
            assert ps.address in failed["message"]
            worker.bury()


# -- nothing is left behind ------------------------------------------------------------------


def local_sockets(pid: int) -> set[str]:
    """Names in the abstract namespace that a process listens at."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {row[7] for row in rows if len(row) > 7 and row[6] in inodes and row[7][0] == "@"}


def all_local_sockets() -> set[str]:
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {row[7] for row in rows if len(row) > 7}


def all_segments() -> set[tuple[int, int]]:
    """Segments that any living process has a descriptor of."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return {segment for pid in pids for segment in segments(pid)}


def shared_files() -> set[str]:
    """Where named segments would be. Other programs of this machine use that folder too."""
    return {str(path) for path in Path("/dev/shm").glob("*windlass*")}  # noqa: S108 - looked at


@pytest.mark.parametrize("ps_count", [2, pytest.param(10, marks=pytest.mark.soak)])
def test_killed_workers_and_killed_ps_leave_nothing_behind(
    nursery: Nursery, start_ps: StartPs, ps_count: int
) -> None:
    files, rng = shared_files(), random.Random(22)
    used: set[tuple[int, int]] = set()
    names: set[str] = set()
    for _ in range(ps_count):
        ps = start_ps("shm")
        names |= local_sockets(ps.pid)
        for index in range(10):
            worker = nursery.start(
                "worker", address=ps.address, index=index, steps=MANY, **WAYS["shm"]
            )
            worker.until_acked(1)
            own = set(segments(worker.pid))
            assert own & set(segments(ps.pid)), "they share no memory; the test would show nothing"
            used |= own
            threading.Event().wait(rng.uniform(0, 0.01))
            if index < 9:
                worker.kill()
        ps.life.kill()  # while the last worker pushes
        worker.kill()
    assert len(names) == ps_count
    assert len(used) >= 10 * ps_count
    assert not names & all_local_sockets()
    assert not used & all_segments()
    assert shared_files() <= files
    assert not list(nursery.folder.iterdir())  # their TMPDIR, and where they were


# -- slow readers ----------------------------------------------------------------------------

PULLED = [VariableDefinition(f"p{i}", (1_000_000,), F32) for i in range(8)]  # 4 MB each
UNREAD_STEPS = 12


def hello(index: int, ticket: bytes = b"") -> bytes:
    message = ps_pb2.Hello(versions=codec.versions_to_wire(own_versions()), ticket=ticket)
    who = Incarnation(TaskId("worker", index), 1)
    getattr(message, "from").CopyFrom(codec.incarnation_to_wire(who))
    return ps_pb2.ExchangeRequest(hello=message).SerializeToString()


def pulling_frames(index: int, ticket: bytes = b"") -> list[bytes]:
    """A session that asks for everything again and again."""
    layout = WireLayout(1, tuple(LayoutEntry(v.name, 0, Operation.PULL) for v in PULLED))
    first = ps_pb2.ExchangeRequest(layout=codec.layout_to_wire(layout)).SerializeToString()
    steps = [
        ps_pb2.ExchangeRequest(
            step=ps_pb2.Step(request_id=number + 1, pull_layout=1)
        ).SerializeToString()
        for number in range(UNREAD_STEPS)
    ]
    return [hello(index, ticket), first, *steps]


@contextmanager
def unread_grpc(ps: Ps, index: int) -> Iterator[None]:
    """A client that speaks and does not listen."""
    over = threading.Event()

    def requests() -> Iterator[ps_pb2.ExchangeRequest]:
        for frame in pulling_frames(index):
            yield ps_pb2.ExchangeRequest.FromString(frame)
        over.wait(HANG_S)

    with open_channel(ps.address, Settings()) as channel:
        call = ps_pb2_grpc.ParameterServerStub(channel).Exchange(requests())
        yield
        call.cancel()
        over.set()


@contextmanager
def unread_socket(ps: Ps, index: int) -> Iterator[None]:
    """The same through the socket that a session goes on over."""
    said: queue.SimpleQueue[ps_pb2.ExchangeRequest | None] = queue.SimpleQueue()
    with open_channel(ps.address, Settings()) as channel:
        call = ps_pb2_grpc.ParameterServerStub(channel).Exchange(iter(said.get, None))
        said.put(ps_pb2.ExchangeRequest.FromString(hello(index)))
        welcome = next(call).welcome
        frames = FrameSocket(connected_by(welcome), 1 << 20)
        with closing(frames):
            first, *others = pulling_frames(index, welcome.ticket)
            frames.write(frame_head(first))
            assert frames.receive() is not None  # welcomed, so the stream may end
            said.put(None)
            call.cancel()
            for frame in others:
                frames.write(frame_head(frame))
            yield


def connected_by(welcome: ps_pb2.Welcome) -> socket.socket:
    if welcome.local_socket:
        return local_connection(welcome.local_socket)
    return tcp_connection("127.0.0.1", welcome.session_port)


@ways
def test_clients_that_do_not_read_hold_up_nobody_and_fill_nothing(
    start_ps: StartPs, join: Join, way: str
) -> None:
    ps = start_ps(way)
    other = join(ps, 0)
    define(other, PULLED)
    add(other, PULLED, 1, [v.name for v in PULLED])
    ps.until_sessions(1)
    slow = unread_grpc if way == "grpc" else unread_socket
    block, pull = PULLED[0].num_bytes, sum(v.num_bytes for v in PULLED)
    before = ps.counters()
    with most_memory(ps.pid) as most, slow(ps, 1), slow(ps, 2), slow(ps, 3):
        ps.until_sessions(4)
        # It answers each as far as it can, then waits for it.
        wait_for(
            lambda: ps.counters().bytes_out - before.bytes_out >= 3 * pull,
            "the slow ones to be served",
        )
        for count in range(2, 7):  # ours, of the same blocks
            values = add(other, PULLED, 1, [v.name for v in PULLED]).values
            assert set(whole(values, list(values)).values()) == {count}
        # None of the unread pulls was answered whole; ours were.
        assert ps.counters().pulls - before.pulls == 5
        # Per client: frames of one block, made under its lock, and what grpc has taken of the next ones
        # (its window grows up to 8 MiB at a loopback's speed); the other worker has a staging
        # buffer and frames of a block too. All that was asked for would be many times more.
        bound = 3 * (2 * block + 8 * 1024**2) + 4 * block + 16 * 1024**2
        assert most() < bound
        assert bound * 5 < 3 * UNREAD_STEPS * pull
    ps.until_sessions(1)
    wait_for(lambda: len(connections(ps)) <= (way != "grpc"), "their connections to be closed")
    assert set(whole(add(other, PULLED, 1, ["p0"]).values, ["p0"]).values()) == {7}


def connections(ps: Ps) -> list[str]:
    """The ps's ends of sockets that carry sessions and are not gRPC's."""
    inodes = set()
    for link in Path(f"/proc/{ps.pid}/fd").glob("*"):
        try:
            inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    found = []
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        row = line.split()
        if len(row) > 7 and row[5] == "03":  # connected, and bound to a name: by way of a listener
            found.append(row[6])
    grpc_port = int(ps.address.rpartition(":")[2])
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        row = line.split()
        if row[3] == "01" and int(row[1].rpartition(":")[2], 16) != grpc_port:  # established
            found.append(row[9])
    return [inode for inode in found if inode in inodes]


# -- memory that cannot be had ---------------------------------------------------------------


def failing(number: int) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def add_and_check(ps: Ps, session: ParameterSession, steps: int = 4, since: int = 0) -> None:
    pushes = ps.counters().pushes
    for count in range(since + 1, since + steps + 1):
        result = add(session, BLOCKS, 1, NAMES)
        assert set(whole(result.values).values()) == {count}
    assert ps.counters().pushes == pushes + steps
    assert ps.counters().duplicates == 0


@pytest.mark.parametrize(
    ("function", "number", "said"),
    [
        ("ftruncate", errno.ENOSPC, "No space left on device"),
        ("ftruncate", errno.ENOMEM, "Cannot allocate memory"),
        ("memfd_create", errno.EMFILE, "Too many open files"),
        ("memfd_create", errno.ENOMEM, "Cannot allocate memory"),
    ],
    ids=["full", "no memory to grow", "too many files", "no memory"],
)
def test_a_worker_that_gets_no_segment_pushes_through_the_stream_and_says_why(
    start_ps: StartPs,
    join: Join,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    number: int,
    said: str,
) -> None:
    ps = start_ps("shm")
    session = join(ps, 0)
    define(session, BLOCKS[:1])
    assert session.transports == ("ps:0 shm",)
    before = len(segments(os.getpid()))
    monkeypatch.setattr(os, function, failing(number))
    define(session, BLOCKS)  # assigns, through a segment larger than the first one
    add_and_check(ps, session)
    size = sum(v.num_bytes for v in BLOCKS)
    [transport] = session.transports
    assert transport.startswith("ps:0 unix socket (no segment of")
    assert transport.endswith(f"bytes: {said})")
    assert size > 1024**2
    assert len(segments(os.getpid())) <= before  # no descriptor of a segment half made


def test_a_worker_whose_files_may_not_grow_pushes_through_the_stream(
    nursery: Nursery, start_ps: StartPs, join: Join
) -> None:
    ps = start_ps("shm")
    worker = nursery.start(
        "worker", address=ps.address, index=0, steps=5, pull=True, break_memory="file size"
    )
    [transport] = worker.until("done")["transports"]
    assert transport.startswith("ps:0 unix socket (no segment of")
    assert "File too large" in transport
    other = join(ps, 1)
    define(other, BLOCKS)
    assert set(whole(other.step(None, NAMES).values).values()) == {5}
    assert other.transports == ("ps:0 shm",)  # of no concern to others
    worker.bury()


@pytest.mark.parametrize("side", ["worker", "ps"])
def test_a_side_that_may_not_look_into_the_other_has_values_through_the_stream(
    nursery: Nursery, start_ps: StartPs, join: Join, side: str
) -> None:
    ps = start_ps("shm", break_memory="proc" if side == "ps" else "")
    worker = nursery.start(
        "worker", address=ps.address, index=0, steps=5, pull=True,
        break_memory="proc" if side == "worker" else "",
    )  # fmt: skip
    [transport] = worker.until("done")["transports"]
    assert transport.startswith("ps:0 unix socket (not on one machine, or not one user: ")
    assert "Permission denied" in transport
    other = join(ps, 1)
    define(other, BLOCKS)
    assert set(whole(other.step(None, NAMES).values).values()) == {5}
    counters = ps.counters()
    assert counters.pushes == 5 + 1  # the first assigns
    assert counters.duplicates == 0
    worker.bury()


def test_a_ps_that_gets_no_segment_keeps_values_of_its_own_and_serves_them(
    nursery: Nursery, start_ps: StartPs, join: Join
) -> None:
    ps = start_ps("shm", break_memory="file size")
    session = join(ps, 0)
    define(session, BLOCKS)
    warned = ps.life.until("warned")["text"]
    assert "no shared memory: [Errno 27] File too large; values go through the stream" in warned
    add_and_check(ps, session)


def test_a_small_limit_on_steps_does_not_keep_them_out_of_shared_memory(
    start_ps: StartPs, join: Join
) -> None:
    ps = start_ps("shm", max_step_bytes=512 * 1024)
    session = join(ps, 0, max_step_bytes=512 * 1024)
    w = VariableDefinition("w", (50_000,), F32)
    define(session, [w])
    assert (add(session, [w], 1, ["w"]).values["w"] == 1).all()
    assert session.transports == ("ps:0 shm",)


# -- a write in progress ---------------------------------------------------------------------


def sequence_of(session: ParameterSession, variable: VariableDefinition) -> Array:
    """The sequence lock of the block that holds a variable, in the ps's own memory."""
    [transport] = session.peers
    assert isinstance(transport, ShmTransport)
    [held] = transport.define([ShardDefinition(variable)], create=False)
    assert held.memory is not None
    memory = SharedSegment.open(held.memory.segment).memory
    start = held.memory.sequence_offset
    return memory[start : start + 8].view(np.int64)


def test_a_reader_asks_through_the_stream_for_what_is_being_written_all_the_time(
    start_ps: StartPs, join: Join
) -> None:
    ps = start_ps("shm")
    session, other = join(ps, 0), join(ps, 1)
    define(session, BLOCKS)
    define(other, BLOCKS)
    add(other, BLOCKS, 3)
    sequence = sequence_of(session, BLOCKS[2])
    assert sequence[0] % 2 == 0
    read = ps.counters().pulls
    sequence[0] += 1
    try:
        for _ in range(2):
            values = session.step(None, NAMES).values
            assert set(whole(values).values()) == {3}
            # Both the look into the memory and the question are counted.
            assert ps.counters().pulls - read >= 2
            read = ps.counters().pulls
    finally:
        sequence[0] += 1
    assert session.transports == ("ps:0 shm",)  # the next time it looks again
    assert set(whole(session.step(None, NAMES).values).values()) == {3}
    assert ps.counters().pulls == read + 1


def test_a_reader_waits_for_a_write_that_ends_and_takes_what_it_wrote(
    start_ps: StartPs, join: Join
) -> None:
    ps = start_ps("shm")
    session = join(ps, 0)
    define(session, BLOCKS)
    sequence = sequence_of(session, BLOCKS[0])
    [transport] = session.peers
    assert isinstance(transport, ShmTransport)
    [held] = transport.define([ShardDefinition(BLOCKS[0])], create=False)
    assert held.memory is not None
    memory = SharedSegment.open(held.memory.segment).memory
    values = memory[held.memory.offset : held.memory.offset + BLOCKS[0].num_bytes].view(F32)
    sequence[0] += 1
    values[: values.size // 2] = 7  # half a write
    answered = threading.Event()
    brought: list[Array] = []

    def read() -> None:
        brought.append(session.step(None, NAMES).values["v0"])
        answered.set()

    pulls = ps.counters().pulls
    thread = threading.Thread(target=read)
    thread.start()
    wait_for(lambda: ps.counters().pulls > pulls, "the reader to begin")
    values[:] = 7
    sequence[0] += 1
    thread.join(HANG_S)
    assert answered.is_set()
    assert (brought[0] == 7).all()


@pytest.mark.scenario
@ways
def test_readers_of_a_ps_under_constant_writing_see_whole_blocks_that_never_go_back(
    nursery: Nursery, start_ps: StartPs, join: Join, way: str
) -> None:
    steps = 300 if way == "shm" else 80
    ps = start_ps(way)
    writer = nursery.start(
        "worker", address=ps.address, index=0, steps=steps, **WAYS[way]
    )  # fmt: skip
    writer.until("ready")
    readers = [
        nursery.start(
            "reader", address=ps.address, index=index, until=steps, reads=20 * steps,
            **WAYS[way],
        )
        for index in (1, 2)
    ]  # fmt: skip
    writer.until("done")
    for reader in readers:
        reader.until("ready")
        done = reader.until("done")
        assert set(done["last"].values()) == {steps}
        assert done["transports"] == [f"ps:0 {transport_in(way)}"]
        reader.bury()
    writer.bury()


# -- a ps that hangs -------------------------------------------------------------------------


@ways
def test_a_ps_that_hangs_in_mid_step_and_wakes_up_has_every_step_once(
    nursery: Nursery, start_ps: StartPs, join: Join, way: str
) -> None:
    ps = start_ps(way)
    worker = nursery.start(
        "worker", address=ps.address, index=0, steps=100, pull=True,
        **WAYS[way], request_timeout_s=0.5, reconnect_timeout_s=20.0,
    )  # fmt: skip
    rng = random.Random(23)
    for _ in range(3):
        worker.until_acked(worker.acked + 3)
        threading.Event().wait(rng.uniform(0, 0.01))
        ps.life.signal(signal.SIGSTOP)
        assert "reconnecting" in worker.until("warned")["text"]
        ps.life.signal(signal.SIGCONT)
    worker.until("done")
    other = join(ps, 1)
    define(other, BLOCKS)
    result = other.step(None, NAMES)
    assert set(whole(result.values).values()) == {100}
    assert result.global_step == 100
    other.close()
    ps.until_sessions(0)
    worker.bury()


@ways
def test_a_ps_that_hangs_for_too_long_is_lost_and_its_next_worker_finds_each_push_once(
    nursery: Nursery, start_ps: StartPs, join: Join, way: str
) -> None:
    ps = start_ps(way)
    worker = nursery.start(
        "worker", address=ps.address, index=0, steps=MANY, pull=True,
        **WAYS[way], request_timeout_s=0.5, reconnect_timeout_s=0.5,
    )  # fmt: skip
    worker.until_acked(5)
    ps.life.signal(signal.SIGSTOP)
    failed = worker.until("failed", 10)
    assert failed["kind"] == "PeerLostError"
    assert "/job:ps/task:0" in failed["message"]
    worker.bury()
    ps.life.signal(signal.SIGCONT)
    ps.until_sessions(0)  # what it still had to read of the dead session is done
    other = join(ps, 1)
    define(other, BLOCKS)
    before = other.step(None, NAMES)
    counts = whole(before.values)
    assert set(counts.values()) <= {worker.acked, worker.acked + 1}
    assert before.global_step in (worker.acked, worker.acked + 1)
    again = nursery.start("worker", address=ps.address, index=0, steps=5, generation=2, **WAYS[way])
    again.until("done")
    after = other.step(None, NAMES)
    assert whole(after.values) == {name: count + 5 for name, count in counts.items()}
    assert after.global_step == before.global_step + 5
    again.bury()


def test_a_step_after_one_that_was_given_up_does_not_change_what_that_one_pushes(
    start_ps: StartPs, join: Join
) -> None:
    """The ps was stopped while it read the push in our memory, and wakes up later."""
    large = VariableDefinition("large", (16_000_000,), F32)  # 64 MB: applied for some ms
    ps = start_ps("shm")
    # Time enough for a step of 64 MB of a ps that runs, also on a busy machine.
    session = join(ps, 0, request_timeout_s=scaled(0.5), reconnect_timeout_s=0.3)
    define(session, [large])
    sequence = sequence_of(session, large)
    acked = 3
    for _ in range(acked):  # the first one waits for the kernel to be loaded
        add(session, [large])
    over = threading.Event()

    def stop_within_a_write() -> None:
        while not over.is_set():
            if sequence[0] % 2:
                ps.life.signal(signal.SIGSTOP)
                wait_for(lambda: state_of(ps.pid) == "T", "the ps to stop")
                if sequence[0] % 2:
                    return
                ps.life.signal(signal.SIGCONT)

    thread = threading.Thread(target=stop_within_a_write)
    thread.start()
    try:
        with pytest.raises(PeerLostError):  # noqa: PT012 - in one of many
            for _ in range(1000):
                add(session, [large])
                acked += 1
        with pytest.raises(PeerLostError):
            add(session, [large], 1000)
    finally:
        over.set()
        thread.join(HANG_S)
        ps.life.signal(signal.SIGCONT)
    session.close()
    ps.until_sessions(0)
    other = join(ps, 1)
    define(other, [large])
    result = other.step(None, ["large"])
    [count] = whole(result.values, ["large"]).values()
    assert count in (acked, acked + 1)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# -- many at once ----------------------------------------------------------------------------


@pytest.mark.scenario
@ways
def test_sixty_four_workers_at_once_add_up_within_bounds(
    nursery: Nursery, start_ps: StartPs, join: Join, way: str
) -> None:
    workers, steps, sizes = 64, 30, (50, 20_000)  # 400 bytes in a message, 160 kB beside it
    ps = start_ps(way, max_sessions=workers)
    halves = [
        nursery.start(
            "swarm", address=ps.address, first=first, count=workers // 2, steps=steps,
            sizes=sizes, **WAYS[way],
        )
        for first in (0, workers // 2)
    ]  # fmt: skip
    for half in halves:
        half.until("connected", 60)
    ps.until_sessions(workers)
    with pytest.raises(LimitExceededError, match="max_sessions") as caught:
        join(ps, workers)
    assert caught.value.fields["limit"] == "max_sessions"
    threads = status_of(ps.pid, "Threads")
    with most_memory(ps.pid) as most:
        for half in halves:
            half.signal(signal.SIGUSR1)
        for half in halves:
            half.until("pushed", 60)
        step = sum(8 * size for size in sizes)
        # A thread per session; on a machine shared with the workers also the one it was welcomed on.
        # Beside them grpc's own, the copying pool's 8, and the few of the server.
        assert status_of(ps.pid, "Threads") <= workers * (1 + (way != "grpc")) + 48
        assert status_of(ps.pid, "Threads") <= threads + 8
        # Per session: a staging buffer, frames of what it pulls, and grpc's windows both ways of
        # 64 KiB to begin with, which hold a frame each; the heap keeps about as much again.
        bound = workers * 2 * (2 * step + 2 * 64 * 1024) + 64 * 1024**2
        assert bound * 4 < workers * steps * 2 * step
        assert most() < bound
    for half in halves:
        half.signal(signal.SIGUSR1)
    for half in halves:
        half.until("done")
        half.bury()
    ps.until_sessions(0)
    other = join(ps, 0, join_timeout_s=5.0)
    define(other, swarm_variables(sizes))
    result = other.step(None, [f"s{size}" for size in sizes])
    expected = steps * workers * (workers + 1) / 2
    assert whole(result.values, [f"s{size}" for size in sizes]) == {
        f"s{size}": expected for size in sizes
    }
    assert result.global_step == steps * workers


@ways
def test_a_worker_is_not_in_its_own_way_at_a_full_ps(
    start_ps: StartPs, join: Join, way: str
) -> None:
    """It dials before it goes near, and has two connections for a moment."""
    ps = start_ps(way, max_sessions=1)
    session = join(ps, 0)
    define(session, BLOCKS)
    add_and_check(ps, session)
    with pytest.raises(LimitExceededError, match="max_sessions"):
        join(ps, 1)


@ways
def test_a_worker_that_comes_back_while_its_last_step_is_still_at_work_has_its_seat(
    way: str,
) -> None:
    """The ps has not heard yet that the session it works for is dead."""
    settings: dict[str, Any] = {**WAYS[way], "max_sessions": 1}
    server = PsServer(PS, Settings(**settings))
    server.start("127.0.0.1:0")
    try:
        session = open_session(f"127.0.0.1:{server.port}", 0, request_timeout_s=0.3, **settings)
        define(session, BLOCKS)
        pushes = server.store.counters().pushes
        results: list[StepResult | WindlassError] = []

        def push() -> None:
            try:
                results.append(add(session, BLOCKS, 1, NAMES))
            except WindlassError as error:
                results.append(error)

        block = server.store.blocks()[1]
        received = server.store.counters().bytes_in
        with block.lock:  # somebody else's push takes long
            thread = threading.Thread(target=push)
            thread.start()
            # Both the step and its repeat have arrived, or the worker has given up.
            step = sum(v.num_bytes for v in BLOCKS)
            wait_for(
                lambda: results or server.store.counters().bytes_in >= received + 2 * step,
                "the worker to come back",
            )
        thread.join(HANG_S)
        [result] = results
        assert isinstance(result, StepResult), result
        assert set(whole(result.values).values()) == {1}
        assert server.store.counters().pushes == pushes + 1
        session.close()
    finally:
        server.stop(grace_s=0)


# -- prefetch --------------------------------------------------------------------------------

WriteProgram = Callable[..., str]


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize(
    ("prefetch", "way"),
    [(False, "shm"), (True, "shm"), (True, "tcp"), (True, "grpc")],
    ids=["waiting", "prefetch-shm", "prefetch-tcp", "prefetch-grpc"],
)
def test_a_job_that_prefetches_survives_a_killed_worker_as_one_that_waits(
    write_program: WriteProgram, tmp_path: Path, prefetch: bool, way: str
) -> None:
    program = write_program(
        replace={
            "ParameterServerStrategy()": f"ParameterServerStrategy(prefetch={prefetch})",
            # Large enough not to travel in a message.
            'name="b")': 'name="b")\n        big = wl.Variable(np.zeros(40_000, np.float32), name="big")',
            "(np.float32(2 * rest.mean()), b)]": "(np.float32(2 * rest.mean()), b), "
            "(big.read_value() - 1, big)]",
        }
    )
    result = run_script(
        program, "300", "0.005", model_dir=str(tmp_path / "model"), workers=2,
        faults=FaultPlan().kill("worker", 1, at_step=50), **WAYS[way],
    )  # fmt: skip
    assert result.exit_code == 0, result.text
    assert [code for code in result.exits.values() if code] == [-signal.SIGKILL]
    assert result.first_failure is None
    assert result.status is not None
    assert result.status.phase is Phase.DONE
    assert result.status.global_step >= 300
    last = latest_checkpoint(result.model_dir)
    assert last is not None
    reader = CheckpointReader(last.path)
    reader.verify()
    assert reader.manifest.final
    # 300 steps of rate 0.05 on least squares without noise leave 0.95**300 < 1e-6 of the distance to the
    # answer, at the pace of the curvature's mean; a few times slower at its smallest. Values that
    # are some steps older change nothing about that.
    np.testing.assert_allclose(reader.read("w"), np.arange(4), atol=0.03)
    np.testing.assert_allclose(reader.read("big"), np.ones(40_000), atol=0.03)


if __name__ == "__main__":
    main()
