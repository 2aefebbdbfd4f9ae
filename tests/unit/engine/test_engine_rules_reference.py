"""Every update rule follows its formula, for every float dtype, dense.

The reference below is written from the formulas in ``core/rules/update_rules.py``, in float64, and
shares no code with the kernels.
"""

from typing import Any

import numpy as np
import pytest

from helpers.rules import (
    COMMON_RULES,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Ftrl,
    Lamb,
    Lion,
    Nadam,
    RMSprop,
)
from ropewalk.core.arrays.dtypes import BFLOAT16, Array, DType
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.rules.schedules import ExponentialDecay
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.engine.block import Block
from ropewalk.engine.push_target import Gradient, StepInfo

WORKER = Incarnation(TaskId("worker", 0), 1)
STEPS = 10

RULES: dict[str, UpdateRule] = COMMON_RULES | {
    "momentum-without-rate": SGD(learning_rate=0.1, momentum=0.9, rate_in_velocity=False),
    "nesterov-without-rate": SGD(
        learning_rate=0.1, momentum=0.9, nesterov=True, rate_in_velocity=False
    ),
    "adagrad-from-zero": Adagrad(learning_rate=0.1, initial_accumulator_value=0.0, epsilon=1e-3),
    "adagrad-epsilon-after-the-root": Adagrad(
        learning_rate=0.1, initial_accumulator_value=0.0, epsilon=0.1, epsilon_in_root=False
    ),
    "rmsprop": RMSprop(learning_rate=0.05, rho=0.8),
    "rmsprop-centered-momentum": RMSprop(
        learning_rate=0.05, centered=True, momentum=0.5, epsilon=1e-3
    ),
    "adam-scheduled": Adam(
        learning_rate=ExponentialDecay(initial_learning_rate=0.1, decay_steps=3, decay_rate=0.5)
    ),
    "adam-corrected": Adam(learning_rate=0.05, epsilon=1e-2, corrected_epsilon=True),
    "adamw-corrected": AdamW(
        learning_rate=0.05, weight_decay=0.1, epsilon=1e-2, corrected_epsilon=True
    ),
    "ftrl": Ftrl(learning_rate=0.1),
    "ftrl-l1": Ftrl(learning_rate=0.1, l1_regularization_strength=1.0),
    "ftrl-l2": Ftrl(learning_rate=0.1, l2_regularization_strength=0.5),
    "ftrl-shrinkage": Ftrl(learning_rate=0.1, l2_shrinkage_regularization_strength=0.2),
    "ftrl-beta": Ftrl(learning_rate=0.1, beta=1.5),
    "ftrl-power": Ftrl(learning_rate=0.1, learning_rate_power=-0.7),
    "ftrl-everything": Ftrl(
        learning_rate=0.1,
        learning_rate_power=-0.6,
        initial_accumulator_value=0.3,
        l1_regularization_strength=0.2,
        l2_regularization_strength=0.3,
        l2_shrinkage_regularization_strength=0.1,
        beta=0.5,
        clipvalue=1.0,
    ),
    "lamb": Lamb(learning_rate=0.05),
    "lamb-decay": Lamb(learning_rate=0.05, weight_decay=0.1),
}
DTYPES: dict[str, DType] = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
}

rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
half_types = pytest.mark.parametrize(
    "dtype", [DTYPES["float16"], BFLOAT16], ids=["float16", "bfloat16"]
)


