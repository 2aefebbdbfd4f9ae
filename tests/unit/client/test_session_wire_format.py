"""What a session leaves out on the way to ps that are far, and what error feedback makes good."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Exchange, Step, Write, answered
from ropewalk.cluster.placement import FixedShardsPartitioner
from ropewalk.core.arrays.dtypes import BFLOAT16, Array, DType
from ropewalk.core.arrays.indexed_slices import IndexedSlices
from ropewalk.core.errors import RefusedError, ShapeMismatchError
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import (
    NO_TARGET,
    Encoding,
    Operation,
    PullTarget,
    StepRequest,
    WireFormat,
)
from ropewalk.distribute.local_ps import LocalPs

F16, F32, F64 = (np.dtype(kind) for kind in (np.float16, np.float32, np.float64))
APPLY, ADD = Operation.APPLY, Operation.ASSIGN_ADD
SIZE = 4000


class FarTransport(LocalPs):
    """A ps that could be on another machine; remembers what came, and fails when told to."""

    fails: RefusedError | None = None
    shares_memory = False
    requests: list[StepRequest]

    def step(self, request: StepRequest, target: PullTarget = NO_TARGET) -> Exchange:
        self.requests.append(request)
        exchange = super().step(request, target)
        for _ in range(2):
            next(exchange)
            yield
        if self.fails is not None:
            raise self.fails
        return answered(exchange)


def far(session: ParameterSession, ps: int = 0) -> FarTransport:
    transport = session.peers[ps]
    assert isinstance(transport, FarTransport)
    return transport


def make(wire_format: WireFormat, ps: int = 1, near: Sequence[int] = ()) -> ParameterSession:
    who, settings = Incarnation(TaskId("worker", 0), 1), Settings()
    transports = [FarTransport(TaskId("ps", i), who, settings) for i in range(ps)]
    for i, transport in enumerate(transports):
        transport.requests = []
        transport.shares_memory = i in near
    session = ParameterSession(transports, who, settings)
    session.wire_format = wire_format
    return session


def create(
    session: ParameterSession, parts: int = 1, dtype: DType = F32, **shapes: tuple[int, ...]
) -> None:
    session.define(
        [VariableDefinition(name, shape, dtype) for name, shape in shapes.items()],
        {name: np.zeros(shape, dtype) for name, shape in shapes.items()},
        create=True,
        partitioner=FixedShardsPartitioner(parts),
    )
    session.bind(list(shapes), SGD(learning_rate=1.0))


def value(session: ParameterSession, name: str = "w") -> Array:
    return session.step(Step(reads=[name])).values[name]


def random(size: int = SIZE, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def test_gradients_travel_narrow_and_what_is_assigned_does_not() -> None:
    session = make(WireFormat(gradients="bfloat16"))
    create(session, w=(SIZE,))
    gradient = random()
    session.step(Step([Write(APPLY, {"w": gradient})]))
    np.testing.assert_array_equal(value(session), -gradient.astype(BFLOAT16).astype(F32))
    session.step(Step([Write(Operation.ASSIGN, {"w": gradient})]))
    np.testing.assert_array_equal(value(session), gradient)
    assert far(session).requests[-2].value_bytes == gradient.nbytes


def test_narrow_values_keep_their_variables_dtype() -> None:
    session = make(WireFormat(values="float16"))
    create(session, w=(SIZE,), dtype=F64)
    session.step(Step([Write(Operation.ASSIGN, {"w": random().astype(F64)})]))
    pulled = value(session)
    assert pulled.dtype == F64
    np.testing.assert_array_equal(pulled, random().astype(F64).astype(F16))
    with pytest.raises(ValueError, match="read-only"):
        pulled[0] = 1


def test_bytes_are_counted_as_they_travel() -> None:
    session = make(WireFormat(gradients="float16", values="bfloat16"))
    create(session, w=(SIZE,))
    pushed, pulled = session.counters.pushed, session.counters.pulled
    session.step(Step([Write(APPLY, {"w": random()})], ["w"]))
    assert (session.counters.pushed - pushed, session.counters.pulled - pulled) == (8000, 8000)


def test_memory_that_is_shared_carries_everything_as_it_is() -> None:
    session = make(WireFormat("bfloat16", "bfloat16", 0.01), near=[0])
    create(session, w=(SIZE,))
    gradient = random()
    session.step(Step([Write(APPLY, {"w": gradient})]))
    np.testing.assert_array_equal(value(session), -gradient)


def test_another_wire_format_holds_from_the_next_step_on() -> None:
    session = make(WireFormat())
    create(session, w=(SIZE,))
    gradient, total = random(), np.zeros(SIZE, np.float32)
    for name, wire in (("float16", F16), (None, F32), ("bfloat16", BFLOAT16)):
        session.wire_format = WireFormat(gradients=name, values=name)
        session.step(Step([Write(APPLY, {"w": gradient})]))
        total -= gradient.astype(wire).astype(F32)
        np.testing.assert_array_equal(value(session), total.astype(wire))


@pytest.mark.parametrize("parts", [1, 3], ids=["whole", "3-parts"])
@pytest.mark.parametrize("wire", [None, "bfloat16"], ids=["as-it-is", "bfloat16"])
def test_only_the_largest_elements_travel_and_over_time_all_arrive(
    parts: int, wire: str | None
) -> None:
    """Whole numbers below 2**24: their sums are exact in float32, whatever the order."""
    session = make(WireFormat(gradients=wire, top_k=0.05), ps=parts)
    create(session, parts=parts, w=(SIZE,))
    total = np.zeros(SIZE)
    rng = np.random.default_rng(0)
    for _ in range(20):
        gradient = rng.integers(-100, 100, SIZE).astype(np.float32)
        total += gradient
        session.step(Step([Write(APPLY, {"w": gradient})]))
    last = [far(session, ps).requests[-1] for ps in range(parts)]
    assert all(r.push is not None for r in last)
    assert {r.push.entries[0].encoding for r in last if r.push} == {Encoding.ELEMENTS}
    assert sum(numbers.size for r in last for numbers in r.push_rows) == SIZE // 20
    feedback = session._feedback
    assert feedback is not None
    np.testing.assert_array_equal(-value(session) + feedback._rest["w"], total)


# -- steps that fail ---------------------------------------------------------------------------


def rest(session: ParameterSession) -> dict[str, Array]:
    assert session._feedback is not None
    return {name: array.copy() for name, array in session._feedback._rest.items()}


def refuse(session: ParameterSession) -> None:
    far(session).fails = RefusedError("no")
    with pytest.raises(RefusedError, match="no"):
        session.step(Step([Write(APPLY, {"w": random(seed=1)})]))
    far(session).fails = None


def do_not_fit(session: ParameterSession) -> None:
    rows = IndexedSlices(np.ones((1, 2), np.float32), np.array([99]))
    with pytest.raises(ShapeMismatchError, match="row 99"):
        session.step(Step([Write(APPLY, {"w": random(seed=1), "table": rows})]))


@pytest.mark.parametrize("fail", [refuse, do_not_fit])
def test_of_a_push_that_failed_nothing_counts_as_sent(
    fail: Callable[[ParameterSession], None],
) -> None:
    session = make(WireFormat(top_k=0.1))
    create(session, w=(SIZE,), table=(10, 2))
    session.step(Step([Write(APPLY, {"w": random()})]))
    before, held = rest(session), value(session)
    fail(session)
    session.step(Step(reads=["table"]))
    assert rest(session).keys() == before.keys()
    np.testing.assert_array_equal(rest(session)["w"], before["w"])
    np.testing.assert_array_equal(value(session), held)


@pytest.mark.parametrize("refusing", [0, 1, 2], ids=["first", "second", "third"])
def test_what_some_ps_took_of_a_push_that_others_refused_is_not_sent_again(refusing: int) -> None:
    """Whole numbers: their sums are exact. What was refused is gone, as without top-k."""
    session = make(WireFormat(top_k=0.1), ps=3)
    create(session, parts=3, w=(SIZE,))
    rng = np.random.default_rng(0)
    first, second = (rng.integers(-100, 100, SIZE).astype(np.float32) for _ in range(2))
    far(session, refusing).fails = RefusedError("no")
    with pytest.raises(RefusedError, match="no"):
        session.step(Step([Write(APPLY, {"w": first})]))
    far(session, refusing).fails = None
    session.step(Step([Write(APPLY, {"w": second})]))
    [shard] = [shard for ps, shard in session.variables.shards("w") if ps == refusing]
    wanted = first + second
    mine = slice(shard.row_offset, shard.row_offset + shard.rows)
    wanted[mine] = second[mine]
    np.testing.assert_array_equal(-value(session) + rest(session)["w"], wanted)


def test_a_step_under_way_counts_as_sent_when_it_has_arrived() -> None:
    session = make(WireFormat(top_k=0.1))
    create(session, w=(SIZE,))
    pending = session.begin(Step([Write(APPLY, {"w": random()})]))
    assert rest(session) == {}
    pending.result()
    np.testing.assert_array_equal(-value(session) + rest(session)["w"], random())
