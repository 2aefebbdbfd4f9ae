"""`extended.update` and its kin: every component is updated once, on its device."""

from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.local_strategies import CPUS, parts, where
from helpers.replicas import SUM, replica
from ropewalk.distribute import (
    DistributedVariable,
    Mirrored,
    MirroredStrategy,
    PerReplica,
    Strategy,
)
from ropewalk.distribute.base.contexts import update_component
from ropewalk.distribute.base.devices import current_device
from ropewalk.distribute.strategies.default import the_default_strategy

pytestmark = [pytest.mark.timeout(30), pytest.mark.usefixtures("four_devices")]


def test_a_variable_knows_its_strategy(strategy: Strategy) -> None:
    with strategy.scope():
        mine = rw.Variable([1.0], name="mine")
    with MirroredStrategy().scope():
        foreign = rw.Variable([1.0], name="foreign")
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
        assert rw.Variable([1.0], name="other").device == mine.device


def test_a_component_knows_its_container(strategy: Strategy) -> None:
    extended = strategy.extended
    with strategy.scope():
        variable = rw.Variable([1.0], name="v", aggregation=SUM)
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
        variable = rw.Variable([1.0], name="v")
    assert isinstance(variable, DistributedVariable)
    assert strategy.run(lambda: variable.values[replica()]) is variable
    assert strategy.run(lambda: variable) is variable


@pytest.mark.parametrize("in_replica", [False, True], ids=["cross-replica", "in-replica"])
def test_update_calls_once_per_component_on_its_device(
    strategy: Strategy, in_replica: bool
) -> None:
    with strategy.scope():
        variable = rw.Variable([1.0, 1.0], name="v", aggregation=SUM)
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
        first = rw.Variable([0.0], name="first")
        second = rw.Variable([0.0], name="second")
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
        variable = rw.Variable([1.0], name="v")
    copies = 4 if isinstance(strategy, MirroredStrategy) else 1
    result = strategy.extended.update(variable, lambda _: "same", group=False)
    assert result == ("same",) * copies
    assert strategy.extended.update(variable, lambda _: "same") == "same"


def test_distributed_arguments_of_update_are_split_per_component() -> None:
    strategy = MirroredStrategy()
    with strategy.scope():
        target = rw.Variable([0.0], name="target")
        source = rw.Variable([5.0], name="source")
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