class Reference:
    """A rule carried out in float64, from the formulas alone."""

    def __init__(self, rule: UpdateRule, start: Array) -> None:
        self.rule: Any = rule
        self.w = start.astype(np.float64)
        self.t = 0
        self.slots = {
            name: np.full(start.shape, value, np.float64)
            for name, value in rule.slot_start().items()
        }

    def step(self, gradient: Array, *, global_step: int, scale: float = 1.0) -> None:
        rule, slots = self.rule, self.slots
        self.t += 1
        g = gradient.astype(np.float64) * scale
        if rule.clipvalue is not None:
            g = np.clip(g, -rule.clipvalue, rule.clipvalue)
        lr = rule.rate(global_step)
        match rule:
            case SGD():
                if not rule.momentum:
                    self.w = self.w - lr * g
                    return
                if rule.rate_in_velocity:
                    m = slots["momentum"] = rule.momentum * slots["momentum"] - lr * g
                    self.w = self.w + (rule.momentum * m - lr * g if rule.nesterov else m)
                else:
                    m = slots["momentum"] = rule.momentum * slots["momentum"] - g
                    self.w = self.w + lr * (rule.momentum * m - g if rule.nesterov else m)
            case Adagrad():
                a = slots["accumulator"] = slots["accumulator"] + g**2
                if rule.epsilon_in_root:
                    self.w = self.w - lr * g / np.sqrt(a + rule.epsilon)
                else:
                    self.w = self.w - lr * g / (np.sqrt(a) + rule.epsilon)
            case RMSprop():
                v = slots["velocity"] = rule.rho * slots["velocity"] + (1 - rule.rho) * g**2
                if rule.centered:
                    a = rule.rho * slots["average_gradient"] + (1 - rule.rho) * g
                    slots["average_gradient"] = a
                    v = v - a**2
                change = lr * g / np.sqrt(v + rule.epsilon)
                if rule.momentum:
                    change = rule.momentum * slots["momentum"] + change
                    slots["momentum"] = change
                self.w = self.w - change
            case Adam() | AdamW():
                if isinstance(rule, AdamW):
                    self.w = self.w - lr * rule.weight_decay * self.w
                b1, b2 = rule.beta_1, rule.beta_2
                m = slots["momentum"] = b1 * slots["momentum"] + (1 - b1) * g
                v = slots["velocity"] = b2 * slots["velocity"] + (1 - b2) * g**2
                a = lr * np.sqrt(1 - b2**self.t) / (1 - b1**self.t)
                eps = rule.epsilon
                if rule.corrected_epsilon:
                    eps = eps * np.sqrt(1 - b2**self.t)
                self.w = self.w - a * m / (np.sqrt(v) + eps)
            case Adamax():
                b1, b2 = rule.beta_1, rule.beta_2
                m = slots["momentum"] = b1 * slots["momentum"] + (1 - b1) * g
                u = slots["norm"] = np.maximum(b2 * slots["norm"], np.abs(g))
                self.w = self.w - lr * m / ((1 - b1**self.t) * (u + rule.epsilon))
            case Nadam():
                b1, b2 = rule.beta_1, rule.beta_2
                m = slots["momentum"] = b1 * slots["momentum"] + (1 - b1) * g
                v = slots["velocity"] = b2 * slots["velocity"] + (1 - b2) * g**2
                mu = b1 * (1 - 0.5 * 0.96 ** np.arange(1, self.t + 2))
                ahead = mu[-1] * m / (1 - mu.prod()) + (1 - mu[-2]) * g / (1 - mu[:-1].prod())
                self.w = self.w - lr * ahead / (np.sqrt(v / (1 - b2**self.t)) + rule.epsilon)
            case Adadelta():
                rho, eps = rule.rho, rule.epsilon
                a = rho * slots["accumulated_gradient"] + (1 - rho) * g**2
                d = g * np.sqrt(slots["accumulated_delta"] + eps) / np.sqrt(a + eps)
                slots["accumulated_gradient"] = a
                slots["accumulated_delta"] = rho * slots["accumulated_delta"] + (1 - rho) * d**2
                self.w = self.w - lr * d
            case Lion():
                m = slots["momentum"]
                sign = np.sign(rule.beta_1 * m + (1 - rule.beta_1) * g)
                slots["momentum"] = rule.beta_2 * m + (1 - rule.beta_2) * g
                self.w = self.w - lr * rule.weight_decay * self.w - lr * sign
            case Lamb():
                b1, b2 = rule.beta_1, rule.beta_2
                m = slots["momentum"] = b1 * slots["momentum"] + (1 - b1) * g
                v = slots["velocity"] = b2 * slots["velocity"] + (1 - b2) * g**2
                d = m / (1 - b1**self.t) / (np.sqrt(v / (1 - b2**self.t)) + rule.epsilon)
                d = d + rule.weight_decay * self.w
                norms = np.sqrt((self.w**2).sum()), np.sqrt((d**2).sum())
                self.w = self.w - lr * (norms[0] / norms[1] if min(norms) > 0 else 1.0) * d
            case Ftrl():
                p, n = rule.learning_rate_power, slots["accumulator"]
                l1, l2 = rule.l1_regularization_strength, rule.l2_regularization_strength
                new = slots["accumulator"] = n + g**2
                s = (new**-p - n**-p) / lr
                shrunk = g + 2 * rule.l2_shrinkage_regularization_strength * self.w
                z = slots["linear"] = slots["linear"] + shrunk - s * self.w
                self.w = (np.clip(z, -l1, l1) - z) / (
                    new**-p / lr + 2 * (l2 + rule.beta / (2 * lr))
                )
            case _:
                pytest.fail(f"no reference for {rule!r}")


