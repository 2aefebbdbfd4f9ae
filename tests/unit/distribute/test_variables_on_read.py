"""ON_READ variables: each replica writes its own copy; reading and saving make one value
of them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windlass as wl
from windlass.distribute import MirroredStrategy, PerReplica

Array = np.ndarray[Any, np.dtype[Any]]
Aggregation = wl.VariableAggregation

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("windlass.distribute.base.devices.count_gpus", lambda: 0)
    yield
    wl.config.set_logical_cpu_devices(1)


def made(aggregation: wl.VariableAggregation, replicas: int = 2) -> tuple[MirroredStrategy, Any]:
    wl.config.set_logical_cpu_devices(replicas)
    strategy = MirroredStrategy()
    with strategy.scope():
        v = wl.Variable(
            0.0,
            name="v",
            synchronization=wl.VariableSynchronization.ON_READ,
            aggregation=aggregation,
        )
    return strategy, v


def copies(v: Any) -> list[float]:
    return [float(component.numpy()) for component in v.values]


@pytest.mark.parametrize(
    ("aggregation", "read"),
    [
        pytest.param(Aggregation.SUM, 7, id="sum"),
        pytest.param(Aggregation.MEAN, 3.5, id="mean"),
        pytest.param(Aggregation.ONLY_FIRST_REPLICA, 3, id="first"),
    ],
)
def test_replicas_write_their_own_copies_and_reading_makes_one(
    aggregation: wl.VariableAggregation, read: float
) -> None:
    strategy, v = made(aggregation)

    def step(value: float) -> float:
        v.assign(value)
        v.assign_add(1)
        v.assign_sub(1)
        return float(v.read_value())

    assert strategy.run(step, args=(PerReplica([3.0, 4.0]),)).values == (3.0, 4.0)
    assert copies(v) == [3, 4]
    assert float(v.numpy()) == read
    assert not v.trainable


@pytest.mark.parametrize(
    ("aggregation", "after"),
    [
        pytest.param(Aggregation.SUM, [3, 3], id="sum-is-shared-out"),
        pytest.param(Aggregation.MEAN, [6, 6], id="mean-is-copied"),
        pytest.param(Aggregation.ONLY_FIRST_REPLICA, [6, 6], id="first-is-copied"),
    ],
)
def test_assigning_in_cross_replica_context_reads_back(
    aggregation: wl.VariableAggregation, after: list[float]
) -> None:
    _, v = made(aggregation)
    v.assign(6)
    assert copies(v) == after
    assert float(v.numpy()) == 6


def test_a_sum_takes_no_assign_add_in_cross_replica_context() -> None:
    _, v = made(Aggregation.SUM)
    for method in (v.assign_add, v.assign_sub):
        with pytest.raises(ValueError, match="cross-replica context"):
            method(1)
    _, mean = made(Aggregation.MEAN)
    mean.assign(2)
    mean.assign_add(1)
    assert copies(mean) == [3, 3]


def test_without_aggregation_there_is_no_one_value() -> None:
    strategy, v = made(Aggregation.NONE)
    strategy.run(v.assign, args=(PerReplica([1.0, 2.0]),))
    for use in (v.read_value, lambda: v.assign(1), lambda: v.assign_add(1)):
        with pytest.raises(ValueError, match="no aggregation"):
            use()
    with pytest.raises(NotImplementedError):
        v.scatter_add(wl.IndexedSlices(np.ones(1), np.array([0])))


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("aggregation", [Aggregation.SUM, Aggregation.MEAN], ids=["sum", "mean"])
def test_a_saved_value_is_restored_onto_any_number_of_replicas(
    aggregation: wl.VariableAggregation, replicas: int, tmp_path: Path
) -> None:
    strategy, v = made(aggregation)
    strategy.run(v.assign, args=(PerReplica([3.0, 4.0]),))
    saved = {Aggregation.SUM: 7.0, Aggregation.MEAN: 3.5}[aggregation]
    wl.Checkpoint([v]).save(str(tmp_path))

    _, other = made(aggregation, replicas)
    wl.Checkpoint([other]).restore(str(tmp_path))
    each = saved / replicas if aggregation is Aggregation.SUM else saved
    np.testing.assert_allclose(copies(other), [each] * replicas, rtol=1e-6)

    plain = wl.Variable(0.0, name="v")
    wl.Checkpoint([plain]).restore(str(tmp_path))
    assert float(plain.numpy()) == saved


def test_training_goes_on_from_a_checkpoint_under_another_strategy(tmp_path: Path) -> None:
    """Slots are saved, too: Adam continues as if nothing had happened."""

    def steps(strategy: wl.distribute.Strategy, w: wl.Variable, count: int) -> None:
        optimizer = wl.optimizers.Adam(0.1)
        for _ in range(count):
            strategy.run(lambda: optimizer.apply_gradients([(w.read_value() * 0 + 0.25, w)]))

    def one(strategy: wl.distribute.Strategy) -> wl.Variable:
        with strategy.scope():
            return wl.Variable(np.ones(3, np.float32), name="w")

    wl.config.set_logical_cpu_devices(2)
    mirrored = MirroredStrategy()
    whole, first = one(mirrored), one(MirroredStrategy())
    steps(mirrored, whole, 6)
    steps(first.strategy, first, 3)
    wl.Checkpoint([first]).save(str(tmp_path), global_step=3)
    # Two replicas sum their gradients; one that gives twice as much does the same.
    alone = wl.distribute.OneDeviceStrategy("CPU:0")
    rest = one(alone)
    assert wl.Checkpoint([rest]).restore(str(tmp_path)) == 3
    optimizer = wl.optimizers.Adam(0.1)
    for _ in range(3):
        alone.run(lambda: optimizer.apply_gradients([(rest.read_value() * 0 + 0.5, rest)]))
    np.testing.assert_allclose(rest.numpy(), whole.numpy(), rtol=1e-6)  # float32
