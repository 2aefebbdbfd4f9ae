"""A parameter session over every transport: steps under way, and programs that never repeat."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from windlass.client.ps.stream_transport import StreamTransport

from windlass.client.ps.parameter_session import ParameterSession
from windlass.client.ps.peer import PsPeer
from windlass.client.ps.push_plans import PushPayload
from windlass.client.ps.shared_payloads import ShmTransport
from windlass.cluster.partitioners import FixedShardsPartitioner
from windlass.core.arrays import Array
from windlass.core.definitions import VariableDefinition
from windlass.core.errors import LimitExceededError, PeerLostError, RefusedError, WindlassError
from windlass.core.indexed_slices import IndexedSlices
from windlass.core.settings import Settings
from windlass.core.steps import Operation, PushResult, SegmentAddress
from windlass.core.task import Incarnation, TaskId
from windlass.core.update_rules import SGD
from windlass.core.wire_format import WireFormat
from windlass.distribute.local_ps import LocalPs
from windlass.server.ps.server import PsServer
from windlass.server.ps.store import Store

SETTINGS = Settings(
    request_timeout_s=10.0, reconnect_timeout_s=3.0, max_step_bytes=64 * 1024**2, join_timeout_s=5.0
)
F32 = np.dtype(np.float32)
APPLY, ASSIGN, ADD = Operation.APPLY, Operation.ASSIGN, Operation.ASSIGN_ADD
SMALL, LARGE = 5, 100_000
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])


@dataclass
class Cluster:
    """Two ps, and sessions with both."""

    kind: str
    stores: list[Store]
    addresses: list[str]
    opened: list[ParameterSession] = field(default_factory=list)

    def transport(self, ps: int, who: Incarnation) -> PsPeer:
        task = TaskId("ps", ps)
        if self.kind == "local":
            return LocalPs(task, who, SETTINGS, self.stores[ps])
        near = self.kind in ("shm", "near")
        settings = SETTINGS.model_copy(update={"tcp_sessions": self.kind == "tcp"})
        stream = StreamTransport(task, self.addresses[ps], who, settings, near=near)
        return ShmTransport(stream) if self.kind == "shm" else stream

    def session(self, index: int = 0) -> ParameterSession:
        who = Incarnation(TaskId("worker", index), 1)
        session = ParameterSession([self.transport(ps, who) for ps in range(2)], who, SETTINGS)
        self.opened.append(session)
        session.connect()
        return session


@pytest.fixture(params=["local", "grpc", "tcp", "near", "shm"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two ps behind each kind of transport."""
    tasks = [TaskId("ps", i) for i in range(2)]
    servers = []
    if request.param == "local":
        made = Cluster("local", [Store(task, SETTINGS) for task in tasks], [])
    else:
        servers = [PsServer(task, SETTINGS) for task in tasks]
        for server in servers:
            server.start("127.0.0.1:0")
        addresses = [f"127.0.0.1:{server.port}" for server in servers]
        made = Cluster(request.param, [server.store for server in servers], addresses)
    try:
        yield made
    finally:
        for session in made.opened:
            session.close()
        for server in servers:
            server.stop(grace_s=0)


def create(session: ParameterSession, **sizes: int) -> None:
    """Variables of zeros, each cut over both ps."""
    session.define(
        [VariableDefinition(name, (size,), F32) for name, size in sizes.items()],
        {name: np.zeros(size, np.float32) for name, size in sizes.items()},
        create=True,
        partitioner=FixedShardsPartitioner(2),
    )


def add(value: float, **sizes: int) -> Push:
    return PushPayload({name: np.full(size, value, np.float32) for name, size in sizes.items()}, ADD)


# -- steps under way ---------------------------------------------------------------------------


@SIZES
def test_a_read_after_begin_sees_its_push(cluster: Cluster, size: int) -> None:
    session = cluster.session()
    create(session, w=size)
    for expected in range(1, 6):
        session.begin(add(1, w=size), step_increment=1)
        assert (session.step(None, ["w"]).values["w"] == expected).all()
        session.begin(add(0, w=size))
        np.testing.assert_array_equal(session.lookup("w", np.array([size - 1])), [expected])
        assert session.global_step == expected


@SIZES
def test_a_step_is_finished_by_whatever_comes_next(cluster: Cluster, size: int) -> None:
    session = cluster.session()
    create(session, w=size)
    nexts: list[Callable[[], object]] = [
        lambda: session.begin(add(0, w=size)),
        session.settle,
        session.finish,
        lambda: session.bind(["w"], SGD(learning_rate=1.0)),
        lambda: session.lookup("w", np.array([0])),
        lambda: create(session, w=size),
        lambda: setattr(session, "wire_format", WireFormat()),
    ]
    for expected, call in enumerate(nexts, 1):
        pending = session.begin(add(1, w=size), ["w"], step_increment=1)
        call()
        assert pending.answer is not None
        result = pending.result()
        assert result is pending.result()
        assert result.global_step == expected
        assert (result.values["w"] == expected).all()


