"""What bridges share decides alike for all frameworks: states, counts, and changes by hand."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.training.array_store import ModelStep
from ropewalk.training.kept_state import KeptState
from ropewalk.training.program_changes import ProgramChanges
from ropewalk.training.shared_model import SharedModel
from ropewalk.training.update_count import counted_by

FIRST = {"moment": np.zeros(2, np.float32), "steps": np.int64(0)}
LATER = {"moment": np.full(2, 3, np.float32), "steps": np.int64(5)}


class Optimizer:
    """What an optimizer on the worker has, as it was loaded last, and how often."""

    def __init__(self) -> None:
        self.loaded: list[Mapping[str, Any]] = []

    def kept(self, strategy: Any) -> KeptState:
        return KeptState(FIRST, self.loaded.append, strategy, kind="Any", prefix="net")


def a_model(strategy: Any, kept: KeptState) -> SharedModel:
    return SharedModel({"w": np.zeros(1)}, None, strategy, kept=kept, mean=True)


def copies_of(*, chief: bool) -> Any:
    """The strategy of an asynchronous worker."""
    devices = ("/device:CPU:0",)
    extended = {
        "replica_devices": devices, "num_replicas_in_sync": 1, "should_checkpoint": chief,
    }  # fmt: skip
    return SimpleNamespace(extended=SimpleNamespace(**extended))


def test_an_optimizer_goes_on_with_a_state_that_is_restored_and_not_with_its_own() -> None:
    strategy, optimizer = rw.distribute.ParameterServerStrategy(), Optimizer()
    kept = optimizer.kept(strategy)
    model = a_model(strategy, kept)
    assert list(model.refresh()) == ["w"]
    kept.steps += 2
    before = model.store.pull(kept.names)
    model.store.assign(kept.pushed(lambda: LATER))
    assert (kept.updates, kept.steps) == (2, 0)
    model.refresh()
    assert optimizer.loaded == []
    saved = model.store.pull(kept.names)
    kept.steps += 1
    model.store.assign(kept.pushed(lambda: FIRST))
    model.store.assign(saved)
    model.refresh()
    (restored,) = optimizer.loaded
    assert kept.updates == 2
    np.testing.assert_array_equal(restored["moment"], LATER["moment"])
    assert (restored["steps"], restored["steps"].dtype) == (5, np.int64)
    model.store.assign(before)  # of no step: there is nothing to go on with
    model.refresh()
    assert len(optimizer.loaded) == 1


def test_a_worker_whose_copy_does_not_count_begins_with_the_jobs_state_and_pushes_none() -> None:
    strategy, chiefs = rw.distribute.ParameterServerStrategy(), Optimizer()
    kept = chiefs.kept(strategy)
    store = a_model(strategy, kept).store
    kept.steps += 1
    store.assign(kept.pushed(lambda: LATER))
    other = Optimizer()
    others = other.kept(copies_of(chief=False))
    for _ in range(2):
        others.refresh(store)
        others.steps += 1
        assert others.pushed(lambda: pytest.fail("is not asked")) == {}
    assert [state["steps"] for state in other.loaded] == [5]


def test_a_state_of_another_form_is_not_pushed_and_its_steps_are() -> None:
    kept = Optimizer().kept(rw.distribute.ParameterServerStrategy())
    kept.steps += 1
    assert kept.pushed(lambda: None) == {}
    kept.steps += 1
    numbers, *_ = kept.pushed(lambda: FIRST).values()
    assert numbers[0] == kept.updates == 2


def test_values_are_those_of_the_arrays_and_a_restored_count_is_followed() -> None:
    strategy, rule = rw.distribute.ParameterServerStrategy(), rw.optimizers.SGD(0.0)
    count = counted_by(strategy, "net/", rule, lambda updates: 1.0 + updates)
    assert count is not None
    model = SharedModel({"w": np.zeros(1)}, rule, strategy, kept=None, count=count, mean=True)
    for expected in (-1.0, -3.0, -6.0):
        values = model.exchange(ModelStep({"w": np.ones(1)}, averages={}))
        assert list(values) == ["w"]
        assert values["w"] == expected
    (name,) = count.first
    model.store.assign({name: np.float64(1)})
    assert list(model.pull()) == ["w"]
    assert count.known == 1
    assert model.exchange(ModelStep({"w": np.ones(1)}, averages={}))["w"] == -8


def changes(*, chief: bool) -> tuple[ProgramChanges, list[Any]]:
    """And what the store was given."""
    given: list[Any] = []
    store: Any = SimpleNamespace(strategy=copies_of(chief=chief), assign=given.append)
    return ProgramChanges(store, example="clamping does", remedy="Do not"), given


def test_changes_of_the_chief_are_given_to_all() -> None:
    made, given = changes(chief=True)
    for _ in range(3):
        assert made.give_before_step({"w": np.ones(1)})
        assert not made.give_before_step({})
    assert made.give({"w": np.ones(1)})
    assert len(given) == 4


def test_changes_of_another_worker_before_two_steps_in_turn_are_an_error() -> None:
    made, given = changes(chief=False)
    for _ in range(2):
        assert not made.give_before_step({"w": np.ones(1)})
        assert not made.give_before_step({})
    made.give_before_step({"w": np.ones(1)})
    assert not made.give({"w": np.ones(1)})
    with pytest.raises(rw.errors.ConfigurationError, match=r"'w'.*as clamping does.*Do not"):
        made.give_before_step({"w": np.ones(1)})
    assert given == []
