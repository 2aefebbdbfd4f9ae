"""One variable, several replicas: CentralStorageStrategy, and a worker of parameter servers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.replicas import FIRST, MEAN, NONE, SUM, replica
from ropewalk.distribute import (
    AggregatingVariable,
    CentralStorageStrategy,
    Mirrored,
    ParameterServerStrategy,
    PerReplica,
    Strategy,
)
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.distribute.strategies.parameter_server import ParameterServerExtended
from ropewalk.distribute.variables.local import LocalVariable

Aggregation = rw.VariableAggregation
Make = Callable[[int], Strategy]


@pytest.fixture(params=["central", "ps"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a strategy of so many replicas whose variables are one value each."""

    def create(replicas: int) -> Strategy:
        rw.config.set_logical_cpu_devices(replicas)
        central = request.param == "central"
        return CentralStorageStrategy() if central else ParameterServerStrategy()

    return create


def variable(strategy: Strategy, aggregation: Aggregation, value: Any = (10.0, 20.0)) -> Any:
    with strategy.scope():
        return rw.Variable(value, name="v", aggregation=aggregation)


def rows(number: float, *indices: int) -> rw.IndexedSlices:
    return rw.IndexedSlices(np.full(len(indices), number, np.float32), np.array(indices))


# -- replica context -----------------------------------------------------------------------------

WRITES = {
    ("assign", SUM): [6, 6],
    ("assign", MEAN): [2, 2],
    ("assign", FIRST): [1, 1],
    ("assign_add", SUM): [16, 26],
    ("assign_add", MEAN): [12, 22],
    ("assign_add", FIRST): [11, 21],
    ("assign_sub", SUM): [4, 14],
    ("assign_sub", MEAN): [8, 18],
    ("assign_sub", FIRST): [9, 19],
}


@pytest.mark.parametrize(
    ("method", "aggregation"), WRITES, ids=[f"{method}-{a.name}" for method, a in WRITES]
)
def test_writes_of_three_replicas_become_one(
    make: Make, method: str, aggregation: Aggregation
) -> None:
    strategy = make(3)
    v = variable(strategy, aggregation)
    given = [np.full(2, i + 1, np.float32) for i in range(3)]
    strategy.run(lambda: getattr(v, method)(given[replica()]))
    np.testing.assert_array_equal(v.read_value(), WRITES[method, aggregation])


SCATTERS = {
    ("scatter_add", SUM): [13, 23],
    ("scatter_add", MEAN): [11.5, 21.5],
    ("scatter_add", FIRST): [11, 20],
    ("scatter_sub", SUM): [7, 17],
    ("scatter_update", FIRST): [1, 20],
}


@pytest.mark.parametrize(
    ("method", "aggregation"), SCATTERS, ids=[f"{method}-{a.name}" for method, a in SCATTERS]
)
def test_rows_of_two_replicas_are_put_together(
    make: Make, method: str, aggregation: Aggregation
) -> None:
    """Replica 0 writes 1 to row 0, replica 1 writes 2 to row 0 and 3 to row 1."""
    strategy = make(2)
    v = variable(strategy, aggregation)
    second = rw.IndexedSlices(np.array([2, 3], np.float32), np.array([0, 1]))
    given = [rows(1, 0), second]
    strategy.run(lambda: getattr(v, method)(given[replica()]))
    np.testing.assert_array_equal(v.read_value(), SCATTERS[method, aggregation])


@pytest.mark.parametrize("kind", ["min", "max", "update"])
@pytest.mark.parametrize("aggregation", [SUM, MEAN], ids=lambda a: a.name)
def test_rows_that_do_not_add_up_are_not_implemented(
    make: Make, aggregation: Aggregation, kind: str
) -> None:
    strategy = make(2)
    v = variable(strategy, aggregation)
    with pytest.raises(NotImplementedError, match=f"scatter_{kind} of 'v'.*ONLY_FIRST_REPLICA"):
        strategy.run(lambda: getattr(v, f"scatter_{kind}")(rows(1, 0)))
    np.testing.assert_array_equal(v.read_value(), [10, 20])


