"""What the strategies of one machine are: replicas, devices, and where their variables live."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.local_strategies import CPUS, several
from helpers.replicas import SUM
from ropewalk.core.errors import ConfigurationError
from ropewalk.distribute import (
    AggregatingVariable,
    CentralStorageStrategy,
    DistributedVariable,
    MirroredStrategy,
    OneDeviceStrategy,
    ReduceOp,
    Strategy,
)
from ropewalk.distribute.strategies.default import the_default_strategy

pytestmark = [pytest.mark.timeout(30), pytest.mark.usefixtures("four_devices")]


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
    def variable(strategy: Strategy) -> rw.Variable:
        with strategy.scope():
            made: rw.Variable = rw.Variable([1.0], name="v")
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


@pytest.mark.annex("jax_bridge")
@pytest.mark.parametrize(
    "module", [rw.distribute, rw.distribute.experimental], ids=["distribute", "experimental"]
)
def test_the_strategy_of_tpus_is_found_by_its_name_and_no_other(module: Any) -> None:
    assert issubclass(module.TPUStrategy, rw.distribute.Strategy)
    with pytest.raises(AttributeError, match="XPUStrategy"):
        module.XPUStrategy  # noqa: B018


@pytest.mark.annex("ring")
def test_without_a_cluster_the_strategy_of_workers_is_this_process_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = rw.distribute.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == len(strategy.extended.worker_devices)
    assert strategy.extended.num_input_pipelines == 1
    with strategy.scope():
        v = rw.Variable(np.zeros(2), aggregation=SUM)
    strategy.run(lambda: v.assign_add(np.ones(2)))
    assert v.numpy().tolist() == [strategy.num_replicas_in_sync] * 2
    assert strategy.is_chief
    assert (strategy.task_index, strategy.num_training_tasks) == (0, 1)
    strategy.close()


@pytest.mark.annex("ring")
def test_workers_in_sync_refuse_what_is_not_finite_and_end_if_nothing_else_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gradients, and what an optimizer on the worker makes of them."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("ROPEWALK_NONFINITE_LIMIT", "3")
    strategy = rw.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        w = rw.Variable(np.zeros(2, np.float32), name="w")
    optimizer = rw.optimizers.SGD(1.0)

    def step(gradient: float) -> None:
        optimizer.apply_gradients([(np.full(2, gradient, np.float32), w)])

    for gradient in (np.nan, np.inf, -1.0, np.nan, np.nan):  # never three in a row
        strategy.run(step, args=(gradient,))
    assert w.numpy().tolist() == [1.0 * strategy.num_replicas_in_sync] * 2
    assert strategy.global_step == 1
    with pytest.raises(rw.errors.NonFiniteGradientError, match=r"'w' was NaN or infinite 3 steps"):
        strategy.run(step, args=(np.nan,))
    assert strategy.extended.refuses_deltas({"w": np.array([np.nan])})
    assert not strategy.extended.refuses_deltas({"w": np.array([1.0])})
    strategy.close()


@pytest.mark.annex("ring")
def test_an_evaluator_is_none_of_the_synchronous_workers() -> None:
    spec = rw.ClusterSpec({"worker": ["localhost:1", "localhost:2"]})
    resolver = rw.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="evaluator", task_id=0
    )
    with pytest.raises(ConfigurationError, match="evaluator/task:0 is no worker of the cluster"):
        rw.distribute.MultiWorkerMirroredStrategy(resolver)


@pytest.mark.annex("ring")
def test_the_experimental_strategy_of_workers_takes_its_communication_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    experimental = rw.distribute.experimental
    ring = experimental.CommunicationImplementation.RING
    strategy = experimental.MultiWorkerMirroredStrategy(ring)
    assert isinstance(strategy, rw.distribute.MultiWorkerMirroredStrategy)
    strategy.close()
    nccl = experimental.CommunicationImplementation.NCCL
    with pytest.raises(ConfigurationError, match="NCCL needs a GPU"):
        experimental.MultiWorkerMirroredStrategy(communication=nccl)


def test_variables_are_colocated_by_the_strategys_older_method_too() -> None:
    strategy = MirroredStrategy()
    with strategy.scope():
        v = rw.Variable(1.0)
        with strategy.colocate_vars_with(v):
            assert rw.Variable(2.0).strategy is strategy
    with pytest.raises(ValueError, match="same strategy scope"):
        MirroredStrategy().colocate_vars_with(v)


def test_a_timeout_of_zero_overrides_another() -> None:
    options = rw.distribute.CommunicationOptions
    assert options(timeout_seconds=5).merge(options(timeout_seconds=0)).timeout_seconds == 0
    assert options(timeout_seconds=5).merge(options()).timeout_seconds == 5
    with pytest.raises(ValueError, match="timeout_seconds must be >= 0"):
        options(timeout_seconds=-1)


def test_losses_of_replicas_are_summed() -> None:
    assert rw.distribute.get_loss_reduction() is ReduceOp.SUM


def test_a_device_is_named_by_tensorflows_keyword() -> None:
    with rw.device(device_name="cpu:0") as name:
        assert name == "/device:CPU:0"
