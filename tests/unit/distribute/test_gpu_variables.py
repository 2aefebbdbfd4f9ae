"""Variables on one, two and three GPUs, which are played: each write and read is as on the host.

The thread that asks has the first GPU as its current one, and the variable may be on another.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.calls import Calls
from helpers.replicas import FIRST, MEAN, ON_READ, SUM, replica
from helpers.rows import row
from helpers.strict_cupy import cupy, played_gpus
from ropewalk.core.arrays.any_framework import is_on_gpu, to_host
from ropewalk.core.arrays.dtypes import FLOATS, INTEGERS
from ropewalk.distribute import MirroredStrategy, OneDeviceStrategy, PerReplica, Strategy
from ropewalk.distribute.variables.scatter import Scatter

ROWS = np.array([4, 0, 4])
VALUES = [[3, 1], [2, 5], [1, 2]]


@pytest.fixture(autouse=True)
def plain_process() -> None:
    """Here GPUs are counted."""


@pytest.fixture(params=[1, 2, 3], ids=["1 GPU", "2 GPUs", "3 GPUs"], autouse=True)
def gpus(request: pytest.FixtureRequest) -> Iterator[int]:
    """How many there are."""
    with played_gpus(request.param):
        yield request.param


@pytest.fixture(params=["mirrored", "last GPU"])
def strategy(request: pytest.FixtureRequest, gpus: int) -> Strategy:
    """A copy on each GPU, or one on the last."""
    if request.param == "mirrored":
        return MirroredStrategy()
    return OneDeviceStrategy(f"gpu:{gpus - 1}")


def made(strategy: Strategy, value: Any, **options: Any) -> Any:
    """A variable of a strategy."""
    with strategy.scope():
        return rw.Variable(value, name="v", **options)


def copies(variable: Any) -> list[Any]:
    """What each of a variable's copies has, which is on a GPU of its own."""
    parts = getattr(variable, "values", [variable])
    found = [part.read_value() for part in parts]
    if parts[1:]:
        assert [value.device.id for value in found] == list(range(len(parts)))
    return [to_host(value).tolist() for value in found]


# -- rows ------------------------------------------------------------------------------------


def test_rows_change_as_on_the_host(strategy: Strategy) -> None:
    for dtype in [*FLOATS, *INTEGERS]:
        with row(dtype):
            start = np.arange(1, 11).reshape(5, 2).astype(dtype)
            delta = rw.IndexedSlices(np.array(VALUES, dtype), ROWS)
            for kind in Scatter:
                on_host, on_gpus = rw.Variable(start), made(strategy, start, aggregation=FIRST)
                for variable in (on_host, on_gpus):
                    getattr(variable, f"scatter_{kind}")(delta)
                expected = on_host.numpy().tolist()
                assert copies(on_gpus) == [expected] * len(copies(on_gpus)), kind


@pytest.mark.parametrize("kind", [Scatter.ADD, Scatter.UPDATE, Scatter.MAX])
def test_rows_change_in_a_step(kind: Scatter, gpus: int) -> None:
    strategy = MirroredStrategy()
    v = made(strategy, np.ones((5, 2), np.float32), aggregation=FIRST)
    expected = rw.Variable(np.ones((5, 2), np.float32))
    delta = rw.IndexedSlices(np.array(VALUES, np.float32), ROWS)
    getattr(expected, f"scatter_{kind}")(delta)
    strategy.run(lambda: getattr(v, f"scatter_{kind}")(delta))
    assert copies(v) == [expected.numpy().tolist()] * gpus


# -- whole values ----------------------------------------------------------------------------


def test_a_value_is_written_in_a_step(gpus: int) -> None:
    for dtype, method in product([*FLOATS, *INTEGERS], ["assign", "assign_add", "assign_sub"]):
        with row(dtype, method):
            strategy = MirroredStrategy()
            v = made(strategy, np.full(3, 50, dtype), aggregation=SUM)

            write = getattr(v, method)
            numbers = PerReplica([dtype.type(number) for number in range(1, gpus + 1)])
            strategy.run(lambda n, v=v, write=write: write(v.read_value() * 0 + n), (numbers,))
            total = sum(range(1, gpus + 1))
            expected = {"assign": total, "assign_add": 50 + total, "assign_sub": 50 - total}[method]
            assert copies(v) == [[expected] * 3] * gpus


@pytest.mark.parametrize(
    "make",
    [
        lambda last: 2.0,
        lambda last: np.float32(2),
        lambda last: np.full(2, 2.0),
        lambda last: on(0, np.full(2, 2, np.float32)),
        lambda last: on(last, np.full(2, 2.0)),
    ],
    ids=["number", "NumPy number", "NumPy array", "of the first GPU", "of the last GPU"],
)
def test_a_copy_of_each_replica_is_written_outside_of_steps(
    make: Callable[[int], Any], gpus: int
) -> None:
    for method in ["assign", "assign_add", "assign_sub"]:
        with row(method):
            given = make(gpus - 1)
            shape = np.shape(given) if isinstance(given, float) else given.shape
            v = made(
                MirroredStrategy(),
                np.full(shape, 7, np.float32),
                synchronization=ON_READ,
                aggregation=MEAN,
            )
            getattr(v, method)(given)
            expected = {"assign": 2, "assign_add": 9, "assign_sub": 5}[method]
            assert copies(v) == [np.full(shape, expected).tolist()] * gpus


