"""What a step assigns travels with its push: in order, once, and the step is counted."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.core.arrays.dtypes import BFLOAT16
from ropewalk.core.errors import ShapeMismatchError
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.distribute import ParameterServerStrategy, partitioners
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.distribute.runtime import ClusterRuntime, local_runtime
from ropewalk.distribute.strategies.parameter_server import ParameterServerExtended
from ropewalk.server.ps.store import Store

SGD = rw.optimizers.SGD
LARGE = 2 * 1024 * 1024  # float32 elements: more than waits for the end of a step


def make(
    *values: Any, ps: int = 1, prefetch: bool = False
) -> tuple[ParameterServerStrategy, list[rw.Variable]]:
    alone = ParameterServerStrategy().extended
    assert isinstance(alone, ParameterServerExtended)
    runtime: ClusterRuntime = local_runtime(alone.runtime.task, num_ps=ps)
    cut = partitioners.FixedShardsPartitioner(ps) if ps > 1 else None
    strategy = ParameterServerStrategy(variable_partitioner=cut, runtime=runtime, prefetch=prefetch)
    with strategy.scope():
        return strategy, [rw.Variable(value, name="abcdefgh"[i]) for i, value in enumerate(values)]


def pushes(strategy: ParameterServerStrategy) -> int:
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    return extended.runtime.progress.pushes


def from_another_thread(read: Callable[[], Any]) -> Any:
    """What somebody else sees: not part of the step."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(read()))
    thread.start()
    thread.join(60)
    return found[0]


@pytest.mark.parametrize("ps", [1, 3], ids=["one-ps", "three-ps"])
def test_a_step_that_only_assigns_is_one_push_and_counts(ps: int) -> None:
    strategy, variables = make(*([np.zeros(4, np.float32)] * 8), ps=ps)

    def step() -> None:
        for variable in variables[:7]:
            variable.assign(variable.read_value() + 1)
        variables[7].assign_add(np.ones(4, np.float32))

    while strategy.global_step < 5:
        strategy.run(step)
    assert pushes(strategy) == 5
    assert all((variable.numpy() == 5).all() for variable in variables)


def test_a_step_sees_what_it_assigned_and_the_caller_may_reuse_the_array() -> None:
    strategy, [a] = make(np.zeros(2, np.float32))
    mine = np.ones(2, np.float32)

    def step() -> list[float]:
        a.assign(mine)
        mine[:] = 9
        seen = [float(a[0])]
        a.assign(mine)
        return [*seen, float(a[0])]

    assert strategy.run(step) == [1, 9]
    assert a.numpy().tolist() == [9, 9]
    assert pushes(strategy) == 1


def test_a_read_after_an_addition_has_everybodys() -> None:
    strategy, [a, b] = make(0, 0)

    def step() -> list[int]:
        seen = [int(a)]
        a.assign_add(1)
        b.assign_add(2)
        from_another_thread(lambda: a.assign_add(10))  # as another worker would
        return [*seen, int(a), int(b)]

    assert strategy.run(step) == [0, 11, 2]
    assert (strategy.global_step, pushes(strategy)) == (1, 1), "one round trip, nothing is left"


def test_writes_of_one_variable_keep_their_order() -> None:
    strategy, [a] = make(np.zeros((3, 2), np.float32))
    ones = np.ones((1, 2), np.float32)

    def step() -> None:
        a.assign(np.full((3, 2), 2, np.float32))
        a.assign_add(np.ones((3, 2), np.float32))
        a.scatter_update(rw.IndexedSlices(ones, np.array([1])))
        a.scatter_add(rw.IndexedSlices(ones * 4, np.array([2])))

    strategy.run(step)
    assert a.numpy().tolist() == [[3, 3], [1, 1], [7, 7]]
    assert pushes(strategy) == 1


def test_rows_that_a_step_has_written_are_found_by_its_lookup() -> None:
    strategy, [a] = make(np.zeros((3, 2), np.float32))

    def step() -> Any:
        a.scatter_add(rw.IndexedSlices(np.ones((1, 2), np.float32), np.array([1])))
        return a.sparse_read([1, 0])

    assert strategy.run(step).tolist() == [[1, 1], [0, 0]]


def test_large_assignments_are_not_collected_and_keep_their_order() -> None:
    strategy, [a, b] = make(np.zeros(LARGE, np.float32), 0.0)

    def step() -> tuple[float, float]:
        b.assign(1.0)
        a.assign(np.ones(LARGE, np.float32))
        return float(from_another_thread(b.numpy)), float(a[-1])

    assert strategy.run(step) == (1, 1)
    assert (strategy.global_step, pushes(strategy)) == (1, 1)


def test_a_step_that_fails_leaves_nothing_of_what_it_collected() -> None:
    strategy, [a] = make([1.0])

    def broken() -> None:
        a.assign([5.0])
        raise KeyError("mine")

    with pytest.raises(KeyError):
        strategy.run(broken)
    assert a[0] == 1
    strategy.run(lambda: a.assign_add([1.0]))
    assert (a[0], strategy.global_step) == (2, 1)


def test_a_refused_gradient_does_not_take_the_writes_with_it() -> None:
    strategy, [a, b] = make([1.0], 0)

    def step() -> None:
        SGD(1.0).apply_gradients([([np.nan], a)])
        b.assign_add(1)

    strategy.run(step)
    assert (a[0], int(b), strategy.global_step) == (1, 1, 1)


def test_wrong_shapes_are_refused_where_they_are_written() -> None:
    strategy, [a] = make(np.zeros((3, 2), np.float32))

    def step() -> None:
        with pytest.raises(ShapeMismatchError, match=r"assign of 'a'.*\(3,\).*\(3, 2\)"):
            a.assign(np.zeros(3, np.float32))
        with pytest.raises(ShapeMismatchError, match=r"row 3 of 'a' is out of range"):
            a.scatter_add(rw.IndexedSlices(np.zeros((1, 2), np.float32), np.array([3])))

    strategy.run(step)
    assert strategy.global_step == 0


