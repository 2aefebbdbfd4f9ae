"""Large steps over ``shm``: the worker writes, the ps applies and the worker reads at the same time.

A worker sees its own push in everything it reads, whatever goes how fast; each push is applied once, whatever
breaks when.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from windlass.client.ps.stream_transport import StreamTransport

from windlass.client.ps import direct_pull
from windlass.client.ps.parameter_session import ParameterSession
from windlass.client.ps.push_plans import PushPayload
from windlass.client.ps.remote_ps import RemotePs
from windlass.client.ps.shared_payloads import _ABREAST_BYTES, ShmTransport
from windlass.cluster.partitioners import FixedShardsPartitioner
from windlass.core.arrays import Array
from windlass.core.definitions import VariableDefinition
from windlass.core.errors import (
    FencedError,
    LimitExceededError,
    PeerLostError,
    RefusedError,
    SequenceError,
)
from windlass.core.indexed_slices import IndexedSlices
from windlass.core.settings import Settings
from windlass.core.steps import Operation, SegmentAddress, StepRequest
from windlass.core.task import Incarnation, TaskId
from windlass.core.update_rules import SGD
from windlass.engine.block import Block
from windlass.net.shared_memory import APPLIED, SharedSegment, unavailable
from windlass.server.ps import servicer
from windlass.server.ps.server import PsServer
from windlass.server.ps.store import Store

pytestmark = [
    pytest.mark.skipif(bool(unavailable()), reason=unavailable()),
    pytest.mark.timeout(60),
]

F32 = np.dtype(np.float32)
SETTINGS = Settings(
    request_timeout_s=20.0, reconnect_timeout_s=5.0, join_timeout_s=5.0, max_sessions=4
)
# Small ones share a block, which is applied when its last one has come; from 256 KiB on each has its own.
SIZES = {
    "tiny": 3,
    "first": 30_000,
    "large": 600_000,
    "second": 30_000,
    "exact": 65_536,
    "under": 65_535,
    "other": 300_000,
    "third": 30_000,
}
SHARED = ("tiny", "first", "second", "under", "third")
NAMES = list(SIZES)
LARGE_WRITE = 3  # with this piece "large" is written
pause = threading.Event()


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())

    def left() -> list[str]:
        names = [t.name for t in threading.enumerate() if t not in before]
        return [name for name in names if name.startswith(("session", "ps-deadlines", "test-"))]

    yield
    until(lambda: not left())


@pytest.fixture
def start() -> Iterator[Callable[..., PsServer]]:
    """Starts ps on loopback."""
    started: list[PsServer] = []

    def make(index: int = 0, **changes: Any) -> PsServer:
        server = PsServer(TaskId("ps", index), SETTINGS.model_copy(update=changes))
        server.start("127.0.0.1:0")
        started.append(server)
        return server

    yield make
    for server in started:
        server.stop(grace_s=0)


@pytest.fixture
def join(no_thread_left: None) -> Iterator[Callable[..., ParameterSession]]:
    """Connects workers, and closes their sessions."""
    opened: list[ParameterSession] = []

    def make(
        *servers: PsServer, index: int = 0, generation: int = 1, **changes: Any
    ) -> ParameterSession:
        settings = SETTINGS.model_copy(update=changes)
        who = Incarnation(TaskId("worker", index), generation)
        transports = [
            RemotePs(server.task, f"127.0.0.1:{server.port}", who, settings) for server in servers
        ]
        session = ParameterSession(transports, who, settings)
        opened.append(session)
        session.connect()
        return session

    yield make
    for session in opened:
        session.close()


Start = Callable[..., PsServer]
Join = Callable[..., ParameterSession]


def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {timeout_s} s"
        pause.wait(0.002)


def transport_of(session: ParameterSession, ps: int = 0) -> ShmTransport:
    transport = session.peers[ps]
    assert isinstance(transport, ShmTransport)
    return transport


def servicer_of(server: PsServer) -> Any:
    return server._doors._servicer


def cut(session: ParameterSession) -> None:
    """Break the connection, as a network would."""
    stream = transport_of(session)._stream._stream
    if stream is not None:
        stream.carrier.cancel()


def was_abreast(session: ParameterSession) -> bool:
    transport = transport_of(session)
    return transport._abreast and transport.shares_memory


def define(
    session: ParameterSession,
    values: Mapping[str, Array],
    *,
    create: bool = True,
    parts: int = 1,
    rule: SGD | None = None,
) -> None:
    definitions = [VariableDefinition(n, v.shape, v.dtype) for n, v in values.items()]
    session.define(definitions, values, create=create, partitioner=FixedShardsPartitioner(parts))
    if rule is not None:
        session.bind(list(values), rule)


def zeros(sizes: Mapping[str, int] = SIZES) -> dict[str, Array]:
    return {name: np.zeros(size, F32) for name, size in sizes.items()}


def add(value: float = 1, names: Sequence[str] = NAMES) -> PushPayload:
    return PushPayload({n: np.full(SIZES[n], value, F32) for n in names}, Operation.ASSIGN_ADD)


def are(values: Mapping[str, Array], expected: float, names: Sequence[str] = NAMES) -> None:
    """Every element of every one; these are whole numbers, so there is nothing to tolerate."""
    found = {name: (float(values[name].min()), float(values[name].max())) for name in names}
    assert found == dict.fromkeys(names, (expected, expected))


def slow_down(
    monkeypatch: pytest.MonkeyPatch, seconds: float = 0.003, which: Callable[[Block], bool] = bool
) -> None:
    """The ps waits before it applies a block: whoever reads too early reads what was before."""
    apply = Store._apply

    def slow(block: Block, work: Any, facts: Any) -> None:
        if which(block):
            pause.wait(seconds)
        apply(block, work, facts)

    monkeypatch.setattr(Store, "_apply", staticmethod(slow))


@pytest.fixture(params=["as-it-is", "slow-ps", "slow-worker"])
def pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who waits for whom."""
    if request.param == "slow-ps":
        slow_down(monkeypatch)
    if request.param == "slow-worker":
        write = Piece.write

        def slow(piece: Piece, out: Array) -> None:
            pause.wait(0.003)
            write(piece, out)

        monkeypatch.setattr(Piece, "write", slow)
    return str(request.param)