def on(gpu: int, values: Any) -> Any:
    """An array of a GPU."""
    with cupy.cuda.Device(gpu):
        return cupy.asarray(values)


def test_a_sum_of_copies_is_written_outside_of_steps(gpus: int) -> None:
    v = made(MirroredStrategy(), np.zeros(2, np.int32), synchronization=ON_READ, aggregation=SUM)
    v.assign(on(gpus - 1, np.array([7, 8], np.int32)))
    assert to_host(v.read_value()).tolist() == [7, 8]


# -- reads -----------------------------------------------------------------------------------

READS: dict[str, Callable[[Any], Any]] = {
    "sum with a number": lambda v: v + 1,
    "number minus": lambda v: 10 - v,
    "with NumPy": lambda v: v * np.full((3, 2), 2.0),
    "with itself": lambda v: v + v,
    "negated": lambda v: -v,
    "function": np.sqrt,
    "row": lambda v: v[1],
    "rows": lambda v: v[np.array([2, 0])],
    "sparse_read": lambda v: v.sparse_read([2, 0, 2]),
    "gather_nd": lambda v: v.gather_nd([[2, 1], [0, 0]]),
}


def test_a_variable_is_computed_with_outside_of_steps(strategy: Strategy) -> None:
    for read, on_read in product(READS.values(), [False, True]):
        with row(read, on_read):
            start = np.arange(6, dtype=np.float32).reshape(3, 2)
            options: Any = {"synchronization": ON_READ, "aggregation": MEAN} if on_read else {}
            found = read(made(strategy, start, **options))
            np.testing.assert_array_equal(to_host(found), read(rw.Variable(start)))


def test_variables_of_two_gpus_are_computed_with(gpus: int) -> None:
    first = made(OneDeviceStrategy("gpu:0"), np.ones(2, np.float32))
    last = made(OneDeviceStrategy(f"gpu:{gpus - 1}"), np.ones(2, np.float32))
    total: Any = last + first
    assert is_on_gpu(total)
    assert total.device.id == gpus - 1
    assert to_host(total).tolist() == [2, 2]


# -- gradients -------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [{"clipnorm": 2.0}, {"global_clipnorm": 2.0}], ids=list)
def test_gradients_are_clipped_as_on_the_host(
    clip: dict[str, Any], strategy: Strategy, calls: Calls
) -> None:
    gradients = [np.full(4, size, np.float32) for size in (3, 4, 1e-3)]

    def trained(where: Strategy) -> list[Any]:
        optimizer = rw.optimizers.SGD(1.0, **clip)
        with where.scope():
            variables = [rw.Variable(np.zeros(4, np.float32), name=f"v{i}") for i in range(3)]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return [variable.numpy() for variable in variables]

    expected = trained(OneDeviceStrategy("cpu:0"))
    waits = calls.noted(cupy.ndarray, "__float__")
    np.testing.assert_allclose(trained(strategy), expected, rtol=1e-6)
    assert len(waits) <= 1, "each makes the host wait for the GPU"


@pytest.mark.annex("ring")
@pytest.mark.parametrize("kind", ["of the host", "of a GPU", "rows"])
def test_a_gradient_that_is_not_finite_changes_nothing_in_sync(kind: str, gpus: int) -> None:
    for dtype, bad in product(FLOATS, [np.nan, np.inf]):
        with row(dtype, bad):
            check_refused(kind, dtype, bad, gpus)


def check_refused(kind: str, dtype: Any, bad: float, gpus: int) -> None:
    strategy = rw.distribute.MultiWorkerMirroredStrategy()
    try:
        names = ["good", "bad"]
        with strategy.scope():
            good, v = (rw.Variable(np.ones((3, 2), dtype), name=name) for name in names)
        optimizer = rw.optimizers.SGD(0.5)

        def step(factor: float) -> None:
            ones = np.ones((3, 2), dtype)
            given: Any = ones * dtype.type(factor if replica() == gpus - 1 else 1)
            if kind == "of a GPU":
                given = cupy.asarray(given)
            if kind == "rows":
                given = rw.IndexedSlices(given, np.arange(3), (3, 2))
            optimizer.apply_gradients([(ones, good), (given, v)])

        strategy.run(step, args=(bad,))
        assert good.numpy().tolist() == v.numpy().tolist() == [[1, 1]] * 3
        strategy.run(step, args=(1.0,))
        assert v.numpy().tolist() == [[1 - 0.5 * gpus] * 2] * 3
    finally:
        strategy.close()
