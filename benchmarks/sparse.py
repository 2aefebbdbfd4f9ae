"""A sparse step: rows of a table looked up, and the gradients of the same rows pushed.

    python -m benchmarks.step --cases sparse           # the times
    python -m benchmarks.step --cases sparse --check   # every row compared with NumPy

Ids are drawn before the clock starts, new ones for every step. A lookup counts all ids, repeated
ones too.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from benchmarks.cases import LEARNING_RATE, SparseCase
from benchmarks.running import Figure, connected, figure_of, parameter_servers
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step, Write
from ropewalk.cluster.placement import FixedShardsPartitioner
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.arrays.indexed_slices import IndexedSlices
from ropewalk.core.rules.built_in.adagrad import Adagrad
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.wire.steps import Operation
from ropewalk.engine import rows

TABLE = "table"
RULE = Adagrad(learning_rate=LEARNING_RATE["adagrad"])
_WARM_UP_S = 1.0  # a ps loads the kernels of rows when they are first asked for
_WARM_UP_STEPS = 3
_MIN_STEPS = 5


@contextmanager
def opened(case: SparseCase, transport: str) -> Iterator[ParameterSession]:
    """A session with the case's table, all ones, cut over the ps."""
    rows.prepare()
    with parameter_servers(case.ps) as addresses, connected(addresses, transport) as session:
        define(session, case)
        yield session


def define(session: ParameterSession, case: SparseCase) -> None:
    """Create the case's table, all ones, cut over the ps of the session."""
    definition = VariableDefinition(TABLE, (case.rows, case.width), np.dtype(np.float32))
    session.define(
        [definition],
        {TABLE: np.ones(definition.shape, np.float32)},
        create=True,
        partitioner=FixedShardsPartitioner(len(session.peers)),
    )
    session.bind([TABLE], RULE)


def push(session: ParameterSession, ids: Array, gradient: Array) -> None:
    """Push a gradient of the rows ``ids``."""
    slices = IndexedSlices(gradient, ids)
    session.step(Step([Write(Operation.APPLY, {TABLE: slices})], (), increment=1))


def times(case: SparseCase, transport: str, budget_s: float) -> dict[str, Figure]:
    """The step, the lookup alone and the push alone, over one transport."""
    rng = np.random.default_rng(1)
    gradient = rng.standard_normal((case.ids, case.width), np.float32)

    with opened(case, transport) as session:

        def both(ids: Array) -> None:
            session.rows.lookup(TABLE, ids)
            push(session, ids, gradient)

        parts: dict[str, Callable[[Array], object]] = {
            case.id: both,
            f"{case.id}-pull": lambda ids: session.rows.lookup(TABLE, ids),
            f"{case.id}-push": lambda ids: push(session, ids, gradient),
        }
        _timed(case, rng, both, _WARM_UP_S)
        return {name: figure_of(_timed(case, rng, part, budget_s)) for name, part in parts.items()}


def _timed(
    case: SparseCase, rng: np.random.Generator, part: Callable[[Array], object], budget_s: float
) -> list[float]:
    found: list[float] = []
    until = time.perf_counter() + budget_s
    while len(found) < _WARM_UP_STEPS + _MIN_STEPS or time.perf_counter() < until:
        ids = rng.integers(0, case.rows, case.ids)
        began = time.perf_counter()
        part(ids)
        found.append((time.perf_counter() - began) * 1000)
    return found[_WARM_UP_STEPS:]


def check(case: SparseCase, transport: str, steps: int = 5) -> int:
    """Compare every row that is looked up, and in the end the whole table, with NumPy: to 1e-5.

    Returns:
        How many arrays were compared.
    """
    rng = np.random.default_rng(2)
    table = np.ones((case.rows, case.width))
    accumulator = np.full(table.shape, RULE.initial_accumulator_value)
    with opened(case, transport) as session:
        for step in range(steps):
            # The same rows are looked up again after the push that changed them.
            ids = rng.integers(0, case.rows >> (3 * (step % 2)), case.ids)
            gradient = rng.standard_normal((case.ids, case.width), np.float32)
            before = session.rows.lookup(TABLE, ids)
            np.testing.assert_allclose(before, table[ids], rtol=0, atol=1e-5)
            push(session, ids, gradient)
            touched, inverse = np.unique(ids, return_inverse=True)
            total = np.zeros((touched.size, case.width))
            np.add.at(total, inverse, gradient)
            accumulator[touched] += total**2
            scale = np.sqrt(accumulator[touched] + RULE.epsilon)
            table[touched] -= LEARNING_RATE["adagrad"] * total / scale
            np.testing.assert_allclose(
                session.rows.lookup(TABLE, ids), table[ids], rtol=0, atol=1e-5
            )
        whole = session.step(Step(reads=[TABLE])).values[TABLE]
        np.testing.assert_allclose(whole, table, rtol=0, atol=1e-5)
    return 2 * steps + 1