def test_outside_of_run_an_assignment_is_there_on_return_whatever_else_runs() -> None:
    strategy, [a, b] = make(0, 0)
    a.assign(3)
    assert from_another_thread(lambda: int(a)) == 3
    assert strategy.global_step == 0, "nothing of it is a step"

    def step() -> int:
        b.assign_add(1)
        from_another_thread(lambda: a.assign(4))
        return pushes(strategy)

    assert strategy.run(step) == 0
    assert (int(a), int(b)) == (4, 1)


def test_with_prefetch_a_step_begins_with_what_the_last_one_assigned() -> None:
    strategy, [a, b] = make([0.0], [0.0], prefetch=True)
    optimizer = SGD(1.0)

    def step() -> None:
        a.assign(a.read_value() + 1)
        optimizer.apply_gradients([([-1.0], b)])

    for _ in range(5):
        strategy.run(step)
    assert (a[0], b[0]) == (5, 5)


def test_additions_of_several_workers_are_exact() -> None:
    task = TaskId("ps", 0)
    store = Store(task, Settings())
    alone = ParameterServerStrategy().extended
    assert isinstance(alone, ParameterServerExtended)

    def work(index: int) -> None:
        who = Incarnation(TaskId("worker", index), 1)
        session = ParameterSession([LocalPs(task, who, Settings(), store)], who, Settings())
        runtime = ClusterRuntime(alone.runtime.task, Settings(), session)
        strategy = ParameterServerStrategy(runtime=runtime)
        with strategy.scope():
            count = rw.Variable(0, name="count")

        def step() -> None:
            count.assign_add(1)
            count.assign_add(2)

        for _ in range(100):
            strategy.run(step)

    work(0)  # creates it
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, [1, 2, 3]))
    assert store.global_step == 400
    assert int(store.table.blocks()[0].value[0]) == 1200


@pytest.mark.parametrize("ps", [1, 2], ids=["one-ps", "two-ps"])
@pytest.mark.parametrize("seed", range(12))
def test_any_mix_of_writes_gives_what_the_program_says_line_by_line(seed: int, ps: int) -> None:
    start = {"a": np.zeros((4, 2), np.float32), "b": np.ones(3, np.float32), "c": np.float32(2)}
    strategy, variables = make(*start.values(), ps=ps)
    expected = {name: np.array(value) for name, value in start.items()}
    rng, optimizer = np.random.default_rng(seed), SGD(1.0)

    def step() -> None:
        for choice in rng.integers(0, 6, 12):
            variable = variables[rng.integers(0, 3)]
            own = expected[variable.name]
            given = np.asarray(rng.integers(-9, 9, own.shape), np.float32)
            if choice <= 1:
                variable.assign(given)
                own[...] = given
                given[...] = 77  # the caller's own again
            elif choice == 2:
                variable.assign_add(given)
                own += given
            elif choice == 3 and own.ndim:
                variable.scatter_update(rw.IndexedSlices(given[1:2], np.array([1])))
                own[1] = given[1]
            elif choice == 4:
                optimizer.apply_gradients([(given, variable)])
                own -= given
                # A step does not see what its gradients do: it would read the value before.
                variable.assign(own)
            else:
                np.testing.assert_array_equal(variable.read_value(), own)

    for number in range(5):
        strategy.run(step)
        assert strategy.global_step == number + 1
        for variable in variables:
            np.testing.assert_array_equal(variable.numpy(), expected[variable.name])


@pytest.mark.parametrize(
    "value",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2],
        np.arange(4, dtype=BFLOAT16),
        np.array([True, False]),
        np.array(3, np.int64),
        np.zeros((0, 2), np.float64),
    ],
    ids=["transposed", "strided", "bfloat16", "bool", "scalar", "empty"],
)
def test_an_array_of_any_layout_and_dtype_is_assigned_in_a_step(value: Any) -> None:
    strategy, [a] = make(np.zeros_like(value))

    def step() -> Any:
        a.assign(value)
        return a.read_value()

    seen = strategy.run(step)
    np.testing.assert_array_equal(seen, value)
    assert (seen.dtype, seen.flags.writeable) == (value.dtype, False)
    np.testing.assert_array_equal(a.numpy(), value)
    assert pushes(strategy) == 1


def test_a_variable_made_in_a_step_is_assigned_in_it() -> None:
    strategy, [a] = make(np.zeros(2, np.float32))
    made: list[rw.Variable] = []

    def step() -> None:
        if not made:
            made.append(rw.Variable(np.zeros(3, np.float32), name="late"))
        made[0].assign(np.ones(3, np.float32))
        a.assign(np.ones(2, np.float32))

    strategy.run(step)
    assert (made[0].numpy() == 1).all()
    assert (a.numpy() == 1).all()


def test_another_thread_that_reads_in_a_step_loses_none_of_its_assignments() -> None:
    strategy, variables = make(*([np.zeros(1, np.float32)] * 8))
    values = [np.full(1, number, np.float32) for number in range(1, 201)]

    def step() -> None:
        variables[0].assign_add(values[0])
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(lambda: [variables[0].numpy() for _ in range(20)])
            done = False
            while not done:
                done = reading.done()
                variables[0].assign_add(values[0])  # read next, and so sent with the others
                for variable in variables[1:]:
                    for value in values:
                        variable.assign(value)
                        assert variable.read_value() == value
            reading.result()

    strategy.run(step)
    assert [float(variable.numpy()[0]) for variable in variables[1:]] == [200] * 7