def at_write(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    """Do something once, before a worker writes its so manyth piece from now on."""
    write, count = Piece.write, 0

    def counting(piece: Piece, out: Array) -> None:
        nonlocal count
        count += 1
        if count == number:
            act()
        write(piece, out)

    monkeypatch.setattr(Piece, "write", counting)


# -- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_ps", [1, 2], ids=["1-ps", "2-ps"])
def test_many_steps_are_what_numpy_says_to_the_bit(
    start: Start, join: Join, pace: str, num_ps: int
) -> None:
    session = join(*(start(index) for index in range(num_ps)))
    rng = np.random.default_rng(0)
    expected = {n: rng.normal(size=size).astype(F32) for n, size in SIZES.items()}
    define(session, expected, parts=num_ps, rule=SGD(learning_rate=0.1))
    expected = {n: value.copy() for n, value in expected.items()}
    for step in range(1, 13):
        gradients = {n: rng.normal(size=size).astype(F32) for n, size in SIZES.items()}
        result = session.step(PushPayload(gradients), NAMES, step_increment=1)
        for name in NAMES:
            expected[name] -= np.float32(0.1) * gradients[name]
            assert np.array_equal(result.values[name], expected[name]), (step, name)
        assert result.global_step == step
        assert was_abreast(session)
    assert {description.split()[1] for description in session.transports} == {"shm"}


def test_reading_too_early_would_show(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tests above rely on: a worker that did not wait would not see its push."""
    slow_down(monkeypatch)
    monkeypatch.setattr(
        direct_pull, "_ready", lambda push, total, copies, places: (0,) * len(copies)
    )
    session = join(start())
    define(session, zeros())
    values = session.step(add(), NAMES).values
    assert any((values[name] == 0).all() for name in NAMES)


@pytest.mark.parametrize("more", [-4, 0, 4], ids=["below", "at", "above"])
def test_sizes_around_the_threshold(start: Start, join: Join, pace: str, more: int) -> None:
    session = join(start())
    size = (_ABREAST_BYTES + more) // 4
    define(session, zeros({"w": size}))
    for step in range(1, 5):
        push = PushPayload({"w": np.ones(size, F32)}, Operation.ASSIGN_ADD)
        are(session.step(push, ["w"]).values, step, ["w"])
        assert was_abreast(session) == (more >= 0)


@pytest.mark.parametrize("num_ps", [1, 2], ids=["1-ps", "2-ps"])
def test_any_mixture_of_steps(start: Start, join: Join, pace: str, num_ps: int) -> None:
    """Pushes alone, pulls alone, pulls of other variables, some rows of a table, others of none."""
    session = join(*(start(index) for index in range(num_ps)))
    rng = np.random.default_rng(1)
    expected: dict[str, Array] = {n: rng.normal(size=s).astype(F32) for n, s in SIZES.items()}
    for name, rows in (("table", 30_000), ("book", 200)):
        expected[name] = rng.normal(size=(rows, 20)).astype(F32)
    define(session, expected, parts=num_ps, rule=SGD(learning_rate=0.5))
    expected = {n: value.copy() for n, value in expected.items()}
    rate, names, abreast = np.float32(0.5), list(expected), 0
    for _ in range(40):
        pushed = list(rng.permutation(names)[: rng.integers(0, len(names) + 1)])
        pulled = list(rng.permutation(names)[: rng.integers(0, len(names) + 1)])
        values: dict[str, Array | IndexedSlices] = {}
        for name in pushed:
            value = expected[name]
            if value.ndim == 1:
                gradient = rng.normal(size=value.size).astype(F32)
                value -= rate * gradient
                values[name] = gradient
                continue
            share = int(rng.integers(0, 3))  # none, half, all
            chosen = np.sort(rng.permutation(len(value))[: len(value) * share // 2])
            slices = rng.normal(size=(chosen.size, 20)).astype(F32)
            value[chosen] -= rate * slices
            values[name] = IndexedSlices(slices, chosen)
        found = session.step(PushPayload(values) if values else None, pulled).values
        abreast += was_abreast(session)
        assert sorted(found) == sorted(pulled)
        for name in pulled:
            assert np.array_equal(found[name], expected[name]), name
    assert abreast >= 5
    found = session.step(None, names).values
    assert all(np.array_equal(found[name], expected[name]) for name in names)


def test_many_row_numbers_are_waited_for_like_values(start: Start, join: Join, pace: str) -> None:
    """A payload of numbers alone, and one of more numbers than values."""
    session = join(start())
    rows = 300_000
    table = np.arange(rows, dtype=F32).reshape(rows, 1)
    define(session, {"table": table})
    rng = np.random.default_rng(2)
    for step in range(1, 4):
        chosen = rng.permutation(rows)[:290_000]
        assert np.array_equal(session.lookup("table", chosen), table[chosen] + (step - 1))
        slices = IndexedSlices(np.ones((rows, 1), F32), rng.permutation(rows))
        push = PushPayload({"table": slices}, Operation.ASSIGN_ADD)
        values = session.step(push, ["table"]).values
        assert was_abreast(session)
        assert np.array_equal(values["table"], table + step)


def test_values_that_are_kept_do_not_change(start: Start, join: Join, pace: str) -> None:
    session = join(start())
    define(session, zeros())
    kept = [session.step(add(), NAMES).values for _ in range(6)]
    for number, values in enumerate(kept, 1):
        are({name: values[name] for name in NAMES}, number)


@pytest.mark.parametrize("last", ["no-rows", "no-elements"])
def test_a_block_whose_last_part_is_empty_is_not_read_before(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """All bytes are applied before the ps comes to that part, and to its block."""
    session = join(start())
    values: dict[str, Array] = zeros({"bias": 1000, "large": 600_000})
    values["rest"] = np.zeros((50, 4) if last == "no-rows" else (0,), F32)
    define(session, values)
    slow_down(monkeypatch, 0.05, lambda block: len(block.shards) > 1)
    nothing = IndexedSlices(np.zeros((0, 4), F32), np.empty(0, np.int64))
    push = PushPayload(
        {
            "bias": np.ones(1000, F32),
            "large": np.ones(600_000, F32),
            "rest": nothing if last == "no-rows" else np.zeros(0, F32),
        },
        Operation.ASSIGN_ADD,
    )
    for step in range(1, 4):
        are(session.step(push, ["bias", "large"]).values, step, ["bias", "large"])
        assert was_abreast(session)


def test_two_workers_push_to_the_same_shards_and_each_sees_its_own(
    start: Start, join: Join, pace: str
) -> None:
    server = start()
    steps = 15
    failures: list[BaseException] = []

    def work(index: int, session: ParameterSession) -> None:
        unit = (1, 1000)[index]
        try:
            for step in range(1, steps + 1):
                values = session.step(add(unit), NAMES).values
                for name in NAMES:
                    low, high = int(values[name].min()), int(values[name].max())
                    assert low == high, f"two moments in {name}"
                    own = (low % 1000, low // 1000)[index]
                    assert own == step, f"worker {index} sees {own} of its {step} pushes in {name}"
        except BaseException as error:  # noqa: BLE001 - the test raises it
            failures.append(error)

    sessions = [join(server, index=index) for index in range(2)]
    for index, session in enumerate(sessions):
        define(session, zeros(), create=index == 0)
    threads = [
        threading.Thread(target=work, args=pair, name="test-worker", daemon=True)
        for pair in enumerate(sessions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    are(sessions[0].step(None, NAMES).values, steps * 1001)


def test_gradients_may_change_as_soon_as_a_detached_step_has_begun(
    start: Start, join: Join, pace: str
) -> None:
    session = join(start())
    define(session, zeros())
    gradients = {name: np.ones(size, F32) for name, size in SIZES.items()}
    before = None
    for step in range(1, 8):
        for gradient in gradients.values():
            gradient[:] = 1
        pending = session.begin(PushPayload(gradients, Operation.ASSIGN_ADD), NAMES, detached=True)
        for gradient in gradients.values():
            gradient[:] = np.nan
        if before is not None:
            are(before.result().values, step - 1)
        before = pending
    assert before is not None
    are(before.result().values, 7)


@pytest.mark.parametrize("carrier", ["unix socket", "tcp", "grpc"])
def test_whatever_carries_the_session(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch, carrier: str
) -> None:
    slow_down(monkeypatch)
    server = start(tcp_sessions=carrier == "tcp")
    if carrier != "unix socket":
        servicer_of(server).local_socket = ""
    session = join(server)
    define(session, zeros())
    assert transport_of(session)._stream.description.split(" (")[0] == carrier
    for step in range(1, 5):
        are(session.step(add(), NAMES).values, step)
        assert was_abreast(session)
    at_write(monkeypatch, 5, fail_with(ValueError("no")))
    with pytest.raises(ValueError, match="no"):
        session.step(add(), NAMES)
    until(lambda: servicer_of(server)._seats.count == 0)


# -- a worker that fails -----------------------------------------------------------------------


def fail_with(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("number", [1, LARGE_WRITE + 1, len(NAMES)], ids=lambda n: f"write-{n}")
@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyboardInterrupt(), MemoryError()], ids=lambda e: type(e).__name__
)
def test_a_worker_that_fails_while_it_writes_harms_nobody(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException
) -> None:
    server = start()
    failing, other = join(server, index=0), join(server, index=1)
    define(failing, zeros())
    define(other, zeros(), create=False)
    are(failing.step(add(), NAMES).values, 1)
    at_write(monkeypatch, number, fail_with(error))
    began = time.monotonic()
    with pytest.raises(type(error)):
        failing.step(add(), NAMES)
    until(lambda: servicer_of(server)._seats.count == 1)  # the ps waits for it no longer
    assert time.monotonic() - began < 5
    with pytest.raises(PeerLostError, match=type(error).__name__):
        failing.step(add(), NAMES)

    values = other.step(None, NAMES).values
    reached = {name: float(values[name].max()) for name in NAMES}
    are(values, 1, SHARED)
    written = NAMES[: number - 1]
    for name in ("large", "exact", "other"):
        assert reached[name] == (2 if name in written else 1)
        assert values[name].min() == reached[name]
    for step in range(1, 4):
        values = other.step(add(), NAMES).values
        for name in NAMES:
            assert (values[name] == reached[name] + step).all()

    again = join(server, index=0, generation=2)
    define(again, zeros(), create=False)
    for step in range(4, 7):
        values = again.step(add(), NAMES).values
        for name in NAMES:
            assert (values[name] == reached[name] + step).all()


def test_a_worker_interrupted_between_its_message_and_its_push_is_not_waited_for(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal may come at any line."""
    server = start()
    session = join(server)
    define(session, zeros())
    send = StreamTransport.send

    def interrupted(transport: StreamTransport, request: StepRequest) -> None:
        send(transport, request)
        raise KeyboardInterrupt

    monkeypatch.setattr(StreamTransport, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.step(add(), NAMES)
    until(lambda: servicer_of(server)._seats.count == 0, 5)


WORKER = """
import sys, threading
import numpy as np
from windlass.client.ps.push_plans import PushPayload
from windlass.client.ps.parameter_session import ParameterSession
from windlass.client.ps.remote_ps import RemotePs
from windlass.core.definitions import VariableDefinition
from windlass.core.gather_buffer import GatherBuffer
from windlass.core.settings import Settings
from windlass.core.steps import Operation
from windlass.core.task import Incarnation, TaskId

who, write = Incarnation(TaskId("worker", 0), 1), Piece.write

def writing(piece, out):
    if piece.arrays[0] is last:
        print("writing", flush=True)
        threading.Event().wait(60)
    write(piece, out)

session = ParameterSession([RemotePs(TaskId("ps", 0), sys.argv[1], who, Settings())], who, Settings())
session.connect()
names = ("large", "other")
session.define([VariableDefinition(n, (600_000,), np.dtype(np.float32)) for n in names], {}, create=False)
last = np.ones(600_000, np.float32)
Piece.write = writing
session.step(PushPayload({"large": last.copy(), "other": last}, Operation.ASSIGN_ADD), names)
"""


def test_a_worker_killed_while_it_writes_is_not_waited_for(start: Start, join: Join) -> None:
    server = start()
    session = join(server, index=1)
    names = ["large", "other"]
    define(session, zeros(dict.fromkeys(names, 600_000)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(
        [sys.executable, "-c", WORKER, f"127.0.0.1:{server.port}"],
        stdout=subprocess.PIPE,
        env=environment,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        [large, _] = server.store.blocks()
        until(lambda: bool((large.value == 1).all()))  # before the rest is written
        assert servicer_of(server)._seats.count == 2
    finally:
        child.kill()
        child.wait(10)
        if child.stdout is not None:
            child.stdout.close()
    until(lambda: servicer_of(server)._seats.count == 1, 5)
    values = session.step(None, names).values
    are(values, 1, ["large"])
    are(values, 0, ["other"])


def test_what_a_failed_push_left_in_the_segment_is_not_taken_for_the_next(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ps may be at the broken push yet when the transport goes on."""
    server = start()
    session = join(server)
    define(session, zeros())
    transport = transport_of(session)
    at_write(monkeypatch, LARGE_WRITE, fail_with(ValueError("no")))
    segments = []
    with pytest.raises(ValueError, match="no"):
        session.step(add(), NAMES)
    segments.append(transport._mine)
    session._aborted = None  # as if somebody knew better; the transport itself may go on
    session.step(add(), NAMES)
    segments.append(transport._mine)
    assert segments[0] is None
    assert segments[1] is not None


# -- a ps that refuses -------------------------------------------------------------------------


def refused_while_writing(monkeypatch: pytest.MonkeyPatch, server: PsServer) -> None:
    """From its second piece on a worker writes what was refused already."""
    before = server.store.counters().refused
    at_write(monkeypatch, 2, lambda: until(lambda: server.store.counters().refused > before))


def test_a_superseded_worker_is_told_so_while_it_writes(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    old = join(server)
    define(old, zeros())
    new = join(server, generation=2)
    define(new, zeros(), create=False)
    refused_while_writing(monkeypatch, server)
    with pytest.raises(FencedError, match="superseded"):
        old.step(add(), NAMES)
    for step in range(1, 4):
        are(new.step(add(), NAMES).values, step)
    with pytest.raises(FencedError, match="superseded"):
        old.step(add(), NAMES)
    are(new.step(None, NAMES).values, 3)


def test_a_push_out_of_turn_is_refused_while_it_is_written_and_the_next_goes_through(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    session = join(server)
    define(session, zeros())
    are(session.step(add(), NAMES).values, 1)
    [sequence] = session._sequences
    session._sequences[0] = sequence + 5
    refused_while_writing(monkeypatch, server)
    with pytest.raises(SequenceError):
        session.step(add(100), NAMES)
    session._sequences[0] = sequence
    for step in range(2, 5):
        are(session.step(add(), NAMES).values, step)
        assert was_abreast(session)


def test_a_step_over_the_limit_of_the_ps_is_refused_by_its_name(start: Start, join: Join) -> None:
    server = start(max_step_bytes=3 * 1024 * 1024)
    session = join(server)
    define(session, zeros({"large": 600_000}))
    define(session, {"other": np.zeros(300_000, F32)})
    transport_of(session)._stream._max_step_bytes = 2**40
    both = ["large", "other"]
    with pytest.raises(LimitExceededError, match="max_step_bytes"):
        session.step(add(1, both), both)


def refuse_segments(monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    """The ps opens so many segments, and no more."""
    count = 0

    class Refusing:
        @staticmethod
        def open(address: SegmentAddress) -> Any:
            nonlocal count
            count += 1
            if count > after:
                raise RefusedError("not on one machine")
            return SharedSegment.open(address)

    monkeypatch.setattr(servicer, "SharedSegment", Refusing)


@pytest.mark.parametrize("detached", [False, True], ids=["attached", "detached"])
def test_a_segment_the_ps_cannot_open_means_the_stream(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch, pace: str, detached: bool
) -> None:
    refuse_segments(monkeypatch)
    server = start()
    session = join(server)
    transport = transport_of(session)
    definitions = [VariableDefinition(n, (size,), F32) for n, size in SIZES.items()]
    session.define(definitions, zeros(), create=True)  # its values are the first large push
    for step in range(1, 5):
        transport._why_not = "" if step < 3 else transport._why_not
        push = add()
        pending = session.begin(push, NAMES, detached=detached)
        if detached:
            for gradient in push.values.values():
                assert isinstance(gradient, np.ndarray)
                gradient[:] = np.nan
        are(pending.result().values, step)
    assert transport.description == "unix socket (not on one machine)"
    assert server.store.counters().pushes == 5


# -- a connection that breaks ------------------------------------------------------------------


def test_a_push_whose_answer_was_lost_is_applied_once(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    session = join(server)
    define(session, zeros())
    transport = transport_of(session)
    send = transport.send

    def send_and_cut(request: StepRequest) -> None:
        before = server.store.counters().pushes
        send(request)
        until(lambda: server.store.counters().pushes > before)
        cut(session)

    monkeypatch.setattr(transport, "send", send_and_cut)
    for step in range(1, 5):
        result = session.step(add(), NAMES, step_increment=1)
        are(result.values, step)
        assert result.global_step == step
    assert server.store.counters().duplicates == 4


@pytest.mark.parametrize("number", range(1, len(NAMES) + 1), ids=lambda n: f"write-{n}")
def test_a_connection_cut_while_it_is_written_repeats_what_was_not_applied(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    session = join(start())
    define(session, zeros())
    for step in range(1, 4):
        with monkeypatch.context() as patch:
            at_write(patch, number, lambda: cut(session))
            are(session.step(add(), NAMES, step_increment=1).values, step)
        assert session.global_step == step
    are(session.step(add(), NAMES).values, 4)


@pytest.mark.parametrize("number", [1, 2, 4], ids=lambda n: f"read-{n}")
def test_a_connection_cut_while_values_are_read(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch, pace: str, number: int
) -> None:
    session = join(start())
    define(session, zeros())
    read, count = direct_pull._read_one, 0

    def reading(*arguments: Any) -> int | None:
        nonlocal count
        count += 1
        if count == number:
            cut(session)
        return read(*arguments)

    monkeypatch.setattr(direct_pull, "_read_one", reading)
    for step in range(1, 5):
        count = 0
        are(session.step(add(), NAMES).values, step)


def test_connections_cut_at_random_moments(start: Start, join: Join, pace: str) -> None:
    session = join(start())
    define(session, zeros())
    rng = np.random.default_rng(0)
    for step in range(1, 21):
        after_s = rng.uniform(0, 0.03)
        timer = threading.Timer(after_s, cut, [session])
        timer.name = "test-cut"
        timer.start()
        are(session.step(add(), NAMES, step_increment=1).values, step)
        assert session.global_step == step
        timer.join(5)


def test_a_connection_cut_and_a_segment_that_cannot_be_opened_any_more(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of the push was applied out of the segment; the rest comes through the stream."""
    server = start()
    session = join(server)
    define(session, zeros())
    are(session.step(add(), NAMES).values, 1)
    refuse_segments(monkeypatch)

    def applied_and_cut() -> None:
        blocks = {block.shards[0].variable.name: block for block in server.store.blocks()}
        until(lambda: bool((blocks["large"].value == 2).all()))
        cut(session)

    at_write(monkeypatch, LARGE_WRITE + 1, applied_and_cut)
    are(session.step(add(), NAMES).values, 2)
    are(session.step(add(), NAMES).values, 3)
    assert transport_of(session).description == "unix socket (not on one machine)"


def test_a_session_that_broke_off_does_not_speak_for_the_next_step(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread at the ps may be at the old push yet, and say how much of it is applied."""
    server = start()
    session = join(server)
    sizes = {"early": 300_000, "late": 300_000}
    define(session, zeros(sizes))
    push = PushPayload({name: np.ones(300_000, F32) for name in sizes}, Operation.ASSIGN_ADD)
    are(session.step(push, list(sizes)).values, 1, list(sizes))
    transport = transport_of(session)
    applied, old_may_go, old_went = Store._apply, threading.Event(), threading.Event()
    calls: list[tuple[str, int]] = []

    def apply(block: Block, work: Any, facts: Any) -> None:
        call = (block.shards[0].variable.name, facts.sequence)
        calls.append(call)
        first = calls.count(call) == 1
        if call == ("early", second) and first:
            # The old session: it has applied a block, and is held up before it says so.
            applied(block, work, facts)
            cut(session)
            old_may_go.wait(10)
            old_went.set()
            return
        if call == ("early", second + 1):
            old_may_go.set()
            old_went.wait(10)
            pause.wait(0.2)  # for what the old session says, and for a worker that believes it
        applied(block, work, facts)

    second = session._sequences[0] + 1
    monkeypatch.setattr(Store, "_apply", staticmethod(apply))
    try:
        are(session.step(push, list(sizes)).values, 2, list(sizes))
        assert not old_went.is_set()
        are(session.step(push, list(sizes)).values, 3, list(sizes))
        assert old_went.is_set()
    finally:
        old_may_go.set()
    assert transport._mine is not None
    are(session.step(push, list(sizes)).values, 4, list(sizes))


def test_counters_begin_anew_with_every_step(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = join(start())
    define(session, zeros())
    seen: list[int] = []
    are(session.step(add(), NAMES).values, 1)
    segment = transport_of(session)._mine
    assert segment is not None
    assert segment.counters[APPLIED] == sum(SIZES.values()) * 4
    at_write(monkeypatch, 1, lambda: seen.append(segment.counters[APPLIED]))
    are(session.step(add(), NAMES).values, 2)
    assert transport_of(session)._mine is segment
    assert seen == [0]


# -- a ps that is gone -------------------------------------------------------------------------


def test_a_ps_that_stops_while_it_is_written_is_lost(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    session = join(server, reconnect_timeout_s=1.0)
    define(session, zeros())
    at_write(monkeypatch, LARGE_WRITE + 1, lambda: server.stop(grace_s=0))
    began = time.monotonic()
    with pytest.raises(PeerLostError, match="/job:ps/task:0"):
        session.step(add(), NAMES)
    assert time.monotonic() - began < 8


PS = """
from windlass.server.ps.server import PsServer
from windlass.core.settings import Settings
from windlass.core.task import TaskId
server = PsServer(TaskId('ps', 0), Settings())
server.start('127.0.0.1:0')
print(server.port, flush=True)
server.wait()
"""


@pytest.mark.parametrize("number", [1, LARGE_WRITE + 1], ids=lambda n: f"write-{n}")
def test_a_ps_that_is_killed_while_it_is_written_is_lost(
    join: Join, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", PS], stdout=subprocess.PIPE, env=environment)
    try:
        assert child.stdout is not None
        remote: Any = SimpleNamespace(task=TaskId("ps", 0), port=int(child.stdout.readline()))
        session = join(remote, reconnect_timeout_s=1.0)
        define(session, zeros())
        are(session.step(add(), NAMES).values, 1)
        assert was_abreast(session)
        at_write(monkeypatch, number, child.kill)
        began = time.monotonic()
        with pytest.raises(PeerLostError, match="/job:ps/task:0"):
            session.step(add(), NAMES)
        assert time.monotonic() - began < 8
    finally:
        child.kill()
        child.wait(10)
        if child.stdout is not None:
            child.stdout.close()


@pytest.mark.parametrize("stuck", ["large", "third"], ids=["own-block", "shared-block"])
def test_a_ps_that_is_stuck_is_lost_when_the_time_is_up(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch, stuck: str
) -> None:
    session = join(start(), request_timeout_s=0.5, reconnect_timeout_s=1.0)
    define(session, zeros())
    apply, go_on = Store._apply, threading.Event()

    def held(block: Block, work: Any, facts: Any) -> None:
        if any(shard.variable.name == stuck for shard in block.shards):
            go_on.wait(20)
        apply(block, work, facts)

    monkeypatch.setattr(Store, "_apply", staticmethod(held))
    began = time.monotonic()
    try:
        with pytest.raises(PeerLostError, match="/job:ps/task:0"):
            session.step(add(), NAMES)
        assert time.monotonic() - began < 8
    finally:
        go_on.set()


def test_a_worker_told_to_end_does_not_wait_for_the_ps(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = join(start())
    define(session, zeros())
    apply, held, go_on = Store._apply, threading.Event(), threading.Event()

    def hold(block: Block, work: Any, facts: Any) -> None:
        held.set()
        go_on.wait(20)
        apply(block, work, facts)

    monkeypatch.setattr(Store, "_apply", staticmethod(hold))

    def end() -> None:
        held.wait(10)
        pause.wait(0.05)  # the worker is waiting for the first block
        session.abort(PeerLostError("told to end"))

    thread = threading.Thread(target=end, name="test-end", daemon=True)
    thread.start()
    began = time.monotonic()
    try:
        with pytest.raises(PeerLostError, match="told to end"):
            session.step(add(), NAMES)
        assert time.monotonic() - began < 5
    finally:
        go_on.set()
    thread.join(10)
