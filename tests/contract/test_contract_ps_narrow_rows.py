"""Rows that travel narrower than they are: over every connection, and what a ps refuses of them."""

from collections.abc import Iterator

import numpy as np
import pytest

from helpers.ps_faults import DIRECTIONS
from helpers.ps_peers import CONNECTIONS, Ps, Put, Worker, faults_on, get, open_session, vector
from helpers.tables import DIM, EXTREMES, gradients, table
from ropewalk.client.ps.step import Step, Write
from ropewalk.core.arrays.dtypes import BFLOAT16, Array, DType, narrow
from ropewalk.core.arrays.indexed_slices import IndexedSlices
from ropewalk.core.arrays.scaled_rows import INT8, pack_rows, unpack_rows
from ropewalk.core.errors import NonFiniteGradientError, RefusedError
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.wire.steps import Operation

F16, F32 = np.dtype(np.float16), np.dtype(np.float32)
WIRES = pytest.mark.parametrize("wire", [F16, BFLOAT16, INT8], ids=lambda dtype: dtype.name)
VECTOR = vector("d", 6)
SHARD = ShardDefinition(VECTOR)
RULE = SGD(learning_rate=1.0)
DENSE = VariableDefinition("d", (50, DIM), F32, Initializer("zeros"))


@pytest.fixture
def ps() -> Iterator[Ps]:
    made = Ps("tcp")
    yield made
    made.close()


def expected(rows: Array, wire: DType) -> Array:
    """Rows as they arrive."""
    return unpack_rows(pack_rows(rows), F32) if wire == INT8 else narrow(rows, wire).astype(F32)


@pytest.mark.annex("embedding")
@WIRES
@pytest.mark.parametrize("kind", CONNECTIONS)
def test_rows_are_narrow_on_the_way_alone(kind: str, wire: DType) -> None:
    servers = [Ps(kind, index) for index in range(2)]
    narrow_rows, plain = (open_session(*servers, index=index) for index in range(2))
    for session, first in ((narrow_rows, True), (plain, False)):
        session.define([table(rule=RULE), DENSE], {}, create=first)
    narrow_rows.bind(["d"], RULE)
    for name in ("t", "d"):
        narrow_rows.set_row_dtype(name, wire)
    rows = np.arange(EXTREMES.size)
    near = narrow_rows.peers[0].shares_memory
    for name, ids in (("t", EXTREMES), ("d", rows)):
        for _ in range(2):
            exact = plain.rows.lookup(name, ids)
            wanted = exact if near else expected(exact, wire)
            np.testing.assert_array_equal(narrow_rows.rows.lookup(name, ids), wanted)
            gradient = np.random.default_rng(0).standard_normal((ids.size, DIM), np.float32)
            sums = IndexedSlices(gradient, ids)
            narrow_rows.step(Step([Write(Operation.APPLY, {name: sums})]))
            moved = exact - plain.rows.lookup(name, ids)
            off = np.abs(moved - gradient)
            step = np.abs(gradient).max(axis=1, keepdims=True) / (127 if wire == INT8 else 100)
            assert (off <= (1e-6 if near else step)).all()
            assert near or off.max() > 1e-6
    for session in (narrow_rows, plain):
        session.close()
    for each in servers:
        each.close()


@pytest.mark.annex("embedding")
@pytest.mark.skipif("shm" not in CONNECTIONS, reason="memory cannot be shared here")
@WIRES
def test_rows_become_narrow_when_memory_is_shared_no_more(wire: DType) -> None:
    """A share that a ps of another machine leads now, or a segment that finds no room."""
    ps = Ps("shm")
    faults = faults_on("shm")
    session = open_session(ps, faults=faults)
    session.define([table()], {}, create=True)
    session.set_row_dtype("t", wire)
    exact = session.rows.lookup("t", EXTREMES)
    faults.files = "refuse"
    session.peers[0].connect(5)
    assert not session.peers[0].shares_memory
    np.testing.assert_array_equal(session.rows.lookup("t", EXTREMES), expected(exact, wire))
    faults.files = "pass"
    session.peers[0].connect(5)
    np.testing.assert_array_equal(session.rows.lookup("t", EXTREMES), exact)
    session.close()
    ps.close()