def make_block(shape: tuple[int, ...], dtype: DType, rule: UpdateRule, start: Array) -> Block:
    block = Block([ShardDefinition(VariableDefinition("w", shape, dtype))])
    block.bind(0, rule)
    block.view(0)[...] = start
    return block


def apply(block: Block, rule: UpdateRule, g: Array, step: int, scale: float = 1.0) -> None:
    info = StepInfo(WORKER, step + 1, step, scale)
    block.apply(block.range_of(0), Gradient(g.reshape(-1)), rule, info)


def problem(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> tuple[Array, list[Array]]:
    """First weights, and a gradient for every step, exact in ``dtype``."""
    rng = np.random.default_rng(seed)
    draw = [np.asarray(rng.standard_normal(shape)).astype(dtype) for _ in range(STEPS + 1)]
    return draw[0], draw[1:]


@rules
@pytest.mark.parametrize(
    ("shape", "dtype", "tolerance"),
    [
        # Ten steps of about ten roundings of 6e-8 each; FTRL's difference of roots loses a digit.
        pytest.param((37,), DTYPES["float32"], 2e-5, id="vector-float32"),
        # As many roundings of 1.1e-16; the reference makes as many of its own.
        pytest.param((), DTYPES["float64"], 1e-13, id="scalar-float64"),
        pytest.param((4, 5, 3), DTYPES["float64"], 1e-13, id="tensor-float64"),
    ],
)
def test_ten_steps_follow_the_formula(
    rule: UpdateRule, shape: tuple[int, ...], dtype: DType, tolerance: float
) -> None:
    start, gradients = problem(shape, dtype)
    block, reference = make_block(shape, dtype, rule, start), Reference(rule, start)
    for step, g in enumerate(gradients):
        apply(block, rule, g, step)
        reference.step(g, global_step=step)
    # Values are of order one, so the tolerance is absolute as well.
    np.testing.assert_allclose(block.view(0), reference.w, rtol=tolerance, atol=tolerance)
    for slot, expected in reference.slots.items():
        got = block.view(0, slot)
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance, err_msg=slot)
    assert (block.updates.tolist(), block.versions.tolist()) == ([STEPS], [STEPS])


@rules
@pytest.mark.parametrize("shape", [(37,), (4, 5, 3)], ids=["vector", "tensor"])
@half_types
def test_every_half_precision_step_is_the_formula_rounded_once(
    rule: UpdateRule, shape: tuple[int, ...], dtype: DType
) -> None:
    """The reference starts each step from the weights the block has, so errors do not add up.

    Then both sides differ by float32's error before they round to the half type, which moves a
    result to the neighbouring number at most: one unit in the last place.
    """
    start, gradients = problem(shape, dtype)
    block, reference = make_block(shape, dtype, rule, start), Reference(rule, start)
    ulp = 2.0**-7 if dtype == BFLOAT16 else 2.0**-10
    for step, g in enumerate(gradients):
        apply(block, rule, g, step)
        reference.step(g, global_step=step)
        got = block.view(0).astype(np.float64)
        # 6e-8: float16's smallest step near zero, and float32's error of a value that cancels.
        np.testing.assert_allclose(got, reference.w, rtol=ulp, atol=5e-6)
        reference.w = got
    for slot, expected in reference.slots.items():
        np.testing.assert_allclose(
            block.view(0, slot), expected, rtol=2e-5, atol=2e-5, err_msg=slot
        )