@SIZES
def test_many_steps_under_way_one_after_another_keep_their_order(
    cluster: Cluster, size: int
) -> None:
    session = cluster.session()
    create(session, w=size)
    seen = []
    pending = None
    for value in range(30):
        following = session.begin(
            PushPayload({"w": np.full(size, value, np.float32)}, ASSIGN if value % 3 else ADD), ["w"]
        )
        if pending is not None:
            seen.append(float(pending.result().values["w"][-1]))
        pending = following
    expected, now = [], 0.0
    for value in range(29):
        now = value if value % 3 else now + value
        expected.append(now)
    assert seen == expected


@SIZES
def test_the_answer_may_be_waited_for_in_another_thread(cluster: Cluster, size: int) -> None:
    session = cluster.session()
    create(session, w=size)
    for expected in range(1, 20):
        pending = session.begin(add(1, w=size), ["w"], detached=True)
        thread = threading.Thread(target=pending.wait)
        thread.start()
        assert (pending.result().values["w"] == expected).all()
        thread.join(10)
        assert not thread.is_alive()


@SIZES
@pytest.mark.parametrize("form", ["plain", "other-dtype", "strided", "rows"])
def test_what_a_detached_push_was_made_of_may_change_at_once(
    cluster: Cluster, size: int, form: str
) -> None:
    session = cluster.session()
    create(session, w=size, b=3)
    expected = np.zeros(size, np.float32)
    rng = np.random.default_rng(0)
    reused = np.empty(size, np.float64 if form == "other-dtype" else np.float32)
    wide = np.empty(2 * size, np.float32)
    bias = np.empty(3, np.float32)
    rows = np.arange(size)
    for _ in range(10):
        values = rng.integers(0, 100, size)
        expected += values.astype(np.float32)
        value: Array | IndexedSlices = reused
        if form == "strided":
            value = wide[::2]
        reused[:] = wide[::2] = values
        bias[:] = 1
        if form == "rows":
            value = IndexedSlices(reused, rows)
        pending = session.begin(PushPayload({"w": value, "b": bias}, ADD), detached=True)
        reused[:] = wide[:] = bias[:] = -1000
        rows[:] = 0
        pending.result()
        rows[:] = np.arange(size)
    got = session.step(None, ["w", "b"]).values
    np.testing.assert_array_equal(got["w"], expected)
    np.testing.assert_array_equal(got["b"], 10)


def refused() -> Push:
    """Gradients for a variable that has no update rule."""
    return PushPayload({"w": np.ones(SMALL, np.float32)}, APPLY)


def test_a_failed_step_is_told_by_its_result_and_then_no_more(cluster: Cluster) -> None:
    session = cluster.session()
    create(session, w=SMALL)
    pending = session.begin(refused(), ["w"], step_increment=1)
    with pytest.raises(RefusedError, match="'w' has no update rule") as caught:
        pending.result()
    session.finish()
    with pytest.raises(RefusedError) as again:
        pending.result()
    assert again.value is caught.value
    session.finish()
    assert (session.step(add(1, w=SMALL), ["w"]).values["w"] == 1).all()


def test_a_failed_step_nobody_asked_about_is_told_at_the_end_once(cluster: Cluster) -> None:
    session = cluster.session()
    create(session, w=SMALL)
    session.begin(refused(), step_increment=1)
    # The next one is not to blame.
    assert (session.step(add(1, w=SMALL), ["w"]).values["w"] == 1).all()
    with pytest.raises(RefusedError, match="'w' has no update rule"):
        session.finish()
    session.finish()


def test_a_refused_step_leaves_no_gap_and_its_values_are_not_taken_for_pulled(
    cluster: Cluster,
) -> None:
    session = cluster.session()
    create(session, w=SMALL, big=LARGE)
    names = ["w", "big"]
    for expected in range(1, 6):
        pending = session.begin(refused(), names)
        session.wait()
        assert pending.failure is not None
        values = session.step(add(1, w=SMALL, big=LARGE), names).values
        assert (values["w"] == expected).all()
        assert (values["big"] == expected).all()


def test_a_step_that_cannot_be_sent_is_told_at_begin(cluster: Cluster) -> None:
    session = cluster.session()
    create(session, w=SMALL)
    size = SETTINGS.max_step_bytes // 4 + 1
    huge = VariableDefinition("huge", (size,), F32)
    with pytest.raises(LimitExceededError, match="max_step_bytes"):
        session.define([huge], {"huge": np.zeros(size, F32)}, create=True)
    session.finish()
    assert (session.step(add(1, w=SMALL), ["w"]).values["w"] == 1).all()


