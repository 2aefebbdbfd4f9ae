"""Training against references: the plain NumPy loop to the bit, and every optimizer under both
strategies.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.distribute import ParameterServerStrategy, Strategy, partitioners
from ropewalk.distribute.data import from_arrays
from ropewalk.distribute.optimizers import Optimizer

Array = np.ndarray[Any, np.dtype[Any]]
opt = rw.optimizers


# -- a network of two layers -------------------------------------------------------------------

RATE = np.float32(0.1)


def data() -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((256, 8)).astype(np.float32)
    y = np.sin(x[:, :1] * 2) + x[:, 1:2] * x[:, 2:3]
    return x, y.astype(np.float32)


def first_values() -> list[Array]:
    rng = np.random.default_rng(11)
    return [
        (rng.standard_normal((8, 17)) * 0.4).astype(np.float32),
        np.zeros(17, np.float32),
        (rng.standard_normal((17, 1)) * 0.3).astype(np.float32),
        np.zeros(1, np.float32),
    ]


def loss_and_gradients(values: list[Array], x: Array, y: Array) -> tuple[float, list[Array]]:
    w1, b1, w2, b2 = values
    hidden = np.tanh(x @ w1 + b1)
    error = hidden @ w2 + b2 - y
    upper = error * np.float32(2 / len(x))
    lower = (upper @ w2.T) * (1 - hidden * hidden)
    gradients = [x.T @ lower, lower.sum(0), hidden.T @ upper, upper.sum(0)]
    return float((error * error).mean()), gradients


def batches() -> Any:
    return from_arrays(data(), 32, seed=5, epochs=25)


@pytest.mark.parametrize("parts", [1, 2], ids=["whole", "2-parts"])
def test_200_steps_of_sgd_equal_the_plain_loop_to_the_bit(parts: int) -> None:
    """One worker, one replica, float32: nothing is lost on the way, however variables are cut."""
    plain, plain_losses = first_values(), []
    for x, y in batches():
        loss, gradients = loss_and_gradients(plain, x, y)
        plain_losses.append(loss)
        plain = [value - RATE * g for value, g in zip(plain, gradients, strict=True)]

    strategy = ParameterServerStrategy(
        variable_partitioner=partitioners.FixedShardsPartitioner(parts)
    )
    with strategy.scope():
        variables = [rw.Variable(value, name=f"v{i}") for i, value in enumerate(first_values())]
    optimizer = opt.SGD(0.1)

    def step(x: Array, y: Array) -> float:
        loss, gradients = loss_and_gradients([v.read_value() for v in variables], x, y)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    losses = [
        strategy.run(step, args=batch)
        for batch in strategy.experimental_distribute_dataset(batches())
    ]
    assert strategy.global_step == len(losses) == 200
    assert losses == plain_losses
    for variable, expected in zip(variables, plain, strict=True):
        np.testing.assert_array_equal(variable.read_value(), expected)
    assert losses[-1] < losses[0] / 2, "and it learns"


def test_two_replicas_learn_what_one_does() -> None:
    """Each has half of the batch; the sum of their gradients, scaled by the global batch, is the
    gradient.
    """

    def train(replicas: int) -> list[Array]:
        rw.config.set_logical_cpu_devices(replicas)
        strategy = ParameterServerStrategy()
        with strategy.scope():
            variables = [rw.Variable(value, name=f"v{i}") for i, value in enumerate(first_values())]
        optimizer = opt.SGD(0.1)

        def step(x: Array, y: Array) -> None:
            _, gradients = loss_and_gradients([v.read_value() for v in variables], x, y)
            share = np.float32(len(x) / 32)
            optimizer.apply_gradients(
                [(g * share, v) for g, v in zip(gradients, variables, strict=True)]
            )

        for batch in strategy.experimental_distribute_dataset(batches()):
            strategy.run(step, args=batch)
        assert strategy.global_step == 200
        return [v.read_value() for v in variables]

    for one, two in zip(train(1), train(2), strict=True):
        # The same sums in another order, over 200 float32 steps.
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-4)


# -- every optimizer ---------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "SGD": lambda: opt.SGD(0.2),
    "Momentum": lambda: opt.SGD(0.05, momentum=0.9),
    "Nesterov": lambda: opt.SGD(0.05, momentum=0.9, nesterov=True),
    "Adagrad": lambda: opt.Adagrad(0.5),
    "RMSprop": lambda: opt.RMSprop(0.05),
    "RMSprop-centered": lambda: opt.RMSprop(0.02, momentum=0.5, centered=True),
    "Adam": lambda: opt.Adam(0.1),
    "AdamW": lambda: opt.AdamW(0.1, weight_decay=0.001),
    "Ftrl": lambda: opt.Ftrl(0.5),
    "clipped": lambda: opt.Adam(0.1, clipvalue=0.5, global_clipnorm=2.0),
    "cosine": lambda: opt.SGD(opt.CosineDecay(initial_learning_rate=0.3, decay_steps=80)),
    "exponential": lambda: opt.SGD(
        opt.ExponentialDecay(initial_learning_rate=0.3, decay_steps=40, decay_rate=0.5)
    ),
    "inverse": lambda: opt.SGD(
        opt.InverseTimeDecay(initial_learning_rate=0.3, decay_steps=40, decay_rate=0.5)
    ),
    "polynomial": lambda: opt.SGD(
        opt.PolynomialDecay(initial_learning_rate=0.3, decay_steps=80, end_learning_rate=0.05)
    ),
}


def least_squares(strategy: Strategy, optimizer: Optimizer) -> tuple[list[float], list[Array]]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 5)).astype(np.float32)
    y = x @ rng.standard_normal((5, 2)).astype(np.float32) + np.float32(0.5)
    with strategy.scope():
        w = rw.Variable(np.zeros((5, 2), np.float32), name="w")
        b = rw.Variable(np.zeros(2, np.float32), name="b")

    def step() -> float:
        error = x @ w.read_value() + b.read_value() - y
        scaled = error * np.float32(2 / len(x))
        optimizer.apply_gradients([(x.T @ scaled, w), (scaled.sum(0), b)])
        return float((error * error).mean())

    losses = [strategy.run(step) for _ in range(80)]
    return losses, [w.read_value(), b.read_value()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_and_alike_under_both_strategies(name: str) -> None:
    """The default strategy runs the kernels of the ps, so the values agree to the bit."""
    mine, here = least_squares(rw.distribute.get_strategy(), OPTIMIZERS[name]())
    theirs, there = least_squares(ParameterServerStrategy(), OPTIMIZERS[name]())
    assert mine[-1] < mine[0] * 0.1
    assert theirs == mine
    for a, b in zip(here, there, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_optimizer_shows_its_rule() -> None:
    assert "learning_rate=0.25" in repr(opt.SGD(0.25))
    assert "Adam(" in repr(opt.Adam())