@rules
@half_types
def test_half_precision_variables_keep_their_slots_in_float32(
    rule: UpdateRule, dtype: DType
) -> None:
    start, _ = problem((3,), dtype)
    block = make_block((3,), dtype, rule, start)
    assert set(block.slots) == set(rule.active_slots())
    assert {slot.dtype for slot in block.slots.values()} <= {np.dtype(np.float32)}
    assert block.slot_bytes == 4 * 3 * len(rule.active_slots())


@half_types
@pytest.mark.parametrize("size", [32767, 32768, 32769, 70001])
def test_large_half_precision_variables_are_updated_to_the_last_element(
    dtype: DType, size: int
) -> None:
    """They are converted a tile of 2**15 elements at a time; sizes lie around its edge."""
    start, gradients = problem((size,), dtype)
    rule = RULES["momentum"]
    block = make_block((size,), dtype, rule, start)
    apply(block, rule, gradients[0], 0)
    wide = gradients[0].astype(np.float32) * -np.float32(0.1)
    np.testing.assert_array_equal(block.view(0, "momentum"), wide)
    np.testing.assert_array_equal(block.view(0), (start.astype(np.float32) + wide).astype(dtype))


def test_sgd_in_float32_is_the_numpy_expression_to_the_bit() -> None:
    start, gradients = problem((37,), DTYPES["float32"])
    rule = SGD(learning_rate=0.1)
    block = make_block((37,), DTYPES["float32"], rule, start)
    expected = start.copy()
    for step, g in enumerate(gradients):
        apply(block, rule, g, step)
        expected -= np.float32(0.1) * g
    np.testing.assert_array_equal(block.view(0), expected)


@rules
def test_the_gradient_scale_multiplies_before_clipping(rule: UpdateRule) -> None:
    """A scale that is a power of two is exact, so a scaled push equals a push of scaled values."""
    start, gradients = problem((11,), DTYPES["float32"])
    scaled, plain = (make_block((11,), DTYPES["float32"], rule, start) for _ in range(2))
    for step, g in enumerate(gradients):
        apply(scaled, rule, g, step, scale=0.25)
        apply(plain, rule, g * np.float32(0.25), step)
    np.testing.assert_array_equal(scaled.view(0), plain.view(0))


@pytest.mark.parametrize(
    ("g", "clipped"),
    [(0.0, 0.0), (0.4, 0.4), (0.5, 0.5), (-0.5, -0.5), (7.0, 0.5), (-7.0, -0.5), (np.inf, 0.5)],
)
def test_clipvalue_bounds_every_element(g: float, clipped: float) -> None:
    rule = SGD(learning_rate=1.0, clipvalue=0.5)
    block = make_block((1,), DTYPES["float64"], rule, np.zeros(1))
    apply(block, rule, np.array([g]), 0)
    assert block.view(0).tolist() == [-clipped]


def test_clipvalue_lets_nan_through_so_that_it_is_seen() -> None:
    rule = SGD(learning_rate=1.0, clipvalue=0.5)
    block = make_block((1,), DTYPES["float64"], rule, np.zeros(1))
    apply(block, rule, np.array([np.nan]), 0)
    assert np.isnan(block.view(0)).all()


def test_a_schedule_is_read_at_the_global_step_not_at_the_number_of_updates() -> None:
    schedule = ExponentialDecay(initial_learning_rate=1.0, decay_steps=1, decay_rate=0.5)
    rule = SGD(learning_rate=schedule)
    block = make_block((1,), DTYPES["float64"], rule, np.zeros(1))
    for global_step in (0, 3, 3, 1):
        apply(block, rule, np.ones(1), global_step)
    assert block.view(0).tolist() == [-(1.0 + 0.125 + 0.125 + 0.5)]


def test_an_integer_learning_rate_means_the_number() -> None:
    assert SGD(learning_rate=1).rate(5) == 1.0
