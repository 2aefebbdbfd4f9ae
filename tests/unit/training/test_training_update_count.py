"""A schedule of optax goes by the updates of its own optimizer, the job's global step by all."""

from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.late import Late

jax, optax = Late("jax"), Late("optax")

pytestmark = pytest.mark.annex("jax_bridge")

ONES = {"w": np.ones(2, np.float32)}


def by_ones() -> Any:
    """The n-th update takes away n."""
    return optax.sgd(lambda count: 1.0 + count)


def test_two_models_in_turn_each_follow_their_own_updates() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    states = [rw.training.jax.TrainState(ONES, by_ones(), strategy, name=name) for name in "ab"]
    for _ in range(3):
        for state in states:
            state.apply_gradients(ONES)
    assert strategy.global_step == 6
    for state in states:
        assert state.worker_reason is None
        np.testing.assert_array_equal(state.params["w"], 1 - (1 + 2 + 3))


def test_a_model_made_later_begins_with_the_schedules_start() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    for name in ("first", "second"):
        state = rw.training.jax.TrainState(ONES, by_ones(), strategy, name=name)
        for _ in range(2):
            state.apply_gradients(ONES)
        np.testing.assert_array_equal(state.params["w"], 1 - (1 + 2))


def test_two_updates_in_one_run_are_two() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    state = rw.training.jax.TrainState(ONES, by_ones(), strategy)

    def step() -> None:
        state.apply_gradients(ONES)
        state.apply_gradients(ONES)

    strategy.run(step)
    strategy.run(step)
    np.testing.assert_array_equal(state.refresh()["w"], 1 - (1 + 2 + 3 + 4))


def test_what_is_restored_brings_its_count(tmp_path: Any) -> None:
    state = rw.training.jax.TrainState(ONES, by_ones(), rw.distribute.ParameterServerStrategy())
    state.apply_gradients(ONES)
    checkpoint = rw.train.Checkpoint(state=state)
    path = checkpoint.save(str(tmp_path / "one"))
    state.apply_gradients(ONES)
    checkpoint.restore(path).assert_consumed()
    state.refresh()
    state.apply_gradients(ONES)
    np.testing.assert_array_equal(state.params["w"], 1 - (1 + 2))
