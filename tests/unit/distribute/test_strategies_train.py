"""Strategies of one machine train the same model to the same weights, and know where they are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.local_strategies import several
from helpers.replicas import ON_READ, SUM, replica
from ropewalk.distribute import (
    CentralStorageStrategy,
    DistributedVariable,
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

pytestmark = [
    pytest.mark.timeout(30),
    pytest.mark.usefixtures("four_devices"),
    # OpenBLAS reads beyond the end of a vector; what is there is not used, and raises a flag when
    # it is no number. The weights are compared.
    pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning"),
]

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
    pytest.param(
        lambda: CentralStorageStrategy(["cpu:0", "cpu:2"], "cpu:3"), id="central-elsewhere"
    ),
]


def data() -> Any:
    """A regression in batches that do not divide evenly over the replicas."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(90, 5)).astype(np.float32)
    y = x @ rng.normal(size=(5, 1)).astype(np.float32)
    return rw.data.from_arrays((x, y), batch_size=22, epochs=3, seed=1)


def gradient(batch: tuple[Array, Array], w: Array) -> Array:
    """Scaled by the global batch, as gradients of replicas are summed."""
    features, targets = batch
    found: Array = 2 * features.T @ (features @ w - targets) / 22
    return found


def trained_without(optimizer: rw.optimizers.Optimizer) -> Array:
    """The reference: a loop without a strategy."""
    w: Any = rw.Variable(np.zeros((5, 1), np.float32), name="w")
    for batch in data():
        optimizer.apply_gradients([(gradient(batch, w.read_value()), w)])
    found: Array = w.numpy()
    return found


def trained(strategy: Strategy, optimizer: rw.optimizers.Optimizer) -> Array:
    with strategy.scope():
        w: Any = rw.Variable(np.zeros((5, 1), np.float32), name="w")
        seen = rw.Variable(0.0, name="seen", synchronization=ON_READ, aggregation=SUM)

    def step(batch: tuple[Array, Array]) -> None:
        seen.assign_add(np.float32(len(batch[0])))
        optimizer.apply_gradients([(gradient(batch, w.read_value()), w)])

    for batch in strategy.experimental_distribute_dataset(data()):
        strategy.run(step, args=(batch,))
    assert float(seen.numpy()) == 270
    found: Array = w.numpy()
    return found


OPTIMIZERS: dict[str, Callable[[], rw.optimizers.Optimizer]] = {
    "sgd": lambda: rw.optimizers.SGD(0.1),
    "momentum": lambda: rw.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam-clipped": lambda: rw.optimizers.Adam(0.1, global_clipnorm=0.5),
}


@pytest.mark.parametrize("make", STRATEGIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_ends_with_the_weights_of_training_without_a_strategy(
    make: Make, optimizer: str
) -> None:
    expected = trained_without(OPTIMIZERS[optimizer]())
    # float32 sums in another order.
    found = trained(make(), OPTIMIZERS[optimizer]())
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    assert np.abs(expected).max() > 0.1, "it has learnt something"


def test_copies_of_a_mirrored_variable_stay_equal_to_the_bit() -> None:
    strategy = MirroredStrategy()
    with strategy.scope():
        w = rw.Variable(np.ones(1000, np.float32), name="w")
    optimizer = rw.optimizers.Adam(0.1)

    def step(scale: float) -> None:
        optimizer.apply_gradients([(w.read_value() * np.float32(scale), w)])

    for _ in range(5):
        strategy.run(step, args=(PerReplica([0.1, -0.7, 0.3, 0.9]),))
    assert isinstance(w, rw.distribute.MirroredVariable)
    copies = [component.numpy() for component in w.values]
    assert all(np.array_equal(copies[0], copy) for copy in copies)
    assert not np.array_equal(copies[0], np.ones(1000))


@several
def test_copies_stay_equal_and_gradients_are_summed(kind: Callable[[], Strategy]) -> None:
    strategy = kind()
    with strategy.scope():
        w = rw.Variable(np.zeros(2), name="w")
    optimizer = rw.optimizers.SGD(0.5)
    rows = rw.IndexedSlices(np.ones(1), np.array([1]))

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
        v, w = (rw.Variable(np.zeros(2), name=name) for name in "vw")
    optimizer = rw.optimizers.SGD(0.5)

    def step() -> None:
        optimizer.apply_gradients([(np.ones(2), v if replica() else w)])

    with pytest.raises(ValueError, match=r"different variables \(replica 0: w; replica 1: v"):
        strategy.run(step)
