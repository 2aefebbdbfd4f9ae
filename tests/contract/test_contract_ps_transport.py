"""What every way of reaching a ps promises: one suite, run over all implementations of PsPeer."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from windlass.client.ps.stream_transport import StreamTransport

from windlass.client.ps.peer import PsPeer
from windlass.client.ps.shared_payloads import ShmTransport
from windlass.core.arrays import BFLOAT16, DTYPES, FLOATS, INTEGERS, Array, DType, as_bytes
from windlass.core.definitions import ShardDefinition, VariableDefinition, cut
from windlass.core.errors import (
    DefinitionMismatchError,
    FencedError,
    LimitExceededError,
    PeerLostError,
    RefusedError,
    SequenceError,
    ShapeMismatchError,
    UnknownVariableError,
)
from windlass.core.initializers import Initializer
from windlass.core.settings import Settings
from windlass.core.steps import (
    Encoding,
    LayoutEntry,
    Operation,
    PushResult,
    StepRequest,
    WireLayout,
)
from windlass.core.task import Incarnation, TaskId
from windlass.core.update_rules import SGD, Adam, UpdateRule
from windlass.distribute.local_ps import LocalPs
from windlass.server.ps.server import PsServer
from windlass.server.ps.store import Store

PS = TaskId("ps", 0)
PULL, APPLY, ASSIGN, ADD = Operation
F32 = np.dtype(np.float32)

# Frames far smaller than most payloads below.
SETTINGS = Settings(
    chunk_bytes=4096, request_timeout_s=5.0, reconnect_timeout_s=2.0, max_step_bytes=4 * 1024**2
)

Open = Callable[[str, Incarnation, Settings], PsPeer]


@dataclass
class Ps:
    """One ps, and how workers reach it."""

    kind: str
    store: Store
    connect: Callable[[Incarnation], PsPeer]
    opened: list[PsPeer] = field(default_factory=list)

    def worker(self, index: int = 0, generation: int = 1) -> "Worker":
        transport = self.connect(Incarnation(TaskId("worker", index), generation))
        self.opened.append(transport)
        transport.connect(5.0)
        return Worker(transport)


@pytest.fixture(params=["local", "grpc", "tcp", "shm"])
def ps(request: pytest.FixtureRequest) -> Iterator[Ps]:
    """A ps behind each kind of transport."""
    if request.param == "local":
        store = Store(PS, SETTINGS)
        made = Ps("local", store, lambda who: LocalPs(PS, who, SETTINGS, store))
        yield made
        for transport in made.opened:
            transport.close()
        return
    server = PsServer(PS, SETTINGS)
    server.start("127.0.0.1:0")
    address = f"127.0.0.1:{server.port}"

    def connect(who: Incarnation) -> PsPeer:
        settings = SETTINGS.model_copy(update={"tcp_sessions": request.param == "tcp"})
        stream = StreamTransport(PS, address, who, settings)
        return ShmTransport(stream) if request.param == "shm" else stream

    made = Ps(request.param, server.store, connect)
    try:
        yield made
    finally:
        for transport in made.opened:
            transport.close()
        server.stop(grace_s=0)


@dataclass(frozen=True)
class Put:
    """One entry of a push."""

    shard: ShardDefinition
    operation: Operation
    values: Array
    rows: Array | None = None
    wire: DType | None = None
    elements: bool = False

    @property
    def encoding(self) -> Encoding:
        return Encoding.ELEMENTS if self.elements else _encoding(self.rows)


@dataclass(frozen=True)
class Get:
    """One entry of a pull."""

    shard: ShardDefinition
    rows: Array | None = None
    wire: DType | None = None


def put(variable: VariableDefinition, operation: Operation, values: Any, rows: Any = None) -> Put:
    return Put(
        ShardDefinition(variable),
        operation,
        np.ascontiguousarray(values, variable.dtype),
        None if rows is None else np.asarray(rows, np.int64),
    )


def get(variable: VariableDefinition, rows: Any = None) -> Get:
    return Get(ShardDefinition(variable), None if rows is None else np.asarray(rows, np.int64))


def _encoding(rows: Array | None) -> Encoding:
    return Encoding.DENSE if rows is None else Encoding.ROWS


class Worker:
    """Drives a transport: numbers pushes, keeps layouts, cuts and joins arrays."""

    def __init__(self, transport: PsPeer) -> None:
        self.transport = transport
        self.sequence = 0
        self._layouts: dict[tuple[LayoutEntry, ...], WireLayout] = {}
        self._ids = itertools.count(1)

    def define(self, *variables: VariableDefinition, create: bool = True) -> list[Any]:
        return self.transport.define([ShardDefinition(item) for item in variables], create=create)

    def request(
        self, puts: Sequence[Put] = (), gets: Sequence[Get] = (), **facts: Any
    ) -> StepRequest:
        push = [
            LayoutEntry(i.shard.variable.name, i.shard.part, i.operation, i.encoding, i.wire)
            for i in puts
        ]
        pull = [
            LayoutEntry(i.shard.variable.name, i.shard.part, PULL, _encoding(i.rows), i.wire)
            for i in gets
        ]
        return StepRequest(
            sequence=facts.pop("sequence", self.sequence + 1 if puts else 0),
            push=self._layout(push),
            pull=self._layout(pull),
            push_rows=[item.rows for item in puts if item.rows is not None],
            pull_rows=[item.rows for item in gets if item.rows is not None],
            values=[Piece([i.values], i.values.dtype, i.values.nbytes) for i in puts],
            **facts,
        )

    def _layout(self, entries: list[LayoutEntry]) -> WireLayout | None:
        if not entries:
            return None
        key = tuple(entries)
        if key not in self._layouts:
            self._layouts[key] = WireLayout(next(self._ids), key)
        return self._layouts[key]

    def exchange(self, request: StepRequest, gets: Sequence[Get] = ()) -> list[Array]:
        out = [
            np.empty(
                i.shard.shape if i.rows is None else (i.rows.size, *i.shard.shape[1:]),
                i.wire or i.shard.variable.dtype,
            )
            for i in gets
        ]
        self.transport.send(request)
        self.result = self.transport.receive([as_bytes(array) for array in out])
        if request.sequence:
            self.sequence = max(self.sequence, request.sequence)
        return out

    def push(self, *puts: Put, **facts: Any) -> PushResult:
        self.exchange(self.request(puts, **facts))
        return self.result

    def pull(self, *gets: Get) -> list[Array]:
        return self.exchange(self.request((), gets), gets)

    def value(self, variable: VariableDefinition) -> Array:
        [array] = self.pull(get(variable))
        return array


def vector(name: str = "w", *shape: int, dtype: DType = F32) -> VariableDefinition:
    return VariableDefinition(name, shape or (3,), dtype)


def zeros(*variables: VariableDefinition) -> list[Put]:
    return [put(item, ASSIGN, np.zeros(item.shape, item.dtype)) for item in variables]


# -- definitions -------------------------------------------------------------------------------


def test_a_transport_says_whom_it_reaches_and_how(ps: Ps) -> None:
    transport = ps.worker().transport
    assert transport.task == PS
    assert transport.description.split()[0] == ps.kind


def test_defining_creates_and_a_value_makes_it_initialized(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    ones = VariableDefinition("ones", (2,), F32, Initializer("ones"))
    held = worker.define(w, ones)
    assert [item.initialized for item in held] == [False, True]
    assert not any(item.restored for item in held)
    assert held[0].shard == ShardDefinition(w)
    worker.push(put(w, ASSIGN, [1, 2, 3]))
    assert [item.initialized for item in worker.define(w, ones)] == [True, True]
    np.testing.assert_array_equal(worker.value(ones), 1)


def test_defining_again_is_a_no_op_for_anybody(ps: Ps) -> None:
    first, second, w = ps.worker(0), ps.worker(1), vector()
    first.define(w)
    first.push(put(w, ASSIGN, [1, 2, 3]))
    for worker in (first, second):
        [held] = worker.define(w)
        assert held.initialized
    np.testing.assert_array_equal(second.value(w), [1, 2, 3])
    assert ps.store.counters().shards == 1


def test_looking_up_finds_whatever_parts_are_held_and_leaves_out_the_rest(ps: Ps) -> None:
    first, second = ps.worker(0), ps.worker(1)
    table = vector("table", 5, 2)
    parts = cut(table, 3)[1:]
    first.transport.define(parts, create=True)
    held = second.define(table, vector("nowhere"), create=False)
    assert [item.shard for item in held] == parts
    assert ps.store.counters().shards == 2


def test_held_bytes_are_those_of_the_last_definition(ps: Ps) -> None:
    worker = ps.worker()
    worker.define(vector("a", 10), vector("b", 5, dtype=np.dtype(np.float64)))
    assert worker.transport.held_bytes() == 80


@pytest.mark.parametrize("create", [True, False], ids=["create", "look-up"])
@pytest.mark.parametrize(
    ("other", "shown"),
    [
        (vector("w", 4), ("float32[3]", "float32[4]")),
        (vector(dtype=np.dtype(np.float64)), ("float32", "float64")),
    ],
    ids=["shape", "dtype"],
)
def test_a_different_definition_is_an_error_naming_both_tasks(
    ps: Ps, other: VariableDefinition, shown: tuple[str, str], create: bool
) -> None:
    first, second = ps.worker(0), ps.worker(1)
    first.define(vector())
    with pytest.raises(DefinitionMismatchError) as caught:
        second.define(other, create=create)
    for part in ("/job:worker/task:0", "/job:worker/task:1", "'w'", *shown):
        assert part in caught.value.message
    [held] = second.define(vector())
    assert held.shard.variable == vector()


def test_another_cut_is_a_different_definition(ps: Ps) -> None:
    worker, table = ps.worker(), vector("table", 6)
    worker.transport.define(cut(table, 2)[:1], create=True)
    with pytest.raises(DefinitionMismatchError, match="'table"):
        worker.transport.define(cut(table, 3)[:1], create=True)


def test_thousands_of_definitions_go_in_one_call(ps: Ps) -> None:
    worker = ps.worker()
    variables = [vector(f"v{i}", 1) for i in range(2500)]
    assert len(worker.define(*variables)) == 2500
    assert ps.store.counters().variables == 2500
    worker.transport.bind([item.name for item in variables], SGD())


def test_binding_is_idempotent_and_another_rule_names_both_tasks(ps: Ps) -> None:
    first, second, w = ps.worker(0), ps.worker(1), vector()
    first.define(w)
    for worker in (first, first, second):
        worker.transport.bind(["w"], SGD(learning_rate=0.5))
    with pytest.raises(DefinitionMismatchError) as caught:
        second.transport.bind(["w"], Adam())
    for part in ("/job:worker/task:0", "/job:worker/task:1", "SGD", "Adam"):
        assert part in caught.value.message
    first.push(*zeros(w))
    first.push(put(w, APPLY, [2, 2, 2]))
    np.testing.assert_array_equal(first.value(w), -1)


def test_integers_have_no_update_rules(ps: Ps) -> None:
    worker = ps.worker()
    worker.define(vector(dtype=np.dtype(np.int32)))
    with pytest.raises(RefusedError, match="'w' is int32; update rules need a float dtype"):
        worker.transport.bind(["w"], SGD())


# -- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_values_of_every_dtype_arrive_as_they_left(ps: Ps, dtype: DType) -> None:
    worker, w = ps.worker(), vector("w", 5, 3, dtype=dtype)
    values = (np.arange(15).reshape(5, 3) % 2).astype(dtype)
    worker.define(w)
    worker.push(put(w, ASSIGN, values))
    np.testing.assert_array_equal(worker.value(w), values)


@pytest.mark.parametrize(
    "shape",
    [(), (1,), (0,), (0, 3), (3, 0), (7, 5), (2, 3, 4), (300, 100)],
    ids=["scalar", "one", "empty", "no-rows", "no-columns", "matrix", "cube", "many-frames"],
)
def test_values_of_every_shape_arrive_as_they_left(ps: Ps, shape: tuple[int, ...]) -> None:
    worker = ps.worker()
    w = VariableDefinition("w", shape, F32)
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    worker.define(w)
    worker.push(put(w, ASSIGN, values))
    np.testing.assert_array_equal(worker.value(w), values)


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 8192, 3 * 4096 + 1, 1_000_000])
def test_payloads_around_and_far_beyond_a_frame_arrive_whole(ps: Ps, size: int) -> None:
    worker, w = ps.worker(), vector("w", size, dtype=np.dtype(np.uint8))
    values = np.random.default_rng(0).integers(0, 255, size).astype(np.uint8)
    worker.define(w)
    puts, gets = [put(w, ASSIGN, values)], [get(w)]
    [back] = worker.exchange(worker.request(puts, gets), gets)
    np.testing.assert_array_equal(back, values)


def test_one_step_carries_dtypes_and_shapes_mixed_and_pulls_after_it_pushed(ps: Ps) -> None:
    worker, rng = ps.worker(), np.random.default_rng(0)
    shapes = [(), (4000,), (0, 2), (3,), (33, 40), (1,)]
    variables = [
        VariableDefinition(f"v{i}", shape, DTYPES[i % len(DTYPES)])
        for i, shape in enumerate(shapes * 4)
    ]
    values = [(rng.standard_normal(item.shape) > 0).astype(item.dtype) for item in variables]
    worker.define(*variables)
    puts = [put(item, ASSIGN, value) for item, value in zip(variables, values, strict=True)]
    backwards = [get(item) for item in reversed(variables)]
    for got, expected in zip(
        worker.exchange(worker.request(puts, backwards), backwards), reversed(values), strict=True
    ):
        np.testing.assert_array_equal(got, expected)
    moved = sum(value.nbytes for value in values)
    assert worker.result == PushResult(0, 0, duplicate=False, pulled_bytes=moved)


def test_operations_mix_in_one_push(ps: Ps) -> None:
    worker = ps.worker()
    a, b, c = (vector(name) for name in "abc")
    worker.define(a, b, c)
    worker.push(*zeros(a, b, c))
    worker.transport.bind(["b"], SGD(learning_rate=0.5))
    worker.push(put(a, ASSIGN, [1, 1, 1]), put(b, APPLY, [2, 4, 6]), put(c, ADD, [3, 3, 3]))
    got = worker.pull(get(a), get(b), get(c))
    for values, expected in zip(got, [[1, 1, 1], [-1, -2, -3], [3, 3, 3]], strict=True):
        np.testing.assert_array_equal(values, expected)


def test_the_gradient_scale_multiplies_gradients(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.define(w)
    worker.push(*zeros(w))
    worker.transport.bind(["w"], SGD(learning_rate=1.0))
    worker.push(put(w, APPLY, [2, 4, 6]), gradient_scale=0.5)
    np.testing.assert_array_equal(worker.value(w), [-1, -2, -3])


def test_shards_of_one_variable_are_told_apart_by_part(ps: Ps) -> None:
    worker, table = ps.worker(), vector("table", 5, 2)
    parts = cut(table, 2)
    worker.transport.define(parts, create=True)
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    worker.push(Put(parts[1], ASSIGN, rows[3:]), Put(parts[0], ASSIGN, rows[:3]))
    first, second = worker.pull(Get(parts[0]), Get(parts[1]))
    np.testing.assert_array_equal(np.concatenate([first, second]), rows)


# -- rows --------------------------------------------------------------------------------------


def test_rows_are_pushed_and_pulled_by_number(ps: Ps) -> None:
    worker, table, w = ps.worker(), vector("table", 2000, 4), vector()
    worker.define(table, w)
    worker.push(*zeros(table, w))
    worker.transport.bind(["table"], SGD(learning_rate=1.0))
    rows = np.arange(0, 2000, 3)
    values = np.repeat(rows[:, None], 4, 1)
    worker.push(
        put(table, APPLY, -values, rows),
        put(w, ASSIGN, [1, 2, 3]),
    )
    expected = np.zeros((2000, 4), np.float32)
    expected[rows] = values
    np.testing.assert_array_equal(worker.value(table), expected)
    asked = np.array([3, 0, 1999, 3, 999])
    some, whole, none = worker.pull(get(table, asked), get(w), get(table, []))
    np.testing.assert_array_equal(some, expected[asked])
    np.testing.assert_array_equal(whole, [1, 2, 3])
    assert none.shape == (0, 4)


def test_rows_can_be_pushed_and_pulled_in_one_step(ps: Ps) -> None:
    worker, table = ps.worker(), vector("table", 10, 2)
    worker.define(table)
    worker.push(*zeros(table))
    puts = [put(table, ADD, np.ones((2, 2)), [1, 7])]
    gets = [get(table, [7, 0]), get(table)]
    some, whole = worker.exchange(worker.request(puts, gets), gets)
    np.testing.assert_array_equal(some, [[1, 1], [0, 0]])
    assert whole.sum() == 4


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, 10], r"row 10 of 'table' is out of range: the shard has 10 rows"),
        ([-1, 3], r"row -1 of 'table' is out of range"),
        ([3, 3], "must ascend without repeating"),
        ([4, 3], "must ascend without repeating"),
    ],
    ids=["past-the-end", "negative", "repeated", "descending"],
)
def test_rows_that_cannot_be_are_refused_whole(ps: Ps, rows: list[int], message: str) -> None:
    worker, table, w = ps.worker(), vector("table", 10, 2), vector()
    worker.define(table, w)
    worker.push(*zeros(table, w))
    with pytest.raises(ShapeMismatchError, match=message):
        worker.push(put(w, ADD, [1, 1, 1]), put(table, ADD, np.ones((2, 2)), rows))
    assert worker.value(w).sum() == worker.value(table).sum() == 0


@pytest.mark.parametrize("row", [-1, 10], ids=["negative", "past-the-end"])
def test_pulled_rows_are_checked_too(ps: Ps, row: int) -> None:
    worker, table = ps.worker(), vector("table", 10, 2)
    worker.define(table)
    worker.push(*zeros(table))
    with pytest.raises(ShapeMismatchError, match=f"row {row} of 'table' is out of range"):
        worker.pull(get(table, [0, row]))
    assert worker.value(table).shape == (10, 2)


# -- narrower on the way -----------------------------------------------------------------------

F16, F64 = np.dtype(np.float16), np.dtype(np.float64)
HALVES = pytest.mark.parametrize("wire", [F16, BFLOAT16], ids=lambda dtype: dtype.name)


def narrow(variable: VariableDefinition, operation: Operation, values: Any, wire: DType) -> Put:
    return Put(ShardDefinition(variable), operation, np.asarray(values).astype(wire), wire=wire)


@HALVES
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("size", [5, 50_000], ids=["small", "large"])
def test_narrow_gradients_are_applied_as_if_they_were_wide(
    ps: Ps, wire: DType, dtype: DType, size: int
) -> None:
    worker = ps.worker()
    given, wanted = vector("given", size, dtype=dtype), vector("wanted", size, dtype=dtype)
    worker.define(given, wanted)
    worker.push(*zeros(given, wanted))
    worker.transport.bind(["given", "wanted"], Adam(learning_rate=0.1))
    rng = np.random.default_rng(0)
    for _ in range(3):
        gradient = rng.standard_normal(size).astype(wire)
        worker.push(narrow(given, APPLY, gradient, wire), put(wanted, APPLY, gradient))
    np.testing.assert_array_equal(worker.value(given), worker.value(wanted))
    assert worker.value(given).any()


@HALVES
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("size", [5, 50_000], ids=["small", "large"])
def test_values_may_come_narrower_than_they_are(
    ps: Ps, wire: DType, dtype: DType, size: int
) -> None:
    worker, w = ps.worker(), vector("w", size, dtype=dtype)
    values = np.random.default_rng(0).standard_normal(size).astype(dtype)
    worker.define(w)
    worker.push(put(w, ASSIGN, values))
    for _ in range(2):
        [got] = worker.pull(Get(ShardDefinition(w), wire=wire))
        np.testing.assert_array_equal(got, values.astype(wire))
        assert worker.result.pulled_bytes == 2 * size
    np.testing.assert_array_equal(worker.value(w), values)


def test_values_beyond_float16_come_as_its_largest_number(ps: Ps) -> None:
    worker, w = ps.worker(), vector("w", 3)
    worker.define(w)
    worker.push(put(w, ASSIGN, [1e6, -1e6, 1]))
    [got] = worker.pull(Get(ShardDefinition(w), wire=F16))
    np.testing.assert_array_equal(got, np.array([65504, -65504, 1], F16))


@HALVES
def test_narrow_rows_are_pushed_and_pulled(ps: Ps, wire: DType) -> None:
    worker, table = ps.worker(), vector("table", 10, 2)
    worker.define(table)
    worker.push(*zeros(table))
    rows, values = np.array([2, 7]), np.array([[1.5, 2], [-3, 4]], wire)
    worker.push(Put(ShardDefinition(table), ADD, values, rows, wire))
    [got] = worker.pull(Get(ShardDefinition(table), np.array([7, 0, 2]), wire))
    np.testing.assert_array_equal(got, np.array([[-3, 4], [0, 0], [1.5, 2]], wire))


@pytest.mark.parametrize("dtype", [*INTEGERS, np.dtype(np.bool_)], ids=lambda dtype: dtype.name)
def test_integers_and_booleans_are_not_narrowed(ps: Ps, dtype: DType) -> None:
    worker, w = ps.worker(), vector("w", 3, dtype=dtype)
    worker.define(w)
    worker.push(*zeros(w))
    message = f"'w' is {dtype.name} and cannot travel as float16"
    with pytest.raises(RefusedError, match=message):
        worker.push(narrow(w, ADD, [1, 1, 1], F16))
    with pytest.raises(RefusedError, match=message):
        worker.pull(Get(ShardDefinition(w), wire=F16))
    assert worker.value(w).sum() == 0


def test_floats_do_not_travel_as_integers(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.define(w)
    worker.push(*zeros(w))
    with pytest.raises(RefusedError, match="'w' is float32 and cannot travel as int8"):
        worker.push(narrow(w, ADD, [1, 1, 1], np.dtype(np.int8)))
    assert worker.value(w).sum() == 0


def test_wide_and_narrow_neighbours_travel_in_one_step(ps: Ps) -> None:
    worker = ps.worker()
    variables = [vector(f"v{i}", 3, dtype=F64 if i % 4 == 3 else F32) for i in range(40)]
    wires = [None, F16, BFLOAT16, F16]
    worker.define(*variables)
    puts = [
        put(v, ASSIGN, np.full(3, i))
        if (wire := wires[i % 4]) is None
        else narrow(v, ASSIGN, np.full(3, i), wire)
        for i, v in enumerate(variables)
    ]
    gets = [Get(ShardDefinition(v), wire=wires[(i + 1) % 4]) for i, v in enumerate(variables)]
    got = worker.exchange(worker.request(puts, gets), gets)
    for i, array in enumerate(got):
        np.testing.assert_array_equal(array.astype(np.float64), i)


# -- single elements ---------------------------------------------------------------------------


def elements(
    shard: VariableDefinition | ShardDefinition,
    numbers: Any,
    values: Any,
    *,
    operation: Operation = APPLY,
    wire: DType | None = None,
) -> Put:
    if isinstance(shard, VariableDefinition):
        shard = ShardDefinition(shard)
    held = np.asarray(values).astype(wire or shard.variable.dtype)
    return Put(shard, operation, held, np.asarray(numbers, np.int64), wire, elements=True)


@pytest.mark.parametrize("wire", [None, F16, BFLOAT16], ids=["as-it-is", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "rule",
    [SGD(learning_rate=0.1), SGD(learning_rate=0.1, momentum=0.9), Adam(learning_rate=0.1)],
    ids=["sgd", "momentum", "adam"],
)
@pytest.mark.parametrize("shape", [(7, 5), (300, 100)], ids=["small", "large"])
def test_elements_are_the_gradient_that_is_zero_elsewhere(
    ps: Ps, rule: UpdateRule, dtype: DType, wire: DType | None, shape: tuple[int, ...]
) -> None:
    """To the bit: momentum and Adam also move where the gradient is zero."""
    worker = ps.worker()
    some, whole = vector("some", *shape, dtype=dtype), vector("whole", *shape, dtype=dtype)
    rng = np.random.default_rng(0)
    start = rng.standard_normal(shape).astype(dtype)
    worker.define(some, whole)
    worker.push(put(some, ASSIGN, start), put(whole, ASSIGN, start))
    worker.transport.bind(["some", "whole"], rule)
    size = start.size
    for count in (size // 3, 1, 0, size):
        numbers = np.sort(rng.choice(size, count, replace=False))
        values = rng.standard_normal(count).astype(wire or dtype)
        dense = np.zeros(size, dtype)
        dense[numbers] = values.astype(dtype)
        worker.push(
            elements(some, numbers, values, wire=wire),
            put(whole, APPLY, dense.reshape(shape)),
            gradient_scale=0.5,
            step_increment=1,
        )
        np.testing.assert_array_equal(worker.value(some), worker.value(whole))
    assert not np.array_equal(worker.value(some), start)


def test_elements_of_parts_are_counted_in_their_part(ps: Ps) -> None:
    worker, table = ps.worker(), vector("table", 5, 2)
    parts = cut(table, 2)
    worker.transport.define(parts, create=True)
    worker.push(*(Put(part, ASSIGN, np.zeros(part.shape, F32)) for part in parts))
    worker.transport.bind(["table"], SGD(learning_rate=1.0))
    worker.push(elements(parts[0], [0, 5], [-1, -2]), elements(parts[1], [3], [-3]))
    got = worker.pull(Get(parts[0]), Get(parts[1]))
    np.testing.assert_array_equal(got[0], [[1, 0], [0, 0], [0, 2]])
    np.testing.assert_array_equal(got[1], [[0, 0], [0, 3]])


def test_dense_rows_and_elements_mix_in_one_push(ps: Ps) -> None:
    worker = ps.worker()
    a, b, c, d = (vector(name, 4, 2) for name in "abcd")
    worker.define(a, b, c, d)
    worker.push(*zeros(a, b, c, d))
    worker.transport.bind(["a", "b", "c"], SGD(learning_rate=1.0))
    worker.push(
        elements(a, [7], [-1]),
        put(b, APPLY, np.full((1, 2), -2), [3]),
        put(d, ADD, np.full((4, 2), 4)),
        put(c, APPLY, np.full((4, 2), -3)),
    )
    got = worker.pull(get(a), get(b), get(c), get(d))
    assert [array.sum() for array in got] == [1, 4, 24, 32]
    assert got[0][3, 1] == 1


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([0, 20], r"element 20 of 'table' is out of range: the shard has 20 elements"),
        ([-1, 3], r"element -1 of 'table' is out of range"),
        ([3, 3], "element numbers pushed to 'table' must ascend without repeating"),
        ([4, 3], "element numbers pushed to 'table' must ascend without repeating"),
        ([2**62, 2**63 - 1], "out of range"),
    ],
    ids=["past-the-end", "negative", "repeated", "descending", "huge"],
)
def test_elements_that_cannot_be_are_refused_whole(
    ps: Ps, numbers: list[int], message: str
) -> None:
    worker, table, w = ps.worker(), vector("table", 10, 2), vector()
    worker.define(table, w)
    worker.push(*zeros(table, w))
    worker.transport.bind(["table"], SGD(learning_rate=1.0))
    with pytest.raises(ShapeMismatchError, match=message):
        worker.push(put(w, ADD, [1, 1, 1]), elements(table, numbers, [1, 1]))
    assert worker.value(w).sum() == worker.value(table).sum() == 0
    assert not worker.push(elements(table, [19], [-1])).duplicate
    assert worker.value(table)[9, 1] == 1


@pytest.mark.parametrize("operation", [ADD, ASSIGN], ids=["add", "assign"])
def test_single_elements_are_for_gradients(ps: Ps, operation: Operation) -> None:
    worker, w, x = ps.worker(), vector("w"), vector("x")
    worker.define(w, x)
    worker.push(*zeros(w, x))
    with pytest.raises(RefusedError, match="single elements are for gradients"):
        worker.push(put(x, ADD, [1, 1, 1]), elements(w, [0], [1], operation=operation))
    assert worker.value(w).sum() == worker.value(x).sum() == 0


def test_a_repeated_push_of_elements_is_not_applied_again(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.define(w)
    worker.push(*zeros(w))
    worker.transport.bind(["w"], SGD(learning_rate=1.0))
    request = worker.request([elements(w, [2], [-1])])
    for duplicate in (False, True):
        worker.exchange(request)
        assert worker.result.duplicate is duplicate
    np.testing.assert_array_equal(worker.value(w), [0, 0, 1])


# -- exactly once ------------------------------------------------------------------------------


def test_a_repeated_push_is_answered_and_not_applied_again(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.define(w)
    worker.push(*zeros(w), step_increment=1)
    request = worker.request([put(w, ADD, [1, 2, 3])], [get(w)], step_increment=1)
    for duplicate in (False, True, True):
        [value] = worker.exchange(request, [get(w)])
        np.testing.assert_array_equal(value, [1, 2, 3])
        assert worker.result.duplicate is duplicate
        assert worker.result.global_step == 2
    counters = ps.store.counters()
    assert (counters.pushes, counters.duplicates) == (2, 2)


def test_a_push_that_would_leave_a_gap_is_refused_and_may_come_in_turn(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.define(w)
    worker.push(*zeros(w))
    with pytest.raises(SequenceError, match=r"push 3 of .* came before push 2"):
        worker.push(put(w, ADD, [1, 1, 1]), sequence=3)
    assert worker.value(w).sum() == 0
    worker.push(put(w, ADD, [1, 1, 1]), sequence=2)
    assert worker.value(w).sum() == 3


def test_each_worker_counts_its_own_pushes(ps: Ps) -> None:
    workers, w = [ps.worker(i) for i in range(3)], vector()
    workers[0].define(w)
    workers[0].push(*zeros(w))
    for _ in range(4):
        for worker in workers:
            assert not worker.push(put(w, ADD, [1, 1, 1])).duplicate
    np.testing.assert_array_equal(workers[1].value(w), 12)


def test_a_new_life_of_a_worker_counts_anew_and_fences_the_old_one(ps: Ps) -> None:
    old, w = ps.worker(0, generation=1), vector()
    old.define(w)
    old.push(*zeros(w))
    new = ps.worker(0, generation=2)
    assert not new.push(put(w, ADD, [1, 1, 1])).duplicate
    with pytest.raises(FencedError, match="superseded by generation 2"):
        old.push(put(w, ADD, [5, 5, 5]))
    np.testing.assert_array_equal(new.value(w), 1)


def test_an_old_life_cannot_open_a_session(ps: Ps) -> None:
    ps.worker(0, generation=2)
    with pytest.raises(FencedError, match="superseded by generation 2"):
        ps.worker(0, generation=1)


def test_pulls_are_not_pushes(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.define(w)
    worker.push(*zeros(w))
    for _ in range(3):
        assert not worker.result.duplicate
        worker.pull(get(w))
    counters = ps.store.counters()
    assert (counters.pushes, counters.duplicates) == (1, 0)


# -- refusals ----------------------------------------------------------------------------------


Build = Callable[[Worker, VariableDefinition, VariableDefinition], StepRequest]


def unknown_push(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    return worker.request([put(w, ADD, [1, 1, 1]), put(vector("nowhere"), ADD, [1, 1, 1])])


def unknown_pull(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    return worker.request([put(w, ADD, [1, 1, 1])], [get(vector("nowhere"))])


def unknown_part(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    other = replace(ShardDefinition(w), part=4, num_parts=5)
    return worker.request([put(x, ADD, [1, 1, 1]), Put(other, ADD, np.ones(3, F32))])


def without_rule(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    return worker.request([put(w, ADD, [1, 1, 1]), put(x, APPLY, [1, 1, 1])])


def too_short(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    request = worker.request([put(w, ADD, [1, 1, 1]), put(x, ADD, [1, 1, 1])])
    short = Piece([np.ones(2, np.float32)], F32, 8)
    return replace(request, values=[request.values[0], short])


def too_long(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    request = worker.request([put(w, ADD, [1, 1, 1]), put(x, ADD, [1, 1, 1])])
    return replace(request, values=[*request.values, request.values[0]])


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (unknown_push, UnknownVariableError, "a variable 'nowhere'"),
        (unknown_pull, UnknownVariableError, "a variable 'nowhere'"),
        (unknown_part, UnknownVariableError, "no part 4 of a variable 'w'"),
        (without_rule, RefusedError, "'x' has no update rule"),
        (too_short, ShapeMismatchError, "of 3[26]"),
        (too_long, ShapeMismatchError, "of 3[26]"),
    ],
    ids=["unknown-push", "unknown-pull", "unknown-part", "no-rule", "too-short", "too-long"],
)
def test_a_refused_step_applies_nothing_and_the_session_goes_on(
    ps: Ps, build: Build, error: type[RefusedError], message: str
) -> None:
    worker, w, x = ps.worker(), vector("w"), vector("x", dtype=np.dtype(np.float64))
    worker.define(w, x)
    worker.push(*zeros(w, x))
    for attempt in range(2):
        request = build(worker, w, x)
        worker.transport.send(request)
        with pytest.raises(error, match=message):
            worker.transport.receive([])
        assert ps.store.counters().refused == attempt + 1
        assert worker.value(w).sum() == worker.value(x).sum() == 0
    # The number of the refused push was not used up.
    assert not worker.push(put(w, ADD, [1, 1, 1])).duplicate
    np.testing.assert_array_equal(worker.value(w), 1)


def test_a_step_over_the_limit_names_both_numbers_and_is_not_sent(ps: Ps) -> None:
    limit = SETTINGS.max_step_bytes
    worker, w = ps.worker(), vector("w", limit + 1, dtype=np.dtype(np.uint8))
    small = vector("small")
    worker.define(w, small)
    worker.push(*zeros(small))
    with pytest.raises(LimitExceededError) as caught:
        worker.push(put(w, ASSIGN, np.ones(limit + 1)))
    assert str(limit + 1) in caught.value.message
    assert f"max_step_bytes={limit}" in caught.value.message
    assert caught.value.fields["limit"] == "max_step_bytes"
    assert not worker.push(put(small, ADD, [1, 1, 1])).duplicate
    np.testing.assert_array_equal(worker.value(small), 1)


# -- the global step ---------------------------------------------------------------------------


def test_the_global_step_counts_what_pushes_say_and_staleness_what_came_between(ps: Ps) -> None:
    first, second, w = ps.worker(0), ps.worker(1), vector()
    first.define(w)
    first.push(*zeros(w))
    add = put(w, ADD, [1, 1, 1])
    assert first.push(add, step_increment=1) == PushResult(1, 0, duplicate=False)
    for expected in (2, 3):
        result = second.push(add, step_increment=1, global_step=1)
        assert result == PushResult(expected, expected - 2, duplicate=False)
    assert first.push(add, step_increment=1, global_step=1) == PushResult(4, 2, duplicate=False)
    assert first.push(add, global_step=4) == PushResult(4, 0, duplicate=False)
    second.pull(get(w))
    assert second.result.global_step == 4


def test_a_step_of_nothing_asks_for_the_global_step(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.define(w)
    worker.push(*zeros(w), step_increment=5)
    worker.transport.send(StepRequest())
    assert worker.transport.receive([]).global_step == 5


def test_a_push_of_nothing_may_count_a_step(ps: Ps) -> None:
    """The ps of the global step hears of every step, also of those that touch others alone."""
    worker = ps.worker()
    worker.transport.send(StepRequest(sequence=1, step_increment=1))
    assert worker.transport.receive([]) == PushResult(1, 0, duplicate=False)
    worker.transport.send(StepRequest(sequence=1, step_increment=1))
    again = worker.transport.receive([])
    assert (again.global_step, again.duplicate) == (1, True)


# -- the end -----------------------------------------------------------------------------------


def test_after_abort_every_call_raises_its_error(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.define(w)
    worker.push(*zeros(w))
    error = PeerLostError("the job failed")
    worker.transport.abort(error)
    calls: dict[str, Callable[[], object]] = {
        "step": lambda: worker.push(put(w, ADD, [1, 1, 1])),
        "define": lambda: worker.define(w),
        "bind": lambda: worker.transport.bind(["w"], SGD()),
        "connect": lambda: worker.transport.connect(1.0),
    }
    for name, call in calls.items():
        with pytest.raises(PeerLostError) as caught:
            call()
        assert caught.value is error, name
    assert ps.worker(1).value(w).sum() == 0


def test_an_abort_between_send_and_receive_is_heard(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.define(w)
    worker.push(*zeros(w))
    error = PeerLostError("the job failed")
    worker.transport.send(worker.request([put(w, ADD, [1, 1, 1])]))
    worker.transport.abort(error)
    with pytest.raises(PeerLostError) as caught:
        worker.transport.receive([])
    assert caught.value is error


def test_receive_without_send_is_a_mistake_of_the_caller(ps: Ps) -> None:
    worker = ps.worker()
    with pytest.raises(RuntimeError, match="receive without send"):
        worker.transport.receive([])


def test_closing_twice_is_fine(ps: Ps) -> None:
    worker = ps.worker()
    worker.transport.close()
    worker.transport.close()