@pytest.mark.parametrize("kind", ["mul", "div", "min", "max"])
@pytest.mark.parametrize("central", [CentralStorageStrategy, ParameterServerStrategy])
def test_one_copy_offers_every_scatter(central: Callable[[], Strategy], kind: str) -> None:
    rw.config.set_logical_cpu_devices(2)
    strategy = central()
    v = variable(strategy, FIRST)
    strategy.run(lambda: getattr(v, f"scatter_{kind}")(rows(4, 1)))
    expected = {"mul": 80, "div": 5, "min": 4, "max": 20}[kind]
    np.testing.assert_array_equal(v.read_value(), [10, expected])


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub", "scatter_add"])
def test_without_an_aggregation_several_replicas_may_not_write(make: Make, method: str) -> None:
    strategy = make(2)
    v = variable(strategy, NONE)
    value = rows(1, 0) if method == "scatter_add" else [1, 1]
    with pytest.raises(ValueError, match=r"You must specify an aggregation method.*'v'.*2 rep"):
        strategy.run(lambda: getattr(v, method)(value))
    np.testing.assert_array_equal(v.read_value(), [10, 20])


@pytest.mark.parametrize("aggregation", list(Aggregation), ids=lambda a: a.name)
def test_one_replica_needs_no_aggregation(make: Make, aggregation: Aggregation) -> None:
    strategy = make(1)
    v = variable(strategy, aggregation)
    strategy.run(lambda: v.assign_add([1, 1]).scatter_sub(rows(1, 0)))
    np.testing.assert_array_equal(v.read_value(), [10, 21])


def test_a_counter_counts_steps_of_the_worker_not_of_its_replicas(make: Make) -> None:
    """As keras#18624 wants ``iterations``: ONLY_FIRST_REPLICA."""
    strategy = make(3)
    with strategy.scope():
        steps = rw.Variable(0, name="steps", aggregation=FIRST)
    for _ in range(4):
        strategy.run(lambda: steps.assign_add(1))
    assert steps.read_value() == 4


def test_the_very_same_object_counts_once_for_each_replica(make: Make) -> None:
    strategy = make(3)
    v = variable(strategy, SUM)
    same = np.ones(2, np.float32)
    strategy.run(lambda: v.assign(same))
    np.testing.assert_array_equal(v.read_value(), [3, 3])


def test_another_variable_may_be_written(make: Make) -> None:
    strategy = make(2)
    v, w = variable(strategy, SUM), variable(strategy, NONE, (1.0, 2.0))
    strategy.run(lambda: v.assign(w))
    np.testing.assert_array_equal(v.read_value(), [2, 4])
    v.assign_add(w)
    np.testing.assert_array_equal(v.read_value(), [3, 6])


# -- cross-replica and update context ------------------------------------------------------------


@pytest.mark.parametrize("aggregation", list(Aggregation), ids=lambda a: a.name)
def test_cross_replica_writes_go_straight_through(make: Make, aggregation: Aggregation) -> None:
    strategy = make(2)
    v = variable(strategy, aggregation)
    v.assign([1, 2]).assign_add([1, 1]).assign_sub([0, 1]).scatter_add(rows(5, 1, 1))
    np.testing.assert_array_equal(v.read_value(), [2, 12])
    v.scatter_update(rows(3, 0)).batch_scatter_update(rows(4, 1))
    np.testing.assert_array_equal(v.read_value(), [3, 4])
    v.assign(Mirrored([np.array([8, 9], np.float32)] * 2))
    np.testing.assert_array_equal(v.read_value(), [8, 9])


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_a_value_per_replica_is_not_cut_down_to_the_first(make: Make, method: str) -> None:
    strategy = make(2)
    v = variable(strategy, SUM)
    with pytest.raises(ValueError, match=f"{method} of 'v' with 2 values.*reduce them first"):
        getattr(v, method)(PerReplica([np.ones(2), np.zeros(2)]))
    np.testing.assert_array_equal(v.read_value(), [10, 20])


