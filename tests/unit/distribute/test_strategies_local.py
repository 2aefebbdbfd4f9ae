"""The strategies of one machine: sections 2 to 5 and 9 of tf.distribute, promise by promise."""

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import windlass as wl
from windlass.core.errors import ConfigurationError, ShapeMismatchError
from windlass.distribute import (
    AggregatingVariable,
    CentralStorageStrategy,
    DistributedVariable,
    HierarchicalCopyAllReduce,
    Mirrored,
    MirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    PerReplica,
    ReduceOp,
    ReplicaContext,
    RunOptions,
    Strategy,
    ValueContext,
)
from windlass.distribute.base.contexts import update_component
from windlass.distribute.base.devices import current_device
from windlass.distribute.strategies.default import the_default_strategy

Array = np.ndarray[Any, np.dtype[Any]]
SUM, MEAN = wl.VariableAggregation.SUM, wl.VariableAggregation.MEAN
CPUS = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4))

ALL: dict[str, Callable[[], Strategy]] = {
    "Default": the_default_strategy,
    "OneDevice": lambda: OneDeviceStrategy("/cpu:1"),
    "Mirrored": MirroredStrategy,
    "CentralStorage": CentralStorageStrategy,
}

pytestmark = pytest.mark.timeout(30)

several = pytest.mark.parametrize(
    "kind", [MirroredStrategy, CentralStorageStrategy], ids=["Mirrored", "CentralStorage"]
)
"""Those of several replicas."""


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Four logical CPU devices, no GPU."""
    monkeypatch.setattr("windlass.distribute.base.devices.count_gpus", lambda: 0)
    wl.config.set_logical_cpu_devices(4)
    yield
    wl.distribute.experimental_set_strategy(None)
    wl.config.set_logical_cpu_devices(1)


@pytest.fixture(params=ALL.values(), ids=list(ALL))
def strategy(request: pytest.FixtureRequest) -> Strategy:
    """Every strategy in turn."""
    made: Strategy = request.param()
    return made


@pytest.fixture
def replicas(strategy: Strategy) -> int:
    """How many replicas it has."""
    return strategy.num_replicas_in_sync


def context() -> ReplicaContext:
    found = wl.distribute.get_replica_context()
    assert found is not None
    return found


def replica() -> int:
    return context().replica_id_in_sync_group


def where() -> tuple[Strategy, int | None, bool]:
    found = wl.distribute.get_replica_context()
    return (
        wl.distribute.get_strategy(),
        None if found is None else found.replica_id_in_sync_group,
        wl.distribute.in_cross_replica_context(),
    )


def parts(strategy: Strategy, value: Any) -> list[Any]:
    """One result per replica, also of what is the same on all."""
    found = list(strategy.experimental_local_results(value))
    return found * strategy.num_replicas_in_sync if len(found) == 1 else found


def per_replica(strategy: Strategy, function: Callable[[int], Any]) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda given: function(given.replica_id_in_sync_group)
    )


# -- what they are ---------------------------------------------------------------------------


def test_replicas_are_the_devices() -> None:
    assert the_default_strategy().num_replicas_in_sync == 1
    assert OneDeviceStrategy("cpu:2").num_replicas_in_sync == 1
    assert MirroredStrategy().num_replicas_in_sync == 4
    assert MirroredStrategy([]).num_replicas_in_sync == 4
    assert MirroredStrategy(["CPU:0", "/cpu:2"]).num_replicas_in_sync == 2
    assert CentralStorageStrategy().num_replicas_in_sync == 4
    assert CentralStorageStrategy(["cpu:3"]).num_replicas_in_sync == 1


def test_devices_that_compute_and_devices_that_hold_variables() -> None:
    def devices(strategy: Strategy) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return strategy.extended.worker_devices, strategy.extended.parameter_devices

    assert devices(OneDeviceStrategy("cpu:2")) == (CPUS[2:3], CPUS[2:3])
    assert devices(MirroredStrategy()) == (CPUS, CPUS)
    assert devices(MirroredStrategy(["cpu:3", "cpu:1"])) == ((CPUS[3], CPUS[1]),) * 2
    assert devices(CentralStorageStrategy()) == (CPUS, CPUS[:1])
    assert devices(CentralStorageStrategy(["cpu:3"])) == (CPUS[3:], CPUS[3:])
    assert devices(CentralStorageStrategy(None, "cpu:1")) == (CPUS, CPUS[1:2])


@pytest.mark.parametrize("name", ["worker_devices", "parameter_devices"])
def test_the_default_strategy_has_no_devices(name: str) -> None:
    with pytest.raises(RuntimeError, match=f"{name}.. method unsupported by default strategy"):
        getattr(the_default_strategy().extended, name)


@pytest.mark.parametrize("names", [["cpu:0", "CPU:0"], ["cpu:1", "/device:CPU:1"]], ids=str)
@several
def test_a_device_given_twice_is_refused(kind: Callable[..., Strategy], names: list[str]) -> None:
    with pytest.raises(AssertionError, match="No duplicates allowed"):
        kind(names)


def test_variables_live_where_the_strategy_says() -> None:
    def variable(strategy: Strategy) -> wl.Variable:
        with strategy.scope():
            made: wl.Variable = wl.Variable([1.0], name="v")
        return made

    assert variable(OneDeviceStrategy("cpu:2")).device == CPUS[2]
    assert variable(CentralStorageStrategy(None, "cpu:1")).device == CPUS[1]
    assert isinstance(variable(CentralStorageStrategy()), AggregatingVariable)
    assert not isinstance(variable(CentralStorageStrategy(["cpu:0"])), AggregatingVariable)
    mirrored = variable(MirroredStrategy())
    assert isinstance(mirrored, DistributedVariable)
    assert tuple(component.device for component in mirrored.values) == CPUS


def test_one_machine_needs_no_resolver(strategy: Strategy) -> None:
    assert strategy.cluster_resolver is None


def test_one_task_does_everything(strategy: Strategy) -> None:
    extended = strategy.extended
    assert extended.experimental_should_init is True
    assert extended.should_checkpoint is True
    assert extended.should_save_summary is True
    assert extended.experimental_between_graph is False
    assert extended.experimental_require_static_shapes is False


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_a_strategy_cannot_be_copied(strategy: Strategy, copier: Callable[[Any], Any]) -> None:
    if strategy is the_default_strategy() and copier is copy.deepcopy:
        assert copier(strategy) is strategy
    else:
        with pytest.raises(RuntimeError, match="Must not copy a strategy"):
            copier(strategy)


@pytest.mark.parametrize(
    "module", [wl.distribute, wl.distribute.experimental], ids=["distribute", "experimental"]
)
def test_tpu_strategy_says_what_to_use_instead(module: Any) -> None:
    with pytest.raises(ImportError, match=r"no TPUStrategy.*jax\.sharding.*MirroredStrategy"):
        module.TPUStrategy  # noqa: B018
    with pytest.raises(AttributeError, match="XPUStrategy"):
        module.XPUStrategy  # noqa: B018


def test_tpu_strategy_cannot_be_imported_by_name() -> None:
    with pytest.raises(ImportError, match="MultiWorkerMirroredStrategy"):
        from windlass.distribute import TPUStrategy  # noqa: F401


def test_without_a_cluster_the_strategy_of_workers_is_this_process_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = wl.distribute.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == len(strategy.extended.worker_devices)
    assert strategy.extended.num_input_pipelines == 1
    with strategy.scope():
        v = wl.Variable(np.zeros(2), aggregation=SUM)
    strategy.run(lambda: v.assign_add(np.ones(2)))
    assert v.numpy().tolist() == [strategy.num_replicas_in_sync] * 2
    strategy.close()


def test_an_evaluator_is_not_in_sync_with_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = '"cluster": {"worker": ["localhost:1", "localhost:2"]}'
    monkeypatch.setenv("TF_CONFIG", f'{{{workers}, "task": {{"type": "evaluator", "index": 0}}}}')
    with pytest.raises(ConfigurationError, match="evaluator/task:0 is no worker of the cluster"):
        wl.distribute.MultiWorkerMirroredStrategy()


def test_the_experimental_strategy_of_workers_takes_its_communication_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    experimental = wl.distribute.experimental
    ring = experimental.CommunicationImplementation.RING
    strategy = experimental.MultiWorkerMirroredStrategy(ring)
    assert isinstance(strategy, wl.distribute.MultiWorkerMirroredStrategy)
    strategy.close()
    nccl = experimental.CommunicationImplementation.NCCL
    with pytest.raises(ConfigurationError, match="NCCL needs a GPU"):
        experimental.MultiWorkerMirroredStrategy(communication=nccl)


def test_variables_are_colocated_by_the_strategys_older_method_too() -> None:
    strategy = MirroredStrategy()
    with strategy.scope():
        v = wl.Variable(1.0)
        with strategy.colocate_vars_with(v):
            assert wl.Variable(2.0).strategy is strategy
    with pytest.raises(ValueError, match="same strategy scope"):
        MirroredStrategy().colocate_vars_with(v)


def test_a_timeout_of_zero_overrides_another() -> None:
    options = wl.distribute.CommunicationOptions
    assert options(timeout_seconds=5).merge(options(timeout_seconds=0)).timeout_seconds == 0
    assert options(timeout_seconds=5).merge(options()).timeout_seconds == 5
    with pytest.raises(ValueError, match="timeout_seconds must be >= 0"):
        options(timeout_seconds=-1)


def test_losses_of_replicas_are_summed() -> None:
    assert wl.distribute.get_loss_reduction() is ReduceOp.SUM


def test_a_device_is_named_by_tensorflows_keyword() -> None:
    with wl.device(device_name="cpu:0") as name:
        assert name == "/device:CPU:0"


# -- contexts: the matrix of section 1 ---------------------------------------------------------


def test_where_we_are_in_scope_run_merge_and_update(strategy: Strategy, replicas: int) -> None:
    cross = (strategy, None, True)
    with strategy.scope():
        if strategy is the_default_strategy():
            assert where() == (strategy, 0, False), "its scope changes nothing"
        else:
            assert where() == cross
        variable = wl.Variable([0.0], name="v", aggregation=SUM)

    def step() -> list[Any]:
        merged = context().merge_call(lambda _: (where(), update_component()))
        updated = strategy.extended.update(variable, lambda _: (where(), update_component()))
        # A result of one component is everybody's, of one per component this replica's.
        return [where()[0] is strategy, where()[1], where()[2], merged, updated]

    for i, result in enumerate(parts(strategy, strategy.run(step))):
        assert result[:3] == [True, i, False]
        assert result[3] == (cross, None)
        component = i if isinstance(strategy, MirroredStrategy) else 0
        assert result[4] == (cross, component)
    outside = strategy.extended.update(variable, lambda _: where(), group=False)
    assert all(one == cross for one in outside)
    assert where() == (the_default_strategy(), 0, False)


@several
def test_mixing_strategies_is_refused(kind: Callable[[], Strategy]) -> None:
    one, other = kind(), MirroredStrategy()
    with one.scope():
        with pytest.raises(RuntimeError, match=r"Mixing different tf\.distribute\.Strategy"):
            other.scope().__enter__()
        with pytest.raises(RuntimeError, match="Must not nest"):
            the_default_strategy().scope().__enter__()
        with one.scope():
            assert where() == (one, None, True)


def test_scope_and_run_inside_run_are_refused_on_every_replica(
    strategy: Strategy, replicas: int
) -> None:
    refused: list[int] = []

    def step() -> None:
        with pytest.raises(RuntimeError, match=r"strategy\.run inside strategy\.run"):
            strategy.run(replica)
        with pytest.raises(RuntimeError, match="cross-replica context"):
            strategy.extended.call_for_each_replica(replica)
        if strategy is not the_default_strategy():
            with pytest.raises(RuntimeError, match="cross-replica context"):
                strategy.scope().__enter__()
        refused.append(replica())

    strategy.run(step)
    assert sorted(refused) == list(range(replicas))


CROSS_REPLICA: dict[str, Callable[[Strategy], Any]] = {
    "reduce": lambda s: s.reduce("SUM", 1.0),
    "gather": lambda s: s.gather(np.ones(1), 0),
    "experimental_distribute_values_from_function": lambda s: (
        s.experimental_distribute_values_from_function(lambda _: 0)
    ),
    "reduce_to": lambda s: s.extended.reduce_to("SUM", 1.0, "CPU:0"),
    "batch_reduce_to": lambda s: s.extended.batch_reduce_to("SUM", [(1.0, "CPU:0")]),
    "broadcast_to": lambda s: s.extended.broadcast_to(np.ones(1), "CPU:0"),
    "update_non_slot": lambda s: s.extended.update_non_slot(["CPU:0"], lambda: None),
}


@pytest.mark.parametrize("name", list(CROSS_REPLICA))
def test_cross_replica_methods_inside_run_say_to_use_merge_call(
    strategy: Strategy, name: str
) -> None:
    message = rf"{name} requires .*merge_call\(\)"
    if strategy is the_default_strategy() and name == "broadcast_to":
        message = "no devices to broadcast to"  # in any context

    def step() -> None:
        # NotImplementedError is a RuntimeError.
        with pytest.raises(RuntimeError, match=message):
            CROSS_REPLICA[name](strategy)

    strategy.run(step)


# -- run ---------------------------------------------------------------------------------------


def test_run_calls_once_per_replica_and_regroups(strategy: Strategy, replicas: int) -> None:
    shared = np.ones(2)
    value = per_replica(strategy, lambda i: 10.0 * i)

    def step(x: float, table: dict[str, Any], *, flag: bool) -> dict[str, Any]:
        assert flag
        return {"mine": x + 1, "nested": (table["x"], None), "shared": shared}

    result = strategy.run(step, args=[value, {"x": value}], kwargs={"flag": True})
    assert parts(strategy, result["mine"]) == [10.0 * i + 1 for i in range(replicas)]
    assert parts(strategy, result["nested"][0]) == [10.0 * i for i in range(replicas)]
    assert result["nested"][1] is None
    assert result["shared"] is shared, "the very same object of all is not distributed"
    assert isinstance(result["mine"], PerReplica) == (replicas > 1)


def test_run_takes_options_and_needs_no_scope(strategy: Strategy) -> None:
    options = RunOptions(experimental_enable_dynamic_batch_size=False)
    assert parts(strategy, strategy.run(replica, options=options))[0] == 0
    with strategy.scope():
        assert parts(strategy, strategy.run(replica))[0] == 0


@pytest.mark.parametrize(
    "args", [np.ones(2), {"a": 1}, "xy", 3], ids=["array", "dict", "str", "int"]
)
def test_positional_arguments_are_a_list_or_tuple(strategy: Strategy, args: Any) -> None:
    with pytest.raises(ValueError, match="positional args must be a list or tuple"):
        strategy.run(lambda *_: None, args=args)


def test_a_replicas_exception_is_raised_in_the_caller(strategy: Strategy) -> None:
    def step() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        strategy.run(step)


def test_call_for_each_replica_is_run(strategy: Strategy, replicas: int) -> None:
    value = per_replica(strategy, lambda i: i)
    result = strategy.extended.call_for_each_replica(lambda x, y: x + y, (value,), {"y": 1})
    assert parts(strategy, result) == [i + 1 for i in range(replicas)]


def test_a_variable_created_in_run_is_one_for_all_replicas(
    strategy: Strategy, replicas: int
) -> None:
    def step() -> wl.Variable:
        made: wl.Variable = wl.Variable(
            lambda: np.full((), 5.0, np.float32), name="made", aggregation=SUM
        )
        made.assign_add(np.float32(1))
        return made

    variable = strategy.run(step)
    assert isinstance(variable, wl.Variable)
    assert variable.strategy is strategy
    assert float(variable.numpy()) == 5 + replicas


def test_a_captured_per_replica_value_is_this_replicas_part(
    strategy: Strategy, replicas: int
) -> None:
    value = per_replica(strategy, lambda i: np.array([i, i]))
    sums = strategy.run(lambda: int(np.asarray(value).sum()))
    assert parts(strategy, sums) == [2 * i for i in range(replicas)]
    if replicas > 1:
        with strategy.scope(), pytest.raises(ValueError, match="is no array"):
            np.asarray(value)


# -- values ------------------------------------------------------------------------------------


def test_values_from_a_function_are_one_per_replica(strategy: Strategy, replicas: int) -> None:
    asked: list[ValueContext] = []

    def value_fn(given: ValueContext) -> Any:
        asked.append(given)
        return {"id": given.replica_id_in_sync_group, "same": "x"}

    value = strategy.experimental_distribute_values_from_function(value_fn)
    assert asked == [ValueContext(i, replicas) for i in range(replicas)]
    assert parts(strategy, value) == [{"id": i, "same": "x"} for i in range(replicas)]
    if replicas > 1:
        assert isinstance(value["same"], PerReplica), "distributed, though it is the same"
    else:
        assert value == {"id": 0, "same": "x"}


def test_local_results_are_one_per_replica(strategy: Strategy, replicas: int) -> None:
    value = per_replica(strategy, lambda i: i)
    assert strategy.experimental_local_results(value) == tuple(range(replicas))
    assert strategy.unwrap(value) == tuple(range(replicas))
    assert strategy.experimental_local_results(7) == (7,)
    assert strategy.experimental_local_results(None) == (None,)
    nested = {"a": value, "b": [None]}
    assert strategy.experimental_local_results(nested) == tuple(
        {"a": i, "b": [None]} for i in range(replicas)
    )


def test_group_waits_for_nothing(strategy: Strategy) -> None:
    assert strategy.group(strategy.run(replica), name="step") is None  # type: ignore[func-returns-value]


# -- reduce and gather -------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_reduce_is_element_wise_over_replicas(strategy: Strategy, replicas: int, op: str) -> None:
    value = strategy.run(lambda: np.array([1.0, replica()], np.float32))
    wanted = np.array([replicas, sum(range(replicas))], np.float32)
    result = strategy.reduce(op, value, axis=None)
    np.testing.assert_array_equal(result, wanted / (replicas if op == "MEAN" else 1))
    assert result.dtype == np.float32


def test_reduce_over_an_axis_weighs_uneven_replicas_by_their_size(
    strategy: Strategy, replicas: int
) -> None:
    """Replica i has i + 1 rows of the number i."""
    rows = np.concatenate([np.full(i + 1, float(i)) for i in range(replicas)])
    value = strategy.run(lambda: np.full(replica() + 1, float(replica())))
    assert strategy.reduce("SUM", value, axis=0) == rows.sum()
    assert strategy.reduce("MEAN", value, axis=0) == rows.mean()


@several
def test_reduce_of_what_is_not_distributed(kind: Callable[[], Strategy]) -> None:
    strategy = kind()
    value = np.array([1.0, 3.0])
    assert strategy.reduce("MEAN", value) is value
    assert strategy.reduce("MEAN", value, axis=0) == 2.0
    for axis in (None, 0):
        with pytest.raises(ValueError, match="not distributed over 4 replicas is ambiguous"):
            strategy.reduce("SUM", value, axis=axis)
    zeros = np.zeros(2)
    assert strategy.reduce("SUM", zeros) is zeros, "zeros add up to zeros"
    assert strategy.reduce("SUM", 0) == 0
    same = Mirrored([value] * 4)
    assert strategy.reduce("MEAN", same) is value
    with pytest.raises(ValueError, match="ambiguous"):
        strategy.reduce("SUM", same)


def test_one_replicas_value_is_its_own_sum(strategy: Strategy, replicas: int) -> None:
    if replicas == 1:
        assert strategy.reduce("SUM", 3.0) == strategy.reduce("MEAN", 3.0) == 3.0
        assert strategy.reduce("SUM", np.ones(3), axis=0) == 3


def test_reduce_of_variables_in_cross_replica_context(strategy: Strategy, replicas: int) -> None:
    with strategy.scope():
        weight = wl.Variable([2.0], name="weight", aggregation=MEAN)
    assert strategy.reduce("MEAN", weight) == [2.0]
    assert strategy.extended.read_var(weight) == [2.0]
    assert strategy.reduce("SUM", strategy.run(lambda: weight * 1.0)) == [2.0 * replicas]


def test_gather_puts_uneven_values_together(strategy: Strategy, replicas: int) -> None:
    def step() -> dict[str, Array]:
        mine = np.full((replica() + 1, 2), replica())
        return {"rows": mine, "columns": mine.T}

    value = strategy.run(step)
    wanted = np.concatenate([np.full((i + 1, 2), i) for i in range(replicas)])
    np.testing.assert_array_equal(strategy.gather({"x": value["rows"]}, axis=0)["x"], wanted)
    np.testing.assert_array_equal(strategy.gather(value["columns"], axis=1), wanted.T)
    np.testing.assert_array_equal(strategy.gather(value["columns"], axis=-1), wanted.T)


def test_what_every_replica_has_is_gathered_from_each(strategy: Strategy, replicas: int) -> None:
    np.testing.assert_array_equal(strategy.gather(np.array([7]), 0), [7] * replicas)


def test_gather_says_what_it_cannot_put_together(strategy: Strategy) -> None:
    with pytest.raises(ValueError, match="has a scalar"):
        strategy.gather(strategy.run(lambda: np.float32(1)), axis=0)
    with pytest.raises(ValueError, match="axis 1 is out of range"):
        strategy.gather(strategy.run(lambda: np.ones(2)), axis=1)
    rows = strategy.run(lambda: wl.IndexedSlices(np.ones((1, 1)), np.array([0])))
    with pytest.raises(NotImplementedError, match="IndexedSlices"):
        strategy.gather(rows, axis=0)


# -- in a replica: all_reduce, all_gather, merge_call -------------------------------------------


@pytest.mark.parametrize("op", ["SUM", ReduceOp.MEAN], ids=["sum", "mean"])
def test_all_reduce_gives_every_replica_the_same_nested_result(
    strategy: Strategy, replicas: int, op: str | ReduceOp
) -> None:
    scale = 1 if op == "SUM" else replicas

    def step() -> Any:
        mine = np.array([1.0, replica()], np.float32)
        rows = wl.IndexedSlices(mine.reshape(1, 2), np.array([replica()]), (replicas, 2))
        return context().all_reduce(op, {"a": [mine, (rows,)], "b": 2.0})

    wanted = np.array([replicas, sum(range(replicas))])
    for result in parts(strategy, strategy.run(step)):
        np.testing.assert_allclose(result["a"][0], wanted / scale)
        assert result["b"] == 2.0 * replicas / scale
        rows = result["a"][1][0]
        assert isinstance(rows, wl.IndexedSlices)
        assert sorted(rows.indices.tolist()) == list(range(replicas))
        expected = np.stack([np.ones(replicas), np.arange(replicas)], axis=1) / scale
        np.testing.assert_allclose(rows.to_dense(), expected)


def test_all_gather_gives_every_replica_all_rows_in_order(
    strategy: Strategy, replicas: int
) -> None:
    def step() -> Any:
        mine = np.full((replica(), 1), replica())
        return context().all_gather({"x": (mine, mine.T)}, axis=0 if replicas == 1 else -2)

    def uneven() -> Any:
        return context().all_gather([np.full((replica() + 1, 2), replica())], axis=0)

    wanted = np.concatenate([np.full((i + 1, 2), i) for i in range(replicas)])
    for result in parts(strategy, strategy.run(uneven)):
        np.testing.assert_array_equal(result[0], wanted)
    if replicas > 1:
        with pytest.raises(ValueError, match="differ in more than axis"):
            strategy.run(step)
    with pytest.raises(ValueError, match="scalar"):
        strategy.run(lambda: context().all_gather(np.float32(1), axis=0))


def test_what_all_replicas_share_is_gathered_from_each(strategy: Strategy, replicas: int) -> None:
    shared = np.array([7, 8])
    for result in parts(strategy, strategy.run(lambda: context().all_gather(shared, 0))):
        np.testing.assert_array_equal(result, [7, 8] * replicas)


def test_merge_call_meets_once_and_shares_its_result_out(strategy: Strategy, replicas: int) -> None:
    calls: list[Any] = []

    def merge(given: Strategy, x: Any, *, constant: str) -> Any:
        calls.append(constant)
        assert given is strategy
        return given.reduce("SUM", x), constant

    def step() -> Any:
        return context().merge_call(merge, (float(replica()),), {"constant": "c"})

    for result in parts(strategy, strategy.run(step)):
        assert result == (sum(range(replicas)), "c")
    assert calls == ["c"]


def test_a_replica_knows_itself(strategy: Strategy, replicas: int) -> None:
    def step() -> tuple[int, int, str, bool]:
        me = context()
        return (
            me.replica_id_in_sync_group,
            me.num_replicas_in_sync,
            me.devices[0],
            me.strategy is strategy,
        )

    where = "/job:localhost/replica:0/task:0"
    devices = [f"{where}{device}" for device in strategy.extended.replica_devices]
    result = parts(strategy, strategy.run(step))
    assert result == [(i, replicas, devices[i], True) for i in range(replicas)]


# -- extended: reducing ------------------------------------------------------------------------


@several
def test_reduce_to_puts_the_result_where_the_destination_is(kind: Callable[[], Strategy]) -> None:
    strategy = kind()
    extended = strategy.extended
    value = strategy.run(lambda: np.array([replica(), 1.0]))
    with strategy.scope():
        variable = wl.Variable(np.zeros(2), name="v", aggregation=SUM)
    on_variable = extended.reduce_to("SUM", value, variable)
    if isinstance(variable, DistributedVariable):
        assert isinstance(on_variable, Mirrored)
        np.testing.assert_array_equal(on_variable.values, [[6, 4]] * 4)
    else:
        np.testing.assert_array_equal(on_variable, [6, 4])
    on_value = extended.reduce_to(ReduceOp.MEAN, value, value)
    assert isinstance(on_value, Mirrored)
    np.testing.assert_array_equal(on_value.values, [[1.5, 1]] * 4)
    np.testing.assert_array_equal(extended.reduce_to("SUM", value, "cpu:2"), [6, 4])


@several
def test_reduce_to_of_what_every_replica_has(kind: Callable[[], Strategy]) -> None:
    extended = kind().extended
    array = np.array([1.0, 2.0])
    np.testing.assert_array_equal(extended.reduce_to("MEAN", array, "cpu:0"), array)
    mirrored = Mirrored([array] * 4)
    assert isinstance(extended.reduce_to("MEAN", mirrored, mirrored), Mirrored)
    np.testing.assert_array_equal(extended.reduce_to("SUM", np.zeros(2), "cpu:0"), [0, 0])
    for value in (array, mirrored):
        with pytest.raises(ValueError, match="ambiguous"):
            extended.reduce_to("SUM", value, "cpu:0")


def test_reduce_to_wants_one_destination_and_an_op(strategy: Strategy) -> None:
    value = per_replica(strategy, lambda i: 1.0)
    for many in (["cpu:0", "cpu:1"], ("cpu:0",)):
        with pytest.raises(AssertionError, match="destinations must not be a list"):
            strategy.extended.reduce_to("SUM", value, many)
    with pytest.raises(ValueError, match="SUM or MEAN"):
        strategy.extended.reduce_to("MAX", value, "cpu:0")


def test_batch_reduce_to_keeps_the_order_of_its_pairs(strategy: Strategy, replicas: int) -> None:
    values = [strategy.run(lambda i=i: np.full(i + 1, 1.0 + i + replica())) for i in range(5)]
    pairs = [(value, "cpu:0") for value in values]
    for constants in ([], [(np.full(2, 9.0), "cpu:0")]):
        results = strategy.extended.batch_reduce_to("MEAN", [*pairs, *constants])
        assert len(results) == 5 + len(constants)
        for i, result in enumerate(results[:5]):
            np.testing.assert_array_equal(result, np.full(i + 1, 1.0 + i + (replicas - 1) / 2))
        if constants:
            np.testing.assert_array_equal(results[5], [9, 9])


@pytest.mark.parametrize("packs", [0, 1, 3], ids=lambda n: f"{n}-packs")
def test_mirrored_takes_other_cross_device_ops(packs: int) -> None:
    strategy = MirroredStrategy(cross_device_ops=HierarchicalCopyAllReduce(packs))
    value = strategy.run(lambda: [np.full(3, float(replica())), np.full((2, 2), 1.0)])
    first, second = strategy.extended.batch_reduce_to("SUM", [(v, v) for v in value])
    np.testing.assert_array_equal(first.values, np.full((4, 3), 6))
    np.testing.assert_array_equal(second.values, np.full((4, 2, 2), 4))


@several
def test_broadcast_to_is_a_copy_everywhere(kind: Callable[[], Strategy]) -> None:
    extended = kind().extended
    array = np.arange(3.0)
    for where_to in (None, PerReplica([0] * 4)):
        everywhere = extended.broadcast_to(array, where_to)
        assert isinstance(everywhere, Mirrored)
        np.testing.assert_array_equal(everywhere.values, [array] * 4)
    np.testing.assert_array_equal(extended.broadcast_to(array, "cpu:1"), array)
    assert extended.broadcast_to(3, None) == 3
    assert extended.broadcast_to(2.5, "cpu:1") == 2.5


def test_the_default_strategy_broadcasts_nowhere() -> None:
    extended = the_default_strategy().extended
    array = np.ones(2)
    assert extended.broadcast_to(array, None) is array
    with pytest.raises(NotImplementedError, match="no devices"):
        extended.broadcast_to(array, "cpu:0")


# -- extended: variables and updates -------------------------------------------------------------


def test_a_variable_knows_its_strategy(strategy: Strategy) -> None:
    with strategy.scope():
        mine = wl.Variable([1.0], name="mine")
    with MirroredStrategy().scope():
        foreign = wl.Variable([1.0], name="foreign")
    extended = strategy.extended
    assert extended.variable_created_in_scope(mine)
    assert not extended.variable_created_in_scope(foreign)
    with pytest.raises(ValueError, match="not a variable"):
        extended.variable_created_in_scope(np.ones(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be created in the same strategy scope"):
        extended.colocate_vars_with(foreign)
    with pytest.raises(ValueError, match="'foreign' was created under another strategy"):
        extended.update(foreign, lambda _: None)
    with extended.colocate_vars_with(mine), strategy.scope():
        assert wl.Variable([1.0], name="other").device == mine.device


def test_a_component_knows_its_container(strategy: Strategy) -> None:
    extended = strategy.extended
    with strategy.scope():
        variable = wl.Variable([1.0], name="v", aggregation=SUM)
    components: list[Any] = []
    extended.update(variable, components.append)
    for component in components:
        assert extended.value_container(component) is variable
    assert extended.value_container(variable) is variable
    array = np.ones(1)
    assert extended.value_container(array) is array


def test_components_that_replicas_return_become_their_variable() -> None:
    strategy = MirroredStrategy()
    with strategy.scope():
        variable = wl.Variable([1.0], name="v")
    assert isinstance(variable, DistributedVariable)
    assert strategy.run(lambda: variable.values[replica()]) is variable
    assert strategy.run(lambda: variable) is variable


@pytest.mark.parametrize("in_replica", [False, True], ids=["cross-replica", "in-replica"])
def test_update_calls_once_per_component_on_its_device(
    strategy: Strategy, in_replica: bool
) -> None:
    with strategy.scope():
        variable = wl.Variable([1.0, 1.0], name="v", aggregation=SUM)
    copies = 4 if isinstance(strategy, MirroredStrategy) else 1
    seen: list[tuple[Any, ...]] = []

    def change(component: Any, delta: Any, *, scale: float) -> int:
        seen.append((update_component(), current_device(), component.device))
        component.assign_add(delta * scale)
        return len(seen)

    def update() -> Any:
        delta = np.array([1.0, 2.0])
        return strategy.extended.update(variable, change, (delta,), {"scale": 10.0})

    if in_replica:
        results = parts(strategy, strategy.run(update))[:copies]
    else:
        grouped = update()
        assert isinstance(grouped, Mirrored) == (copies > 1)
        results = list(strategy.experimental_local_results(grouped))
    assert results == list(range(1, copies + 1))
    assert [component for component, _, _ in seen] == list(range(copies))
    assert all(living.endswith(working) for _, working, living in seen)
    np.testing.assert_array_equal(variable.numpy(), [11, 21])
    values = variable.values if isinstance(variable, DistributedVariable) else ()
    for component in values:
        np.testing.assert_array_equal(component.numpy(), [11, 21])


def test_update_in_an_update_context_goes_to_every_component(strategy: Strategy) -> None:
    """An update function may itself update another variable, as optimizers with slots do."""
    with strategy.scope():
        first = wl.Variable([0.0], name="first")
        second = wl.Variable([0.0], name="second")
    calls: list[int | None] = []

    def inner(component: Any) -> None:
        calls.append(update_component())

    def outer(component: Any) -> None:
        strategy.extended.update(second, inner)

    strategy.extended.update(first, outer)
    copies = 4 if isinstance(strategy, MirroredStrategy) else 1
    assert calls == list(range(copies)) * copies


def test_update_without_group_is_one_result_per_component(strategy: Strategy) -> None:
    with strategy.scope():
        variable = wl.Variable([1.0], name="v")
    copies = 4 if isinstance(strategy, MirroredStrategy) else 1
    result = strategy.extended.update(variable, lambda _: "same", group=False)
    assert result == ("same",) * copies
    assert strategy.extended.update(variable, lambda _: "same") == "same"


def test_distributed_arguments_of_update_are_split_per_component() -> None:
    strategy = MirroredStrategy()
    with strategy.scope():
        target = wl.Variable([0.0], name="target")
        source = wl.Variable([5.0], name="source")
    pieces = PerReplica([np.array([float(i)]) for i in range(4)])

    def change(component: Any, piece: Any, other: Any) -> tuple[float, str]:
        return float(piece[0]), other.device

    result = strategy.extended.update(target, change, (pieces, source), group=False)
    assert result == tuple((float(i), CPUS[i]) for i in range(4))


def test_update_non_slot_calls_once_per_device(strategy: Strategy) -> None:
    extended = strategy.extended
    if strategy is the_default_strategy():
        devices: tuple[str, ...] = (CPUS[0],)
    else:
        devices = extended.non_slot_devices([])
        assert devices == extended.parameter_devices
    calls: list[tuple[Any, ...]] = []

    def change(x: int, *, y: int) -> int:
        calls.append(where())
        return x + y

    result = extended.update_non_slot(devices, change, (1,), {"y": 2}, group=False)
    assert result == (3,) * len(devices)
    assert calls == [(strategy, None, True)] * len(devices)
    assert extended.update_non_slot("cpu:0", change, (1,), {"y": 2}) == 3


# -- training ----------------------------------------------------------------------------------

STEPS, BATCH = 40, 24


def regression() -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(STEPS, BATCH, 3)).astype(np.float32)
    return x, (x @ np.array([1.0, -2.0, 0.5]) + 3 + 0.1 * rng.normal(size=x.shape[:2])).astype("f4")


def train(
    strategy: Strategy | None, make: Callable[[], wl.optimizers.Optimizer]
) -> tuple[Array, Array]:
    """Least squares; every replica computes the gradient of its part of the batch."""
    used = strategy or the_default_strategy()
    with used.scope():
        w = wl.Variable(np.zeros(3, np.float32), name="w")
        b = wl.Variable(np.zeros((), np.float32), name="b")
    optimizer = make()
    count = used.num_replicas_in_sync

    def step(x: Array, y: Array) -> None:
        rest = x @ w.read_value() + b.read_value() - y
        scale = np.float32(2 / BATCH)
        optimizer.apply_gradients([(x.T @ rest * scale, w), (rest.sum() * scale, b)])

    for x, y in zip(*regression(), strict=True):
        if strategy is None:
            step(x, y)
        else:
            cut = [np.split(whole, count) for whole in (x, y)]
            used.run(step, args=[per_replica(used, pieces.__getitem__) for pieces in cut])
    return w.numpy(), b.numpy()


TRAINING: dict[str, Callable[[], Strategy]] = {
    **ALL,
    "MirroredHierarchical": lambda: MirroredStrategy(
        cross_device_ops=HierarchicalCopyAllReduce(num_packs=2)
    ),
    "CentralStorageElsewhere": lambda: CentralStorageStrategy(["cpu:0", "cpu:2"], "cpu:3"),
}

OPTIMIZERS: dict[str, Callable[[], wl.optimizers.Optimizer]] = {
    "sgd": lambda: wl.optimizers.SGD(0.05),
    "momentum": lambda: wl.optimizers.SGD(0.02, momentum=0.9, nesterov=True),
    "adam-clipped": lambda: wl.optimizers.Adam(0.1, global_clipnorm=1.0),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
@pytest.mark.parametrize("name", list(TRAINING))
def test_training_gives_the_weights_of_training_without_a_strategy(
    name: str, make: Callable[[], wl.optimizers.Optimizer]
) -> None:
    """Parts of a batch add up to the batch, whatever the number of replicas.

    Sums of float32 in another order differ by some units in the last place, and Adam's division
    passes them on; over 40 steps that stays below 1e-4.
    """
    w, b = train(TRAINING[name](), make)
    wanted_w, wanted_b = train(None, make)
    np.testing.assert_allclose(w, wanted_w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(b, wanted_b, rtol=1e-4, atol=1e-5)
    assert abs(wanted_w[1] + 2) < 0.5, "it has learnt something"


@several
def test_copies_stay_equal_and_gradients_are_summed(kind: Callable[[], Strategy]) -> None:
    strategy = kind()
    with strategy.scope():
        w = wl.Variable(np.zeros(2), name="w")
    optimizer = wl.optimizers.SGD(0.5)
    rows = wl.IndexedSlices(np.ones(1), np.array([1]))

    def step() -> None:
        optimizer.apply_gradients([(np.array([replica(), 0.0]), w)])
        optimizer.apply_gradients([(rows, w)])

    strategy.run(step)
    copies = w.values if isinstance(w, DistributedVariable) else (w,)
    for one in copies:
        np.testing.assert_array_equal(one.numpy(), [-0.5 * 6, -0.5 * 4])


@several
def test_a_step_of_gradients_for_different_variables_is_refused(
    kind: Callable[[], Strategy],
) -> None:
    strategy = kind()
    with strategy.scope():
        v, w = (wl.Variable(np.zeros(2), name=name) for name in "vw")
    optimizer = wl.optimizers.SGD(0.5)

    def step() -> None:
        optimizer.apply_gradients([(np.ones(2), v if replica() else w)])

    with pytest.raises(ValueError, match=r"different variables \(replica 0: w; replica 1: v"):
        strategy.run(step)


# -- one strategy's variables under another ------------------------------------------------------

OUTSIDERS: dict[str, Callable[[], Any]] = {
    "plain": nullcontext,
    "of another": lambda: MirroredStrategy().scope(),
}


@several
@pytest.mark.parametrize("scope", OUTSIDERS.values(), ids=list(OUTSIDERS))
def test_an_optimizer_refuses_variables_created_outside_of_the_strategy_that_runs(
    kind: Callable[[], Strategy], scope: Callable[[], Any]
) -> None:
    with scope():
        v: Any = wl.Variable(np.zeros(1, np.float32), name="outside")
    optimizer = wl.optimizers.SGD(1.0)
    with pytest.raises(RuntimeError, match=r"Mixing different .* 'outside' belongs to .* scope"):
        kind().run(lambda: optimizer.apply_gradients([(np.ones(1, np.float32), v)]))
    assert v.numpy() == 0, "or each replica would have updated it"


@pytest.mark.parametrize("sync", ["ON_WRITE", "ON_READ"])
def test_variables_of_one_strategy_are_not_written_in_a_run_of_another(sync: str) -> None:
    owner, other = MirroredStrategy(), MirroredStrategy()
    with owner.scope():
        v: Any = wl.Variable(
            0.0, name="v", aggregation=MEAN, synchronization=wl.VariableSynchronization[sync]
        )
    for write in (v.assign, v.assign_add, v.assign_sub):
        with pytest.raises(RuntimeError, match=r"'v' belongs to MirroredStrategy"):
            other.run(write, (1.0,))
        with other.scope(), pytest.raises(RuntimeError, match="Mixing"):
            write(1.0)
    assert v.numpy() == 0
    assert v.assign(2.0).numpy() == 2, "outside of every strategy it may be"


@pytest.mark.parametrize("given", [1, 3, 5])
def test_values_for_another_number_of_replicas_are_refused(
    strategy: Strategy, replicas: int, given: int
) -> None:
    if given == replicas:
        return
    value = PerReplica(range(given))
    with pytest.raises(
        ValueError, match=f"PerReplica of {given} values was given to {replicas} rep"
    ):
        strategy.run(lambda x: x, args=({"x": value},))
    with pytest.raises(
        ValueError, match=f"PerReplica of {given} values was given to {replicas} rep"
    ):
        strategy.run(lambda x: x, kwargs={"x": value})


def test_names_stay_unique_and_cost_the_same_however_many_there_are() -> None:
    extended = MirroredStrategy().extended
    taken = ["x", "x_2", "x", "x", "x_2", "x_1"]
    given = [extended.unique_name(name) for name in taken]
    assert given == ["x", "x_2", "x_1", "x_3", "x_2_1", "x_1_1"]

    for _ in range(30_000):  # one look at all of them for each would take a minute
        extended.unique_name("y")
    assert extended.unique_name("y") == "y_30000"


# -- what is done with variables that cannot be ------------------------------------------------


@pytest.fixture(params=[*ALL, "ParameterServer"])
def any_variable(request: pytest.FixtureRequest) -> Any:
    """Of every strategy in turn."""
    kind = {**ALL, "ParameterServer": ParameterServerStrategy}[request.param]
    with kind().scope():
        return wl.Variable(np.zeros((3, 2), np.float32), name="v", aggregation=SUM)


@pytest.mark.parametrize(
    "make", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"]
)
def test_a_variable_is_not_copied_and_says_what_to_copy(
    any_variable: Any, make: Callable[[Any], Any]
) -> None:
    """A shallow copy would share the memory, and give out values that are no longer there."""
    with pytest.raises(TypeError, match=r"'v' belongs to its strategy .* copy its value"):
        make(any_variable)


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "scatter-array": (
        lambda v: v.scatter_add(np.ones((3, 2))),
        "scatter_add .*IndexedSlices, got ndarray",
    ),
    "complex": (
        lambda v: v.assign(np.full((3, 2), 1j)),
        "'v' is complex128, the variable is float32",
    ),
    "text": (lambda v: v.assign_add(np.full((3, 2), "1")), "'v' is str32, the variable is float32"),
    "in-place": (lambda v: v.__iadd__(1), "'v' is a variable and changes through assign"),
    "out": (lambda v: np.add(1, 1, out=v), "'v' is a variable and changes through assign"),
}


@pytest.mark.parametrize(("mistake", "message"), MISTAKES.values(), ids=list(MISTAKES))
def test_what_a_variable_does_not_take_is_named(
    any_variable: Any, mistake: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        mistake(any_variable)
    assert not any_variable.numpy().any()


def test_rows_are_not_assigned_as_a_whole(any_variable: Any) -> None:
    rows = wl.IndexedSlices(np.ones((1, 2), np.float32), np.array([0]))
    for write in (any_variable.assign, any_variable.assign_add, any_variable.assign_sub):
        with pytest.raises(TypeError, match="'v' is assigned as a whole, got IndexedSlices"):
            write(rows)


BAD_GRADIENTS: dict[str, Any] = {
    "shape": np.ones(2, np.float32),
    "row": wl.IndexedSlices(np.ones(1, np.float32), np.array([3])),
}


@pytest.mark.parametrize("gradient", BAD_GRADIENTS.values(), ids=list(BAD_GRADIENTS))
@pytest.mark.parametrize("kind", [*ALL, "ParameterServer"])
def test_of_a_step_with_a_gradient_that_does_not_fit_nothing_is_applied(
    kind: str, gradient: Any
) -> None:
    strategy = {**ALL, "ParameterServer": ParameterServerStrategy}[kind]()
    with strategy.scope():
        fits = wl.Variable(np.zeros(2, np.float32), name="fits")
        other = wl.Variable(np.zeros(3, np.float32), name="other")
    optimizer = wl.optimizers.SGD(1.0)
    pairs = [(np.ones(2, np.float32), fits), (gradient, other)]
    with pytest.raises((ValueError, ShapeMismatchError), match="'other'"):
        strategy.run(lambda: optimizer.apply_gradients(pairs))
    assert not fits.numpy().any()
