"""The rules do what the frameworks' own optimizers do: Keras 3 always, optax where its formula is
the same.

Both sides compute in float32 but associate differently, so ten steps of about ten roundings of 6e-8
each leave a difference of some 1e-6 in values of order one; 1e-5 leaves room.
"""

import inspect
import os
from typing import Any

import numpy as np
import pytest

from helpers.rules import (
    COMMON_RULES,
    SGD,
    Adam,
    AdamW,
    Ftrl,
    Lamb,
    RMSprop,
)
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.rules import schedules
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.rules.known_rules import built_in_rules
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.engine.block import Block
from ropewalk.engine.push_target import Gradient, StepInfo

WORKER = Incarnation(TaskId("worker", 0), 1)
TOLERANCE = 1e-5

shapes = pytest.mark.parametrize("shape", [(), (6, 5)], ids=["scalar", "matrix"])


@pytest.fixture(scope="module")
def keras() -> Any:
    """Keras, on its NumPy backend unless another was chosen before: only eager arithmetic
    is used.
    """
    with pytest.MonkeyPatch.context() as patch:  # processes that other tests start have no such
        patch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "numpy"))
        patch.setenv("JAX_PLATFORMS", "cpu")
        return pytest.importorskip("keras", reason="Keras is not installed")


@pytest.fixture(scope="module")
def optax() -> Any:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return pytest.importorskip("optax", reason="optax is not installed")


def problem(shape: tuple[int, ...], steps: int = 10) -> tuple[Array, list[Array]]:
    rng = np.random.default_rng(7)
    draw = [np.asarray(rng.standard_normal(shape), np.float32) for _ in range(steps + 1)]
    return draw[0], draw[1:]


def run_ropewalk(rule: UpdateRule, start: Array, gradients: list[Array]) -> Array:
    block = Block([ShardDefinition(VariableDefinition("w", start.shape, start.dtype))])
    block.bind(0, rule)
    block.view(0)[...] = start
    for step, g in enumerate(gradients):
        info = StepInfo(WORKER, step + 1, step)
        block.apply(block.range_of(0), Gradient(g.reshape(-1)), rule, info)
    return block.view(0).copy()


OTHERS = {
    "by_iterations",
    "rate_in_velocity",
    "corrected_epsilon",
    "epsilon_in_root",
    "float32_correction",
}
"""Hyperparameters that make a rule the one of PyTorch and optax."""


def as_keras(keras: Any, rule: UpdateRule) -> Any:
    """The Keras optimizer of the same name, given the same arguments."""
    arguments = rule.model_dump(exclude={"name", "global_clipnorm", "learning_rate", *OTHERS})
    rate: Any = rule.learning_rate
    if not isinstance(rate, float):
        schedule = getattr(keras.optimizers.schedules, rate.name)
        rate = schedule(**rate.model_dump(exclude={"name"}))
    return getattr(keras.optimizers, rule.name)(learning_rate=rate, **arguments)


def run_keras(optimizer: Any, keras: Any, start: Array, gradients: list[Array]) -> Array:
    variable = keras.Variable(start)
    for g in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(g)], [variable])
    return np.asarray(keras.ops.convert_to_numpy(variable.value))


KERAS_CASES: dict[str, UpdateRule] = COMMON_RULES | {
    "rmsprop": RMSprop(learning_rate=0.05),
    "rmsprop-centered-momentum": RMSprop(
        learning_rate=0.05, centered=True, momentum=0.5, epsilon=1e-3
    ),
    "adam-large-epsilon": Adam(learning_rate=0.05, epsilon=0.1, beta_1=0.5, beta_2=0.9),
    "adamw-clipvalue": AdamW(learning_rate=0.05, weight_decay=0.1, clipvalue=0.3),
    "ftrl": Ftrl(learning_rate=0.1),
    "ftrl-l1": Ftrl(learning_rate=0.1, l1_regularization_strength=1.0),
    "ftrl-l2": Ftrl(learning_rate=0.1, l2_regularization_strength=0.5),
    "ftrl-shrinkage": Ftrl(learning_rate=0.1, l2_shrinkage_regularization_strength=0.2),
    "ftrl-beta": Ftrl(learning_rate=0.1, beta=1.5),
    "ftrl-power": Ftrl(learning_rate=0.1, learning_rate_power=-0.7),
    "lamb": Lamb(learning_rate=0.05),
    **{  # which shows where it is added
        f"{kind.__name__.lower()}-epsilon": kind(learning_rate=0.05, epsilon=0.1)  # type: ignore[call-arg]
        for kind in built_in_rules()
        if "epsilon" in kind.model_fields
    },
}