def test_an_update_function_writes_once(make: Make) -> None:
    strategy = make(3)
    v = variable(strategy, NONE)
    calls: list[str] = []

    def change(component: Any, x: Any) -> Any:
        calls.append(component.device)
        return component.assign_add(x).read_value()

    strategy.extended.update(v, change, args=([1.0, 1.0],))
    assert len(calls) == 1
    np.testing.assert_array_equal(v.read_value(), [11, 21])
    strategy.run(lambda: strategy.extended.update(v, change, args=([1.0, 1.0],)))
    assert len(calls) == 2, "replicas meet first"
    np.testing.assert_array_equal(v.read_value(), [12, 22])


def test_a_merged_write_is_a_cross_replica_write(make: Make) -> None:
    strategy = make(3)
    v = variable(strategy, NONE)

    def step() -> None:
        context = rw.distribute.get_replica_context()
        assert context is not None
        context.merge_call(lambda strategy: (v.assign_add([1, 1]), None)[1])

    strategy.run(step)
    np.testing.assert_array_equal(v.read_value(), [11, 21])


# -- creation ------------------------------------------------------------------------------------


def test_creation_in_run_gives_every_replica_one_variable(make: Make) -> None:
    strategy = make(3)
    v = strategy.run(lambda: rw.Variable([replica() + 1.0], name="v", aggregation=SUM))
    assert isinstance(v, rw.Variable)
    assert v.name == "v"
    np.testing.assert_array_equal(v.read_value(), [1])
    strategy.run(lambda: v.assign_add([1]))
    np.testing.assert_array_equal(v.read_value(), [4])


def test_central_storage_wraps_a_variable_only_for_several_replicas() -> None:
    alone = variable(CentralStorageStrategy(), SUM)
    assert type(alone) is LocalVariable
    rw.config.set_logical_cpu_devices(2)
    shared = variable(CentralStorageStrategy(), SUM)
    assert type(shared) is AggregatingVariable
    assert shared.device == "/job:localhost/replica:0/task:0/device:CPU:0"
    assert shared.component().device == "/job:localhost/replica:0/task:0/device:CPU:0"
    assert shared.strategy.extended.value_container(shared.component()) is shared


def test_central_storage_keeps_variables_on_its_parameter_device() -> None:
    rw.config.set_logical_cpu_devices(3)
    strategy = CentralStorageStrategy(["CPU:0", "CPU:1"], parameter_device="CPU:2")
    v = variable(strategy, SUM)
    assert v.device == "/job:localhost/replica:0/task:0/device:CPU:2"
    assert strategy.extended.parameter_devices == ("/job:localhost/replica:0/task:0/device:CPU:2",)


# -- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["run", "cross"])
def test_gradients_are_summed_over_the_replicas_and_applied_once(make: Make, where: str) -> None:
    strategy = make(3)
    v = variable(strategy, NONE)
    optimizer = rw.optimizers.SGD(1.0)
    gradients = [np.full(2, i + 1, np.float32) for i in range(3)]
    if where == "run":
        strategy.run(lambda: optimizer.apply_gradients([(gradients[replica()], v)]))
    else:
        optimizer.apply_gradients([(PerReplica(gradients), v)])
    np.testing.assert_array_equal(v.read_value(), [4, 14])


def test_rows_of_gradients_are_put_together(make: Make) -> None:
    strategy = make(2)
    v = variable(strategy, NONE)
    optimizer = rw.optimizers.SGD(1.0)
    strategy.run(lambda: optimizer.apply_gradients([(rows(1, 1, replica()), v)]))
    np.testing.assert_array_equal(v.read_value(), [9, 17])


def test_replicas_aggregate_before_anything_travels() -> None:
    rw.config.set_logical_cpu_devices(4)
    strategy = ParameterServerStrategy()
    v = variable(strategy, SUM)
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    [transport] = extended.runtime.session.peers
    assert isinstance(transport, LocalPs)
    before = transport.store.counters().pushes
    strategy.run(lambda: v.assign_add([1, 1]))
    assert transport.store.counters().pushes == before + 1
    np.testing.assert_array_equal(v.read_value(), [14, 24])