def test_an_abort_is_heard_by_the_step_under_way_and_by_those_after(cluster: Cluster) -> None:
    session = cluster.session()
    create(session, w=SMALL)
    pending = session.begin(add(1, w=SMALL))
    error = PeerLostError("the chief is lost")
    session.abort(error)
    calls: list[Callable[[], object]] = [
        pending.result,
        pending.result,
        lambda: session.begin(add(1, w=SMALL)),
        lambda: session.step(None, ["w"]),
    ]
    for call in calls:
        with pytest.raises(PeerLostError) as caught:
            call()
        assert caught.value is error


def test_finish_without_a_step_is_fine(cluster: Cluster) -> None:
    session = cluster.session()
    session.finish()
    create(session, w=SMALL)
    session.finish()
    session.wait()


# -- programs that never do the same thing twice -----------------------------------------------


def layouts_at(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many layouts a ps holds for one session, at most."""
    from windlass.server.ps import servicer

    sessions: list[Any] = []
    init = servicer._Session.__init__

    def remembered(self: Any, *args: Any) -> None:
        init(self, *args)
        sessions.append(self)

    monkeypatch.setattr(servicer._Session, "__init__", remembered)

    def count() -> int:
        if cluster.kind == "local":
            transports = [t for s in cluster.opened for t in s._transports]
            held = [len(t._layouts) for t in transports if isinstance(t, LocalPs)]
            return max(held)
        return max(len(session._layouts) for session in sessions)

    return count


# More than plans are kept: 144 of pulls and pushes, after which a layout is dropped with each step.
@pytest.mark.parametrize("steps", [600, pytest.param(10_000, marks=pytest.mark.soak)])
def test_other_variables_in_every_step_for_thousands_of_steps(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The numbers of layouts that were dropped are used again; nothing is taken for what it was before."""
    count = layouts_at(cluster, monkeypatch)
    session = cluster.session()
    names = [f"v{i}" for i in range(14)]
    sizes = dict.fromkeys(names, 4)
    session.define(
        [VariableDefinition(name, (4,), F32) for name in names],
        {name: np.zeros(4, np.float32) for name in names},
        create=True,
    )
    expected = dict.fromkeys(names, 0.0)
    rng = np.random.default_rng(0)
    for step in range(steps):
        # A bit pattern each: no set comes twice in a row of 2**14.
        mine = [name for i, name in enumerate(names) if (step * 2654435761 >> 7) >> i & 1] or names
        theirs = [name for name in names if name not in mine] or names
        push = add(1, **{name: sizes[name] for name in theirs}) if step % 3 == 0 else None
        if push is not None:
            for name in theirs:
                expected[name] += 1
        values = session.step(push, mine).values
        probe = mine[int(rng.integers(len(mine)))]
        assert values[probe][0] == values[probe][-1] == expected[probe]
    final = session.step(None, names).values
    assert {name: float(final[name][0]) for name in names} == expected
    assert count() <= 2 * (64 + 64 + 16) + 2
    assert session._next_layout <= 2 * (64 + 64 + 16) + 2


def test_other_large_pulls_in_every_step_take_nothing_for_known_that_is_not(
    cluster: Cluster,
) -> None:
    """More sets than are kept, so that their layouts' numbers come to stand for others."""
    session = cluster.session()
    names = [f"v{i}" for i in range(6)]
    sizes = {name: 6000 + 1000 * i for i, name in enumerate(names)}
    create(session, **sizes)
    expected = dict.fromkeys(names, 0)
    rng = np.random.default_rng(1)
    for _ in range(400):
        mine = [str(name) for name in rng.permutation(names)[: rng.integers(4, 7)]]
        one = str(rng.choice(names))
        expected[one] += 1
        values = session.step(add(1, **{one: sizes[one]}), mine).values
        for name in mine:
            assert (values[name] == expected[name]).all()


def test_an_error_in_one_ps_leaves_the_error_of_the_step_and_not_of_the_next(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = cluster.session()
    create(session, w=SMALL)
    [_, second] = session.peers
    error = PeerLostError("gone for a moment")
    receive = second.receive

    def fail(into: Any, previous: Any = None) -> PushResult:
        receive(into, previous)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(second, "receive", fail)
        pending = session.begin(add(1, w=SMALL), ["w"])
        session.wait()
    assert pending.failure is error
    with pytest.raises(WindlassError) as caught:
        session.finish()
    assert caught.value is error


def test_a_detached_push_whose_segment_is_refused_goes_out_as_it_was(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cluster.kind != "shm":
        pytest.skip("only shm has segments")
    from windlass.net.shared_memory import SharedSegment

    session = cluster.session()
    create(session, w=LARGE)

    def refuse(address: SegmentAddress) -> SharedSegment:
        raise RefusedError("not on one machine")

    monkeypatch.setattr(SharedSegment, "open", refuse)
    value = np.ones(LARGE, np.float32)
    for expected in (1, 2):
        pending = session.begin(PushPayload({"w": value}, ADD), detached=True)
        value[:] = 100
        pending.result()
        value[:] = 1
        assert (session.step(None, ["w"]).values["w"] == expected).all()
    assert all("not on one machine" in text for text in session.transports)
