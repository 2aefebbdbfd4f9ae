"""Pulling again: what did not change is taken from the last pull, and is never stale."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from windlass.client.ps.stream_transport import StreamTransport

from windlass.client.ps.peer import PsPeer
from windlass.client.ps.shared_payloads import ShmTransport
from windlass.core.arrays import Array, as_bytes
from windlass.core.definitions import ShardDefinition, VariableDefinition, cut
from windlass.core.errors import RefusedError
from windlass.core.settings import Settings
from windlass.core.steps import LayoutEntry, Operation, PushResult, StepRequest, WireLayout
from windlass.core.task import Incarnation, TaskId
from windlass.core.update_rules import SGD
from windlass.distribute.local_ps import LocalPs
from windlass.server.ps.server import PsServer
from windlass.server.ps.store import Store

PS = TaskId("ps", 0)
F32 = np.dtype(np.float32)
SETTINGS = Settings(chunk_bytes=16 * 1024, request_timeout_s=5.0, reconnect_timeout_s=3.0)
SMALL_PULL = 64 * 1024  # what is sent whole whatever changed

pytestmark = pytest.mark.timeout(60)


@dataclass
class Ps:
    """One ps, and how workers reach it."""

    kind: str
    store: Store
    connect: Callable[[Incarnation], PsPeer]
    opened: list[PsPeer] = field(default_factory=list)

    def worker(self, index: int = 0) -> "Worker":
        transport = self.connect(Incarnation(TaskId("worker", index), 1))
        self.opened.append(transport)
        transport.connect(5.0)
        return Worker(transport)

    @property
    def leaves_out(self) -> bool:
        """In one process a copy costs as much as a look: there everything is copied."""
        return self.kind != "local"


@pytest.fixture(params=["local", "grpc", "tcp", "near", "shm"])
def ps(request: pytest.FixtureRequest) -> Iterator[Ps]:
    """A ps behind each kind of transport."""
    if request.param == "local":
        store = Store(PS, SETTINGS)
        yield Ps("local", store, lambda who: LocalPs(PS, who, SETTINGS, store))
        return
    server = PsServer(PS, SETTINGS)
    server.start("127.0.0.1:0")
    near = request.param in ("near", "shm")

    def connect(who: Incarnation) -> PsPeer:
        settings = SETTINGS.model_copy(update={"tcp_sessions": request.param == "tcp"})
        stream = StreamTransport(PS, f"127.0.0.1:{server.port}", who, settings, near=near)
        return ShmTransport(stream) if request.param == "shm" else stream

    made = Ps(request.param, server.store, connect)
    try:
        yield made
    finally:
        for transport in made.opened:
            transport.close()
        server.stop(grace_s=0)


class Worker:
    """Drives a transport; its pulls land in memory that it hands out."""

    def __init__(self, transport: PsPeer) -> None:
        self.transport = transport
        self.sequence = 0
        self._ids = itertools.count(1)
        self._pushes: dict[tuple[ShardDefinition, ...], WireLayout] = {}
        self.result = PushResult(0, 0, duplicate=False)

    def create(self, *shards: ShardDefinition) -> None:
        self.transport.define(shards, create=True)
        self.assign({shard: np.zeros(shard.shape, shard.variable.dtype) for shard in shards})

    def layout(self, shards: Sequence[ShardDefinition], layout_id: int = 0) -> WireLayout:
        entries = [
            LayoutEntry(s.variable.name, s.part, Operation.PULL, num_bytes=s.num_bytes)
            for s in shards
        ]
        return WireLayout(layout_id or next(self._ids), tuple(entries))

    def pushed(
        self,
        values: dict[ShardDefinition, Array],
        operation: Operation,
        pull: WireLayout | None = None,
        *,
        has_previous: bool = False,
    ) -> StepRequest:
        key = tuple(values)
        entries = [LayoutEntry(s.variable.name, s.part, operation) for s in values]
        layout = WireLayout(next(self._ids), tuple(entries))
        if operation is Operation.ASSIGN:
            layout = self._pushes.setdefault(key, layout)
        return StepRequest(
            sequence=self.sequence + 1,
            push=layout,
            pull=pull,
            values=[Piece([v], v.dtype, v.nbytes) for v in values.values()],
            has_previous=has_previous,
        )

    def run(
        self, request: StepRequest, into: Sequence[Array], previous: Sequence[Array] | None = None
    ) -> int:
        """The bytes that were brought."""
        spans = [as_bytes(array) for array in into]
        old = None
        if previous is not None:
            old = spans if previous is into else [as_bytes(array) for array in previous]
        self.transport.send(request)
        self.result = self.transport.receive(spans, old)
        self.sequence = max(self.sequence, request.sequence)
        return self.result.pulled_bytes

    def assign(self, values: dict[ShardDefinition, Array]) -> None:
        self.run(self.pushed(values, Operation.ASSIGN), [])

    def pull(
        self, layout: WireLayout, into: Sequence[Array], previous: Sequence[Array] | None = None
    ) -> int:
        request = StepRequest(pull=layout, has_previous=previous is not None)
        return self.run(request, into, previous)


def shard(name: str, *shape: int) -> ShardDefinition:
    return ShardDefinition(VariableDefinition(name, shape, F32))


def full(own: ShardDefinition, value: float) -> Array:
    return np.full(own.shape, value, own.variable.dtype)


def empties(*shards: ShardDefinition) -> list[Array]:
    return [np.full(own.shape, np.nan, own.variable.dtype) for own in shards]


BIG = [shard(name, 70_000) for name in "abcd"]  # each has a block of its own
BIG_BYTES = BIG[0].num_bytes


def check(arrays: Sequence[Array], *expected: float) -> None:
    assert [(float(a.min()), float(a.max())) for a in arrays] == [(e, e) for e in expected]


# -- what travels ------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["same", "other"])
def test_only_what_changed_travels_and_the_rest_is_there(ps: Ps, memory: str) -> None:
    worker = ps.worker()
    worker.create(*BIG)
    layout, latest = worker.layout(BIG), empties(*BIG)
    assert worker.pull(layout, latest) == 4 * BIG_BYTES
    expected = [0.0, 0.0, 0.0, 0.0]
    for changes in ([1], [], [0, 3], [0, 1, 2, 3], [2], []):
        for i in changes:
            expected[i] += 1
        if changes:
            worker.assign({BIG[i]: full(BIG[i], expected[i]) for i in changes})
        into = latest if memory == "same" else empties(*BIG)
        moved = worker.pull(layout, into, latest)
        check(into, *expected)
        # Out of shared memory into other memory everything is copied once, from wherever.
        copies = ps.kind == "shm" and memory == "other"
        wanted = len(changes) if ps.leaves_out and not copies else 4
        assert moved == wanted * BIG_BYTES
        latest = into


def test_without_previous_values_everything_travels(ps: Ps) -> None:
    worker = ps.worker()
    worker.create(*BIG)
    layout = worker.layout(BIG)
    for _ in range(3):
        into = empties(*BIG)
        assert worker.pull(layout, into) == 4 * BIG_BYTES
        check(into, 0, 0, 0, 0)
    assert worker.pull(layout, into, into) == (0 if ps.leaves_out else 4 * BIG_BYTES)
    check(into, 0, 0, 0, 0)


def test_a_push_and_its_own_pull_bring_what_it_changed(ps: Ps) -> None:
    worker = ps.worker()
    worker.create(*BIG)
    worker.transport.bind(["b"], SGD(learning_rate=1.0))
    layout, into = worker.layout(BIG), empties(*BIG)
    worker.pull(layout, into)
    for step in range(1, 4):
        gradient = {BIG[1]: full(BIG[1], -1)}
        request = worker.pushed(gradient, Operation.APPLY, layout, has_previous=True)
        moved = worker.run(request, into, into)
        check(into, 0, step, 0, 0)
        assert moved == (BIG_BYTES if ps.leaves_out else 4 * BIG_BYTES)


@pytest.mark.parametrize("count", [SMALL_PULL // 4, SMALL_PULL // 4 + 1], ids=["at", "over"])
def test_a_pull_up_to_64_kib_is_sent_whole(ps: Ps, count: int) -> None:
    worker, own = ps.worker(), shard("w", count)
    worker.create(own)
    layout, into = worker.layout([own]), empties(own)
    worker.pull(layout, into)
    moved = worker.pull(layout, into, into)
    check(into, 0)
    whole = not ps.leaves_out or own.num_bytes <= SMALL_PULL
    assert moved == (own.num_bytes if whole else 0)


def test_the_same_memory_is_left_alone_where_nothing_changed(ps: Ps) -> None:
    if not ps.leaves_out:
        pytest.skip("everything is copied")
    worker = ps.worker()
    worker.create(*BIG)
    layout, into = worker.layout(BIG), empties(*BIG)
    worker.pull(layout, into)
    into[2][:] = 77  # ours alone
    worker.assign({BIG[0]: full(BIG[0], 5)})
    worker.pull(layout, into, into)
    check(into, 5, 0, 77, 0)


def test_pulls_of_different_layouts_are_told_apart(ps: Ps) -> None:
    worker = ps.worker()
    worker.create(*BIG)
    forth, back = worker.layout(BIG), worker.layout(BIG[::-1])
    first, second = empties(*BIG), empties(*BIG)
    worker.pull(forth, first)
    worker.assign({BIG[0]: full(BIG[0], 1)})
    worker.pull(back, second)
    worker.assign({BIG[1]: full(BIG[1], 2)})
    worker.pull(back, second, second)
    check(second, 0, 0, 2, 1)
    worker.pull(forth, first, first)
    check(first, 1, 2, 0, 0)


# -- variables of all forms --------------------------------------------------------------------


def test_many_small_variables_that_share_a_block(ps: Ps) -> None:
    """One of them changes: its block is written, but over the stream only its own bytes travel."""
    worker = ps.worker()
    small = [shard(f"v{i}", 1 + i % 20) for i in range(5000)]
    total = sum(own.num_bytes for own in small)
    assert total > SMALL_PULL
    worker.create(*small)
    layout, into = worker.layout(small), np.full(total // 4, np.nan, F32)
    assert worker.pull(layout, [into]) == total
    starts = np.cumsum([0, *(own.shape[0] for own in small)])
    expected = np.zeros(total // 4, F32)
    rng = np.random.default_rng(0)
    for value in range(1, 6):
        chosen = sorted(rng.choice(len(small), 20, replace=False).tolist())
        worker.assign({small[i]: full(small[i], value) for i in chosen})
        for i in chosen:
            expected[starts[i] : starts[i + 1]] = value
        moved = worker.pull(layout, [into], [into] if ps.kind == "shm" else [into.copy()])
        np.testing.assert_array_equal(into, expected)
        if ps.kind in ("grpc", "tcp", "near"):
            assert moved == sum(small[i].num_bytes for i in chosen)


@pytest.mark.parametrize("memory", ["same", "other"])
def test_parts_and_empty_entries_land_in_several_pieces(ps: Ps, memory: str) -> None:
    worker = ps.worker()
    table = VariableDefinition("table", (700, 50), F32)
    parts = cut(table, 3)
    others = [shard("none", 0), shard("scalar"), shard("some", 7)]
    shards = [others[0], parts[2], others[1], parts[0], others[2], parts[1]]
    worker.create(*shards)
    layout = worker.layout(shards)
    sizes = [own.num_bytes for own in shards]
    total = sum(sizes)
    # Shared memory is copied entry by entry; there pieces end where entries do, as a session's.
    ends = np.cumsum([0, *sizes]).tolist()
    edges = [0, 4, total // 3, total // 3, 2 * total // 3 + 1, total]
    if ps.kind == "shm":
        edges = [0, ends[2], ends[3], ends[3], ends[5], total]

    def run(buffer: Array, previous: Array | None) -> None:
        spans = [buffer.data[a:b] for a, b in itertools.pairwise(edges)]
        old = None
        if previous is not None:
            old = spans
            if previous is not buffer:
                old = [previous.data[a:b] for a, b in itertools.pairwise(edges)]
        worker.transport.send(StepRequest(pull=layout, has_previous=old is not None))
        worker.transport.receive(spans, old)

    latest = np.full(total, 255, np.uint8)
    run(latest, None)
    values = {own: full(own, 0) for own in shards}
    rng = np.random.default_rng(1)
    for number in range(1, 12):
        chosen = [own for own in shards if rng.random() < 0.4]
        for own in chosen:
            values[own] = full(own, number)
        if chosen:
            worker.assign({own: values[own] for own in chosen})
        into = latest if memory == "same" else np.full(total, 255, np.uint8)
        run(into, latest)
        assert into.tobytes() == b"".join(values[own].tobytes() for own in shards)
        latest = into


# -- what may come between ---------------------------------------------------------------------


def test_what_another_worker_pushed_between_is_seen(ps: Ps) -> None:
    worker, other = ps.worker(0), ps.worker(1)
    worker.create(*BIG)
    other.transport.define(BIG, create=True)
    layout, into = worker.layout(BIG), empties(*BIG)
    worker.pull(layout, into)
    for value in range(1, 5):
        other.assign({BIG[value % 4]: full(BIG[value % 4], value)})
        theirs = empties(*BIG)
        other.pull(other.layout(BIG), theirs)
        worker.pull(layout, into, into)
        for mine, fresh in zip(into, theirs, strict=True):
            np.testing.assert_array_equal(mine, fresh)


def test_a_refused_step_between_changes_nothing(ps: Ps) -> None:
    worker = ps.worker()
    worker.create(*BIG)
    layout, into = worker.layout(BIG), empties(*BIG)
    worker.pull(layout, into)
    for value in range(1, 4):
        worker.assign({BIG[0]: full(BIG[0], value)})
        request = worker.pushed(  # "a" has no update rule
            {BIG[0]: full(BIG[0], 100)}, Operation.APPLY, layout, has_previous=True
        )
        with pytest.raises(RefusedError, match="no update rule"):
            worker.run(request, into, into)
        check(into, value - 1, 0, 0, 0)
        worker.pull(layout, into, into)
        check(into, value, 0, 0, 0)


def test_a_number_that_stands_for_another_layout_now_knows_nothing_of_the_old_one(ps: Ps) -> None:
    worker = ps.worker()
    worker.create(*BIG)
    for i, own in enumerate(BIG):
        worker.assign({own: full(own, i)})
    into = empties(*BIG)
    orders = itertools.cycle(itertools.permutations(range(4)))
    for _ in range(12):
        order = next(orders)
        layout = worker.layout([BIG[i] for i in order], layout_id=1_000)
        # Whatever is in that memory: it was not pulled by this layout.
        moved = worker.pull(layout, into, into)
        check(into, *order)
        assert moved == 4 * BIG_BYTES
        assert worker.pull(layout, into, into) in (0, 4 * BIG_BYTES)
        check(into, *order)


def stream_of(transport: PsPeer) -> StreamTransport:
    stream = transport._stream if isinstance(transport, ShmTransport) else transport
    assert isinstance(stream, StreamTransport)
    return stream


def break_off(transport: PsPeer) -> None:
    """Cut the connection, as a network would."""
    session = stream_of(transport)._stream
    assert session is not None
    session.carrier.cancel()


@pytest.mark.parametrize("memory", ["same", "other"])
@pytest.mark.parametrize("when", ["before", "after-send"])
def test_after_a_connection_was_cut_nothing_is_taken_for_known(
    ps: Ps, memory: str, when: str
) -> None:
    if ps.kind == "local":
        pytest.skip("there is no connection")
    worker, other = ps.worker(0), ps.worker(1)
    worker.create(*BIG)
    other.transport.define(BIG, create=True)
    layout, latest = worker.layout(BIG), empties(*BIG)
    worker.pull(layout, latest)
    for value in range(1, 6):
        i = value % 4
        other.assign({BIG[i]: full(BIG[i], value)})
        if when == "before":
            break_off(worker.transport)
        spans = [as_bytes(array) for array in latest]
        into = latest if memory == "same" else empties(*BIG)
        targets = spans if memory == "same" else [as_bytes(array) for array in into]
        worker.transport.send(StepRequest(pull=layout, has_previous=True))
        if when != "before":
            break_off(worker.transport)
        worker.transport.receive(targets, spans)
        fresh = empties(*BIG)
        other.pull(other.layout(BIG), fresh)
        for mine, theirs in zip(into, fresh, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        # And the next one is on known ground again.
        worker.pull(layout, into, into)
        for mine, theirs in zip(into, fresh, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        latest = into


def test_shared_memory_that_is_given_up_between_pulls_leaves_them_right(ps: Ps) -> None:
    if ps.kind != "shm":
        pytest.skip("only shm can give up")
    worker = ps.worker()
    worker.create(*BIG)
    assert isinstance(worker.transport, ShmTransport)
    layout, into = worker.layout(BIG), empties(*BIG)
    worker.pull(layout, into)
    worker.assign({BIG[0]: full(BIG[0], 1)})
    worker.pull(layout, into, into)
    worker.transport._give_up("for the test")
    worker.assign({BIG[1]: full(BIG[1], 2)})
    worker.pull(layout, into, into)
    check(into, 1, 2, 0, 0)
    worker.assign({BIG[2]: full(BIG[2], 3)})
    assert worker.pull(layout, into, into) == BIG_BYTES
    check(into, 1, 2, 3, 0)


# -- at random ---------------------------------------------------------------------------------

SHARDS = [
    *(shard(f"small{i}", 3 + i) for i in range(6)),
    shard("none", 0, 4),
    *(shard(f"large{i}", 9_000 + i) for i in range(3)),
    *cut(VariableDefinition("table", (601, 30), F32), 2),
]
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 2), st.sets(st.integers(0, len(SHARDS) - 1))),
        st.tuples(st.sampled_from(["pull", "pull-other", "forget", "cut", "refused"])),
    ),
    min_size=3,
    max_size=25,
)


@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(actions=ACTIONS)
def test_a_puller_with_previous_values_always_equals_a_fresh_pull(
    ps: Ps, actions: list[tuple[str] | tuple[str, int, set[int]]]
) -> None:
    """Several workers add to random variables; connections are cut, steps refused, memory changed."""
    workers = [ps.worker(3 * len(ps.opened) + i) for i in range(3)]
    for worker in workers:
        worker.transport.define(SHARDS, create=True)
    reader, checker = ps.worker(1000 + len(ps.opened)), ps.worker(2000 + len(ps.opened))
    for own in (reader, checker):
        own.transport.define(SHARDS, create=True)
    layout = reader.layout(SHARDS)
    latest: list[Array] | None = None
    for name, *facts in [*actions, ("pull",)]:
        if name == "push":
            index, chosen = facts
            assert isinstance(index, int)
            assert isinstance(chosen, set)
            ones = {SHARDS[i]: full(SHARDS[i], 1) for i in sorted(chosen)}
            if ones:
                workers[index].run(workers[index].pushed(ones, Operation.ASSIGN_ADD), [])
        elif name == "forget":
            latest = None
        elif name == "cut" and ps.kind != "local":
            break_off(reader.transport)
        elif name == "refused" and latest is not None:
            ones = {SHARDS[0]: full(SHARDS[0], 1)}
            request = reader.pushed(ones, Operation.APPLY, layout, has_previous=True)
            with pytest.raises(RefusedError, match="no update rule"):
                reader.run(request, latest, latest)
        elif name.startswith("pull"):
            into = latest if latest is not None and name == "pull" else empties(*SHARDS)
            reader.pull(layout, into, latest)
            latest = into
            fresh = empties(*SHARDS)
            checker.pull(checker.layout(SHARDS), fresh)
            for mine, theirs in zip(latest, fresh, strict=True):
                np.testing.assert_array_equal(mine, theirs)
    for used in [*(worker.transport for worker in workers), reader.transport, checker.transport]:
        used.close()
