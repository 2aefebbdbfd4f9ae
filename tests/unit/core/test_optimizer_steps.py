"""Optimizers that make steps beside the strategy are named when the program ends."""

from collections.abc import Iterator

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.core.process.frameworks import (
    forget_steps,
    note_unshared_step,
    unshared_steps_warning,
)


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    forget_steps()
    yield
    forget_steps()


def test_steps_that_were_not_shared_are_named() -> None:
    for name in ("torch.optim.Adam", "optax", "torch.optim.Adam"):
        note_unshared_step(name)
    assert unshared_steps_warning().startswith("torch.optim.Adam, optax made steps, and none")


@pytest.mark.parametrize(
    "strategy",
    [rw.distribute.ParameterServerStrategy, lambda: rw.distribute.MirroredStrategy(["CPU:0"])],
    ids=["ps", "mirrored"],
)
def test_a_shared_step_is_enough(strategy: type[rw.distribute.Strategy]) -> None:
    note_unshared_step("torch.optim.Adam")
    made = strategy()
    with made.scope():
        variable: rw.Variable = rw.Variable(np.zeros(2, np.float32))
    made.run(lambda: rw.optimizers.SGD(0.1).apply_gradients([(np.ones(2), variable)]))
    assert unshared_steps_warning() == ""


def test_a_program_without_optimizers_is_told_nothing() -> None:
    rw.distribute.ParameterServerStrategy()
    assert unshared_steps_warning() == ""