SCHEDULES: dict[str, schedules.Schedule] = {
    "exponential": schedules.ExponentialDecay(
        initial_learning_rate=0.1, decay_steps=4, decay_rate=0.5
    ),
    "exponential-staircase": schedules.ExponentialDecay(
        initial_learning_rate=0.1, decay_steps=4, decay_rate=0.5, staircase=True
    ),
    "inverse-time": schedules.InverseTimeDecay(
        initial_learning_rate=0.1, decay_steps=2, decay_rate=0.7
    ),
    "inverse-time-staircase": schedules.InverseTimeDecay(
        initial_learning_rate=0.1, decay_steps=2, decay_rate=0.7, staircase=True
    ),
    "polynomial": schedules.PolynomialDecay(
        initial_learning_rate=0.1, decay_steps=6, end_learning_rate=0.01, power=2.0
    ),
    "polynomial-cycle": schedules.PolynomialDecay(
        initial_learning_rate=0.1, decay_steps=4, end_learning_rate=0.01, cycle=True
    ),
    "cosine": schedules.CosineDecay(initial_learning_rate=0.1, decay_steps=7, alpha=0.1),
    "cosine-warmup": schedules.CosineDecay(
        initial_learning_rate=0.01, decay_steps=5, warmup_target=0.1, warmup_steps=4
    ),
    "piecewise": schedules.PiecewiseConstantDecay(boundaries=(2.0, 5.0), values=(0.1, 0.05, 0.01)),
}


@shapes
@pytest.mark.parametrize("rule", KERAS_CASES.values(), ids=KERAS_CASES.keys())
def test_ten_steps_equal_keras(rule: UpdateRule, shape: tuple[int, ...], keras: Any) -> None:
    start, gradients = problem(shape)
    expected = run_keras(as_keras(keras, rule), keras, start, gradients)
    got = run_ropewalk(rule, start, gradients)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_a_scheduled_rate_equals_keras(schedule: schedules.Schedule, keras: Any) -> None:
    rule = SGD(learning_rate=schedule, momentum=0.5)
    start, gradients = problem((8,), steps=12)
    expected = run_keras(as_keras(keras, rule), keras, start, gradients)
    got = run_ropewalk(rule, start, gradients)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("kind", built_in_rules())
def test_defaults_are_those_of_keras(kind: Any, keras: Any) -> None:
    theirs = inspect.signature(getattr(keras.optimizers, kind.__name__)).parameters
    mine = kind().model_dump(exclude={"name", *OTHERS})
    expected = {field: theirs[field].default for field in mine}
    if expected.get("weight_decay", 0.0) is None:
        expected["weight_decay"] = 0.0
    assert mine == expected


