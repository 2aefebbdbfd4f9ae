"""Strategies of one machine train the same model to the same weights, and know where they are."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import windlass as wl
from windlass.distribute import (
    CentralStorageStrategy,
    HierarchicalCopyAllReduce,
    MirroredStrategy,
    NcclAllReduce,
    OneDeviceStrategy,
    PerReplica,
    ReductionToOneDevice,
    Strategy,
)

Array = np.ndarray[Any, np.dtype[Any]]
Make = Callable[[], Strategy]

pytestmark = pytest.mark.timeout(30)

STRATEGIES = [
    pytest.param(Strategy, id="plain"),
    pytest.param(lambda: OneDeviceStrategy("CPU:0"), id="one-device"),
    pytest.param(MirroredStrategy, id="mirrored"),
    pytest.param(lambda: MirroredStrategy(["cpu:1", "CPU:3"]), id="mirrored-two"),
    pytest.param(
        lambda: MirroredStrategy(cross_device_ops=HierarchicalCopyAllReduce(2)), id="hierarchical"
    ),
    pytest.param(lambda: MirroredStrategy(cross_device_ops=NcclAllReduce()), id="nccl-on-cpu"),
    pytest.param(
        lambda: MirroredStrategy(cross_device_ops=ReductionToOneDevice("CPU:2", sum)), id="to-one"
    ),
    pytest.param(CentralStorageStrategy, id="central"),
]


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("windlass.distribute.base.devices.count_gpus", lambda: 0)
    wl.config.set_logical_cpu_devices(4)
    yield
    wl.config.set_logical_cpu_devices(1)


def train(strategy: Strategy, optimizer: wl.optimizers.Optimizer) -> Array:
    """A regression on batches that do not divide evenly over the replicas."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(90, 5)).astype(np.float32)
    y = x @ rng.normal(size=(5, 1)).astype(np.float32)
    with strategy.scope():
        w = wl.Variable(np.zeros((5, 1), np.float32), name="w")
        seen = wl.Variable(
            0.0,
            name="seen",
            synchronization=wl.VariableSynchronization.ON_READ,
            aggregation=wl.VariableAggregation.SUM,
        )

    def step(batch: tuple[Array, Array]) -> None:
        features, targets = batch
        error = features @ w.read_value() - targets
        seen.assign_add(np.float32(len(features)))
        # Scaled by the global batch, as gradients of replicas are summed.
        optimizer.apply_gradients([(2 * features.T @ error / 22, w)])

    data = wl.data.from_arrays((x, y), batch_size=22, epochs=3, seed=1)
    for batch in strategy.experimental_distribute_dataset(data):
        strategy.run(step, args=(batch,))
    assert float(seen.numpy()) == 270
    return w.numpy()


@pytest.mark.parametrize("make", STRATEGIES)
@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(lambda: wl.optimizers.SGD(0.1, momentum=0.9), id="momentum"),
        pytest.param(lambda: wl.optimizers.Adam(0.1, global_clipnorm=0.5), id="adam-clipped"),
    ],
)
def test_training_ends_with_the_weights_of_one_device(
    make: Make, optimizer: Callable[[], wl.optimizers.Optimizer]
) -> None:
    expected = train(OneDeviceStrategy("CPU:0"), optimizer())
    # float32 sums in another order.
    np.testing.assert_allclose(train(make(), optimizer()), expected, rtol=2e-5, atol=2e-6)


def test_copies_of_a_mirrored_variable_stay_equal_to_the_bit() -> None:
    strategy = MirroredStrategy()
    with strategy.scope():
        w = wl.Variable(np.ones(1000, np.float32), name="w")
    optimizer = wl.optimizers.Adam(0.1)

    def step(scale: float) -> None:
        optimizer.apply_gradients([(w.read_value() * np.float32(scale), w)])

    for _ in range(5):
        strategy.run(step, args=(PerReplica([0.1, -0.7, 0.3, 0.9]),))
    assert isinstance(w, wl.distribute.MirroredVariable)
    copies = [component.numpy() for component in w.values]
    assert all(np.array_equal(copies[0], copy) for copy in copies)
    assert not np.array_equal(copies[0], np.ones(1000))


