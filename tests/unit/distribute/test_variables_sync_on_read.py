"""ON_READ variables: each replica writes its own copy; outside they are one value, also in
checkpoints.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.replicas import FIRST, MEAN, NONE, ON_READ, SUM, copies, mirrored, replica
from ropewalk.distribute import (
    CentralStorageStrategy,
    OneDeviceStrategy,
    PerReplica,
    ReduceOp,
    Strategy,
    SyncOnReadVariable,
)

Aggregation = rw.VariableAggregation


def on_read(strategy: Strategy, aggregation: Aggregation, value: Any = 0.0) -> SyncOnReadVariable:
    with strategy.scope():
        v = rw.Variable(value, name="total", synchronization=ON_READ, aggregation=aggregation)
    assert isinstance(v, SyncOnReadVariable)
    return v


def plain(strategy: Strategy) -> rw.Variable:
    with strategy.scope():
        variable: rw.Variable = rw.Variable(0.0, name="total")
    return variable


# -- what it is for ------------------------------------------------------------------------------


def test_a_metric_adds_up_in_each_replica_and_is_read_as_one() -> None:
    strategy = mirrored(3)
    total, count = on_read(strategy, SUM), on_read(strategy, SUM)

    def step(batch: Any) -> None:
        total.assign_add(np.float32(batch.sum()))
        count.assign_add(len(batch))

    batches = [np.arange(4.0), np.arange(2.0), np.arange(1.0)]
    for _ in range(2):
        strategy.run(step, args=(PerReplica(batches),))
    assert copies(count) == [8, 4, 2]
    assert float(total.read_value() / count.read_value()) == 1.0  # 14 / 14
    total.assign(0)
    assert copies(total) == [0, 0, 0]


def test_assigning_what_was_read_changes_nothing() -> None:
    strategy = mirrored(2)
    for aggregation in (SUM, MEAN, FIRST):
        v = on_read(strategy, aggregation)
        strategy.run(lambda v=v: v.assign(replica() + 3))
        before = float(v.read_value())
        v.assign(v)
        assert float(v.read_value()) == before
        v.assign(v.read_value())
        assert float(v.read_value()) == before


def test_reduce_takes_the_copies_whatever_the_aggregation() -> None:
    strategy = mirrored(2)
    v = on_read(strategy, NONE)
    strategy.run(lambda: v.assign(replica() + 3))
    assert strategy.reduce(ReduceOp.SUM, v, axis=None) == 7
    assert strategy.reduce(ReduceOp.MEAN, v, axis=None) == 3.5


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_without_an_aggregation_the_error_says_what_to_do(method: str) -> None:
    v = on_read(mirrored(2), NONE)
    with pytest.raises(ValueError, match=rf"Could not {method} 'total'.*2 copies.*replica context"):
        getattr(v, method)(1.0)


@pytest.mark.parametrize("method", ["assign_add", "assign_sub"])
def test_adding_to_a_sum_from_outside_would_add_once_per_replica(method: str) -> None:
    v = on_read(mirrored(2), SUM)
    with pytest.raises(ValueError, match=rf"does not support `{method}`.*'total'"):
        getattr(v, method)(1.0)


def test_with_one_replica_a_sum_is_the_value() -> None:
    v = on_read(mirrored(1), SUM)
    v.assign(5)
    assert copies(v) == [5]
    assert float(v.read_value()) == 5


def test_a_value_of_another_shape_changes_no_copy() -> None:
    v = on_read(mirrored(2), MEAN)
    with pytest.raises(ValueError, match=r"'total.* has shape \(\), the value has \(2,\)"):
        v.assign([1.0, 2.0])
    assert copies(v) == [0, 0]


# -- checkpoints ---------------------------------------------------------------------------------


def saved(directory: Path, aggregation: Aggregation, values: tuple[float, ...]) -> str:
    """A checkpoint of a variable whose copies have these values."""
    strategy = mirrored(len(values))
    v = on_read(strategy, aggregation)
    strategy.run(lambda: v.assign(values[replica()]))
    return rw.Checkpoint([v]).save(str(directory), global_step=1)


# Aggregation → what 3 and 4 are saved as, and what each of n replicas gets of it.
TABLE: dict[Aggregation, tuple[float, Callable[[int], float]]] = {
    SUM: (7.0, lambda n: 7 / n),
    MEAN: (3.5, lambda n: 3.5),
    FIRST: (3.0, lambda n: 3.0),
}


@pytest.mark.parametrize("replicas", [1, 2, 3, 4], ids=lambda n: f"to-{n}")
@pytest.mark.parametrize("aggregation", TABLE, ids=lambda a: a.name)
def test_a_checkpoint_of_two_replicas_restores_on_any_number(
    tmp_path: Path, aggregation: Aggregation, replicas: int
) -> None:
    path = saved(tmp_path, aggregation, (3, 4))
    whole, share = TABLE[aggregation]
    v = on_read(mirrored(replicas), aggregation)
    rw.Checkpoint([v]).restore(path)
    # Shares are rounded to float32, and a sum of three of them once more.
    np.testing.assert_allclose(copies(v), [share(replicas)] * replicas, rtol=1e-7)
    np.testing.assert_allclose(float(v.read_value()), whole, rtol=2e-7)


ALONE: dict[str, Callable[[], Strategy]] = {
    "default": rw.distribute.get_strategy,
    "one-device": lambda: OneDeviceStrategy("CPU:0"),
    "mirrored": lambda: mirrored(2),
    "central": CentralStorageStrategy,
}


@pytest.mark.parametrize("strategy", ALONE)
@pytest.mark.parametrize("aggregation", TABLE, ids=lambda a: a.name)
def test_it_goes_to_and_from_a_plain_variable(
    tmp_path: Path, aggregation: Aggregation, strategy: str
) -> None:
    whole, share = TABLE[aggregation]
    path = saved(tmp_path / "there", aggregation, (3, 4))
    variable = plain(ALONE[strategy]())
    rw.Checkpoint([variable]).restore(path)
    assert float(variable.read_value()) == whole
    variable.assign(7 if aggregation is SUM else whole)
    back = rw.Checkpoint([variable]).save(str(tmp_path / "back"), global_step=1)
    v = on_read(mirrored(2), aggregation)
    rw.Checkpoint([v]).restore(back)
    assert copies(v) == [share(2)] * 2


def test_without_an_aggregation_there_is_nothing_to_save_and_a_value_for_each(
    tmp_path: Path,
) -> None:
    v = on_read(mirrored(2), NONE)
    with pytest.raises(ValueError, match=r"'total'.*no aggregation"):
        rw.Checkpoint([v]).save(str(tmp_path))
    assert not list(tmp_path.iterdir()), "nothing is left half written"
    path = saved(tmp_path, SUM, (3, 4))
    rw.Checkpoint([v]).restore(path)
    assert copies(v) == [7, 7]


@pytest.mark.parametrize("replicas", [1, 2, 3], ids=lambda n: f"{n}-replicas")
def test_an_integer_sum_comes_back_whatever_the_number_of_replicas(
    tmp_path: Path, replicas: int
) -> None:
    strategy = mirrored(2)
    with strategy.scope():
        v: Any = rw.Variable(0, name="seen", synchronization=ON_READ, aggregation=SUM)
    strategy.run(lambda: v.assign(replica() + 3))
    path = rw.Checkpoint([v]).save(str(tmp_path))
    with mirrored(replicas).scope():
        other = rw.Variable(0, name="seen", synchronization=ON_READ, aggregation=SUM)
    rw.Checkpoint([other]).restore(path)
    assert other.read_value() == 7