OPTAX_CASES: dict[str, tuple[UpdateRule, str, dict[str, Any]]] = {
    "sgd": (SGD(learning_rate=0.1), "sgd", {}),
    # optax keeps the velocity without the rate; with a constant rate the steps are the same.
    "momentum": (SGD(learning_rate=0.1, momentum=0.9), "sgd", {"momentum": 0.9}),
    "nesterov": (
        SGD(learning_rate=0.1, momentum=0.9, nesterov=True),
        "sgd",
        {"momentum": 0.9, "nesterov": True},
    ),
    # optax adds epsilon after the bias correction, Keras and we before: a tiny one hides that.
    "adam": (Adam(learning_rate=0.05, epsilon=1e-12), "adam", {"eps": 1e-12}),
    "adam-betas": (
        Adam(learning_rate=0.05, beta_1=0.5, beta_2=0.9, epsilon=1e-12),
        "adam",
        {"b1": 0.5, "b2": 0.9, "eps": 1e-12},
    ),
    "adam-corrected": (
        Adam(learning_rate=0.05, epsilon=0.1, corrected_epsilon=True),
        "adam",
        {"eps": 0.1},
    ),
    "momentum-without-rate": (
        SGD(learning_rate=0.1, momentum=0.9, rate_in_velocity=False),
        "sgd",
        {"momentum": 0.9},
    ),
    "nesterov-without-rate": (
        SGD(learning_rate=0.1, momentum=0.9, nesterov=True, rate_in_velocity=False),
        "sgd",
        {"momentum": 0.9, "nesterov": True},
    ),
}


def test_adams_first_steps_equal_optax_to_the_last_bits(optax: Any) -> None:
    """In float32 ``1 - 0.999`` is off by 5e-5, which a network of ReLUs makes much of."""
    start, gradients = problem((40,), steps=5)
    expected = run_optax(optax, optax.adam(0.05), start, gradients)
    rule = Adam(learning_rate=0.05, epsilon=1e-8, corrected_epsilon=True)
    same = run_ropewalk(rule.changed({"float32_correction": True}), start, gradients)
    np.testing.assert_allclose(same, expected, rtol=0, atol=4e-7)  # an ulp of its values, or two
    exact = run_ropewalk(rule, start, gradients)
    assert np.abs(exact - expected).max() > 1e-6


@shapes
@pytest.mark.parametrize(
    ("rule", "name", "arguments"), OPTAX_CASES.values(), ids=OPTAX_CASES.keys()
)
def test_ten_steps_equal_optax(
    rule: UpdateRule, name: str, arguments: dict[str, Any], shape: tuple[int, ...], optax: Any
) -> None:
    start, gradients = problem(shape)
    optimizer = getattr(optax, name)(learning_rate=rule.rate(0), **arguments)
    expected = run_optax(optax, optimizer, start, gradients)
    got = run_ropewalk(rule, start, gradients)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "nesterov"])
def test_a_velocity_without_the_rate_follows_a_schedule_as_in_optax(
    nesterov: bool, optax: Any
) -> None:
    schedule = schedules.ExponentialDecay(initial_learning_rate=0.1, decay_steps=3, decay_rate=0.5)
    rule = SGD(learning_rate=schedule, momentum=0.9, nesterov=nesterov, rate_in_velocity=False)
    start, gradients = problem((8,))
    optimizer = optax.sgd(optax.exponential_decay(0.1, 3, 0.5), momentum=0.9, nesterov=nesterov)
    expected = run_optax(optax, optimizer, start, gradients)
    got = run_ropewalk(rule, start, gradients)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


@shapes
def test_adamw_equals_optax(shape: tuple[int, ...], optax: Any) -> None:
    """optax decays ``w`` and steps from the same ``w``; so do we: Adam's step does not
    read ``w``.
    """
    rule = AdamW(learning_rate=0.05, weight_decay=0.1, epsilon=1e-12)
    start, gradients = problem(shape)
    optimizer = optax.adamw(learning_rate=0.05, weight_decay=0.1, eps=1e-12)
    expected = run_optax(optax, optimizer, start, gradients)
    got = run_ropewalk(rule, start, gradients)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


def run_optax(optax: Any, optimizer: Any, start: Array, gradients: list[Array]) -> Array:
    weights: Any = start
    state = optimizer.init(weights)
    for g in gradients:
        updates, state = optimizer.update(g, state, weights)
        weights = optax.apply_updates(weights, updates)
    return np.asarray(weights)