@pytest.mark.parametrize("make", STRATEGIES)
def test_contexts_say_where_we_are(make: Make) -> None:
    strategy = make()
    d = wl.distribute
    assert (d.has_strategy(), d.in_cross_replica_context()) == (False, False)
    with strategy.scope() as current:
        assert current is strategy is d.get_strategy()
        assert d.get_replica_context() is None
        assert d.in_cross_replica_context()

    def body() -> tuple[bool, int]:
        context = d.get_replica_context()
        assert context is not None
        assert d.get_strategy() is strategy
        inside = context.merge_call(
            lambda s: (d.get_strategy() is s, d.get_replica_context(), d.in_cross_replica_context())
        )
        assert inside == (True, None, True)
        return d.in_cross_replica_context(), context.replica_id_in_sync_group

    inside, numbers = strategy.run(body)
    assert inside is False
    count = strategy.num_replicas_in_sync
    assert strategy.experimental_local_results(numbers) == tuple(range(count))


def test_update_runs_on_every_component_in_neither_context() -> None:
    strategy = MirroredStrategy()
    with strategy.scope():
        v = wl.Variable([1.0, 2.0], name="v")

    def change(component: wl.Variable, add: float) -> str:
        assert wl.distribute.get_replica_context() is None
        assert wl.distribute.in_cross_replica_context()
        assert strategy.extended.value_container(component) is v
        component.assign_add([add, add])
        return component.device

    where = strategy.extended.update(v, change, args=(PerReplica([1, 1, 1, 1]),), group=False)
    assert where == tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4))
    np.testing.assert_array_equal(v.numpy(), [2, 3])
    strategy.run(lambda: strategy.extended.update(v, change, args=(1,)))
    np.testing.assert_array_equal(v.numpy(), [3, 4])


def test_gather_and_all_gather_put_uneven_values_together() -> None:
    strategy = MirroredStrategy()
    values = PerReplica([np.full((i, 2), i) for i in range(4)])
    expected = np.concatenate([np.full((i, 2), i) for i in range(4)])
    np.testing.assert_array_equal(strategy.gather(values, axis=0), expected)

    def body(mine: Array) -> Array:
        context = wl.distribute.get_replica_context()
        assert context is not None
        found: Array = context.all_gather(mine, axis=0)
        return found

    for got in strategy.experimental_local_results(strategy.run(body, args=(values,))):
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(ValueError, match="scalar"):
        strategy.gather(PerReplica([1, 2, 3, 4]), axis=0)
    with pytest.raises(ValueError, match="more than axis 1"):
        strategy.gather(values, axis=1)


def test_indexed_slices_are_put_together_by_all_reduce() -> None:
    strategy = MirroredStrategy()

    def body(row: int) -> wl.IndexedSlices:
        context = wl.distribute.get_replica_context()
        assert context is not None
        slices = wl.IndexedSlices(np.ones((1, 2), np.float32), np.array([row]))
        total: wl.IndexedSlices = context.all_reduce("MEAN", slices)
        return total

    for got in strategy.experimental_local_results(
        strategy.run(body, args=(PerReplica([3, 1, 3, 0]),))
    ):
        combined = got.combined()
        np.testing.assert_array_equal(combined.indices, [0, 1, 3])
        np.testing.assert_array_equal(combined.values, [[0.25] * 2, [0.25] * 2, [0.5] * 2])


def test_devices_are_checked() -> None:
    with pytest.raises(AssertionError, match="No duplicates"):
        MirroredStrategy(["CPU:0", "/device:CPU:0"])
    with pytest.raises(ValueError, match="there is no device 'GPU:0' here"):
        OneDeviceStrategy("GPU:0")
    with pytest.raises(ValueError, match="is no device"):
        OneDeviceStrategy("TPU:0")
    with pytest.raises(ImportError, match="nobody here has a TPU"):
        _ = wl.distribute.TPUStrategy


def test_a_name_given_twice_gets_a_number() -> None:
    strategy = MirroredStrategy()
    with strategy.scope():
        names = [wl.Variable(0.0, name="v").name for _ in range(3)]
    assert names == ["v", "v_1", "v_2"]