@pytest.mark.annex("embedding")
@WIRES
def test_a_push_that_is_repeated_is_the_same_and_applied_once(wire: DType) -> None:
    def train(cut: bool) -> Array:
        ps, faults = Ps("tcp"), faults_on("tcp")
        session = open_session(ps, faults=faults)
        session.define([table()], {}, create=True)
        session.set_row_dtype("t", wire)
        rng = np.random.default_rng(1)
        for number in range(8):
            if cut:
                faults.stream.cut(10 + 20 * number, DIRECTIONS[number % 2])
            values = rng.standard_normal((EXTREMES.size, DIM), np.float32)
            session.step(Step(gradients(t=(EXTREMES, values))))
        assert ps.store.counters().pushes == 8
        found = session.rows.lookup("t", EXTREMES)
        session.close()
        ps.close()
        return found

    np.testing.assert_array_equal(train(cut=True), train(cut=False))


def test_gradients_arrive_in_the_mean(ps: Ps) -> None:
    session = open_session(ps)
    session.define([DENSE], {}, create=True)
    session.bind(["d"], RULE)
    session.set_row_dtype("d", INT8)
    gradient = np.array([[1.0, 0.001, -0.002, 0.0]], np.float32)  # a step is 1/127
    for _ in range(400):
        session.step(Step([Write(Operation.APPLY, {"d": IndexedSlices(gradient, np.array([3]))})]))
    session.set_row_dtype("d", F32)
    moved = -session.rows.lookup("d", np.array([3]))[0] / 400
    np.testing.assert_allclose(moved, gradient[0], atol=4 * 0.5 / 127 / 20)
    assert (moved[1:3] != 0).all()  # by rounding to nearest nothing would have arrived
    session.close()


@pytest.mark.annex("embedding")
def test_nothing_that_is_no_number_is_sent(ps: Ps) -> None:
    session = open_session(ps)
    session.define([table()], {}, create=True)
    session.set_row_dtype("t", INT8)
    with pytest.raises(NonFiniteGradientError, match="'t' has NaN or infinity"):
        session.step(Step(gradients(t=(EXTREMES[:1], np.full((1, DIM), np.nan, np.float32)))))
    assert ps.store.counters().pushes == 0
    session.step(Step(gradients(t=(EXTREMES[:1], np.ones((1, DIM), np.float32)))))
    session.close()


# -- what a ps refuses ---------------------------------------------------------------------------


@pytest.fixture
def worker(ps: Ps) -> Worker:
    worker = ps.worker()
    worker.create(VECTOR)
    worker.peer.bind(["d"], RULE)
    return worker


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_a_scale_that_is_no_number_to_multiply_by_is_refused(worker: Worker, scale: float) -> None:
    packed = pack_rows(np.ones((2, 1), np.float32))
    packed[1, :4] = np.array([scale], np.float32).view(np.uint8)
    before = worker.value(VECTOR).copy()
    put = Put(SHARD, Operation.APPLY, packed, np.array([0, 2]), INT8)
    with pytest.raises(RefusedError, match="came with a scale of"):
        worker.push(put)
    np.testing.assert_array_equal(worker.value(VECTOR), before)
    good = Put(SHARD, Operation.APPLY, pack_rows(np.ones((1, 1), np.float32)),
               np.array([0]), INT8)  # fmt: skip
    worker.push(good)
    assert worker.value(VECTOR)[0] == before[0] - 1


@pytest.mark.parametrize("bytes_per_row", [1, 4, 6])
def test_rows_of_another_length_are_refused(worker: Worker, bytes_per_row: int) -> None:
    values = np.zeros((2, bytes_per_row), np.uint8)
    put = Put(SHARD, Operation.APPLY, values, np.array([0, 2]), INT8)
    with pytest.raises(RefusedError, match=f"sent {16 + 2 * bytes_per_row} bytes for a push of 26"):
        worker.push(put)


@pytest.mark.parametrize(
    ("operation", "rows"),
    [(Operation.APPLY, None), (Operation.ASSIGN, np.array([0]))],
    ids=["dense", "assign"],
)
def test_what_is_no_gradient_of_rows_does_not_travel_so(
    worker: Worker, operation: Operation, rows: Array | None
) -> None:
    put = Put(SHARD, operation, np.zeros(6, np.int8), rows, INT8)
    with pytest.raises(RefusedError, match="is float32 and cannot travel as int8"):
        worker.push(put)
    assert worker.pull(get(VECTOR)) is not None
