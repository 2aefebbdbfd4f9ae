"""The update rules for a GPU's memory, run with NumPy, agree with the host's kernels.

``gpu_memory.py`` repeats the formulas of the kernels as array operations. It takes NumPy for CuPy
here, so that a machine without a GPU sees a difference; what CuPy makes of them is a GPU machine's
test.

Tolerances. Both compute in the same dtype, but not in the same order: kernels may fuse a
multiplication with an addition, and take ``a ** 0.5`` as a root. Each step therefore differs by a
few units in the last place, and six steps by six times that: 1e-5 beside float32's 1.2e-7, 1e-12
beside float64's 2.2e-16 leave room for cancellation in ``w``, of order one, and none for a wrong
formula. Halves are computed in float32 and rounded once per step, so a difference there may flip
one rounding: two units in the last place.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.rules import (
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
from ropewalk.core.arrays.dtypes import BFLOAT16, FLOATS, DType
from ropewalk.core.rules.known_rules import built_in_rules
from ropewalk.core.rules.schedules import (
    CosineDecay,
    ExponentialDecay,
    InverseTimeDecay,
    PiecewiseConstantDecay,
    PolynomialDecay,
)
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.distribute.variables.gpu_memory import start_slots
from ropewalk.distribute.variables.local import LocalVariable
from ropewalk.engine.rules import apply_formula

Array = np.ndarray[Any, np.dtype[Any]]
STEPS = 6
SHAPE = (7, 3)


RULES: dict[str, UpdateRule] = {
    "sgd": SGD(learning_rate=0.1),
    "momentum": SGD(learning_rate=0.1, momentum=0.9),
    "nesterov": SGD(learning_rate=0.1, momentum=0.9, nesterov=True),
    "adagrad": Adagrad(learning_rate=0.1),
    "adagrad-options": Adagrad(learning_rate=0.1, initial_accumulator_value=0.5, epsilon=0.01),
    "adagrad-epsilon-after-the-root": Adagrad(
        learning_rate=0.1, epsilon=0.01, epsilon_in_root=False
    ),
    "rmsprop": RMSprop(learning_rate=0.05),
    "rmsprop-momentum": RMSprop(learning_rate=0.05, momentum=0.9, rho=0.8),
    "rmsprop-centered": RMSprop(learning_rate=0.05, centered=True, epsilon=0.01),
    "rmsprop-both": RMSprop(learning_rate=0.05, centered=True, momentum=0.5, epsilon=0.01),
    "adam": Adam(learning_rate=0.05),
    "adam-options": Adam(learning_rate=0.05, beta_1=0.8, beta_2=0.9, epsilon=0.01),
    "adamw": AdamW(learning_rate=0.05),
    "adamw-decay": AdamW(learning_rate=0.05, weight_decay=0.3),
    "ftrl": Ftrl(learning_rate=0.1),
    "ftrl-l1": Ftrl(learning_rate=0.1, l1_regularization_strength=0.3),
    "ftrl-l2": Ftrl(learning_rate=0.1, l2_regularization_strength=0.3, beta=0.2),
    "ftrl-shrinkage": Ftrl(learning_rate=0.1, l2_shrinkage_regularization_strength=0.1),
    "ftrl-power": Ftrl(learning_rate=0.1, learning_rate_power=-0.7, l1_regularization_strength=0.1),
    "ftrl-power-0": Ftrl(learning_rate=0.1, learning_rate_power=0.0, beta=0.1),
    "ftrl-accumulator": Ftrl(learning_rate=0.1, initial_accumulator_value=1.0),
    "adamax": Adamax(learning_rate=0.05),
    "nadam": Nadam(learning_rate=0.05),
    "adadelta": Adadelta(learning_rate=0.5),
    "lion": Lion(learning_rate=0.05),
    "lion-decay": Lion(learning_rate=0.05, weight_decay=0.1),
    "lamb": Lamb(learning_rate=0.05),
    "lamb-decay": Lamb(learning_rate=0.05, weight_decay=0.1),
}
SCHEDULES = {
    "exponential": ExponentialDecay(initial_learning_rate=0.2, decay_steps=2, decay_rate=0.5),
    "inverse": InverseTimeDecay(initial_learning_rate=0.2, decay_steps=2, decay_rate=0.5),
    "polynomial-to-zero": PolynomialDecay(
        initial_learning_rate=0.2, decay_steps=4, end_learning_rate=0.0
    ),
    "piecewise": PiecewiseConstantDecay(boundaries=(1, 3), values=(0.2, 0.0, 0.1)),
    "cosine-from-zero": CosineDecay(
        initial_learning_rate=0.0, decay_steps=8, warmup_target=0.2, warmup_steps=2
    ),
}
FAMILIES: dict[str, Callable[..., UpdateRule]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "rmsprop": RMSprop,
    "adam": Adam,
    "adamw": AdamW,
    "ftrl": Ftrl,
    "adamax": Adamax,
    "nadam": Nadam,
    "adadelta": Adadelta,
    "lion": Lion,
    "lamb": Lamb,
}
TOLERANCES: dict[DType, float] = {
    np.dtype(np.float64): 1e-12,
    np.dtype(np.float32): 1e-5,
    np.dtype(np.float16): 2 * 2.0**-10,
    BFLOAT16: 2 * 2.0**-7,
}
Gradients = list[Array | rw.IndexedSlices]


def gradients(dtype: DType, *, sparse: bool) -> Gradients:
    rng = np.random.default_rng(3)
    found: Gradients = []
    for _ in range(STEPS):
        if sparse:  # some rows twice, in no order
            rows = rng.integers(0, SHAPE[0], 4)
            found.append(rw.IndexedSlices(rng.normal(size=(4, 3)).astype(dtype), rows))
        else:
            found.append(rng.normal(size=SHAPE).astype(dtype))
    return found


def on_host(
    rule: UpdateRule, start: Array, given: Gradients, scale: float
) -> tuple[Array, dict[str, Array], int]:
    v: Any = rw.Variable(start)
    assert isinstance(v, LocalVariable)
    for gradient in given:
        v.apply(gradient, rule, gradient_scale=scale)
    slots, updates, _ = v.slots()
    return v.numpy(), slots, updates


def with_formulas(
    rule: UpdateRule, start: Array, given: Gradients, scale: float
) -> tuple[Array, dict[str, Array], int]:
    value = start.copy()
    slots = start_slots(np, rule, value)
    for step, gradient in enumerate(given):
        array: Any = gradient
        index: Any = ...
        if isinstance(gradient, rw.IndexedSlices):
            rows = gradient.combined()
            array, index = rows.values, rows.indices
        apply_formula(
            np, rule, value, slots, array, index,
            rate=rule.rate(step), updates=step + 1, scale=scale,
        )  # fmt: skip
    return value, slots, len(given)


def compare(
    rule: UpdateRule,
    dtype: DType = FLOATS[0],
    *,
    sparse: bool = False,
    scale: float = 1.0,
) -> None:
    start = np.random.default_rng(1).normal(size=SHAPE).astype(dtype)
    given = gradients(dtype, sparse=sparse)
    mine, my_slots, my_updates = with_formulas(rule, start, given, scale)
    theirs, their_slots, their_updates = on_host(rule, start, given, scale)
    assert mine.dtype == theirs.dtype == dtype
    assert my_updates == their_updates
    tolerance = TOLERANCES[dtype]
    wide = [array.astype(np.float64) for array in (mine, theirs)]
    np.testing.assert_allclose(wide[0], wide[1], rtol=tolerance, atol=tolerance)
    assert my_slots.keys() == their_slots.keys()
    for name, slot in my_slots.items():
        assert slot.dtype == their_slots[name].dtype
        # A slot of a half is float32, but FTRL's follow the rounded value.
        np.testing.assert_allclose(slot, their_slots[name], rtol=tolerance, atol=tolerance)
    # A rule that did nothing would agree with itself.
    assert not np.array_equal(theirs, start)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "rows"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_and_option(rule: str, dtype: Any, sparse: bool) -> None:
    compare(RULES[rule], np.dtype(dtype), sparse=sparse)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "rows"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_in_half_precision(rule: str, dtype: DType, sparse: bool) -> None:
    compare(RULES[rule], dtype, sparse=sparse)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "rows"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_scaled_and_then_clipped(family: str, sparse: bool) -> None:
    compare(FAMILIES[family](learning_rate=0.1, clipvalue=0.4), sparse=sparse, scale=0.5)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("family", FAMILIES)
def test_schedules_count_the_updates_of_the_variable(family: str, schedule: str) -> None:
    compare(FAMILIES[family](learning_rate=SCHEDULES[schedule]))


@pytest.mark.parametrize("shape", [(), (4,), (2, 3, 2), (0, 3)], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_do_not_matter(family: str, shape: tuple[int, ...]) -> None:
    rule = FAMILIES[family](learning_rate=0.1)
    start = np.asarray(np.random.default_rng(1).normal(size=shape), np.float32)
    given: Gradients = [np.full(shape, 0.5, np.float32)] * 2
    mine, _, _ = with_formulas(rule, start, given, 1.0)
    theirs, _, _ = on_host(rule, start, given, 1.0)
    assert mine.shape == shape
    np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_scaling_comes_before_clipping() -> None:
    value = np.zeros(2, np.float32)
    rule = SGD(learning_rate=1.0, clipvalue=1.0)
    given = np.array([3, 0.5], np.float32)
    apply_formula(np, rule, value, {}, given, ..., rate=rule.rate(0), updates=1, scale=0.5)
    np.testing.assert_array_equal(value, [-1, -0.25])


def test_rows_that_are_not_named_and_their_slots_stay() -> None:
    rule = Adam(learning_rate=0.1)
    value = np.ones(SHAPE, np.float32)
    slots = start_slots(np, rule, value)
    gradient = np.ones((2, 3), np.float32)
    rows = np.array([1, 4])
    apply_formula(np, rule, value, slots, gradient, rows, rate=rule.rate(0), updates=1, scale=1.0)
    rest = [0, 2, 3, 5, 6]
    np.testing.assert_array_equal(value[rest], 1)
    assert (value[[1, 4]] != 1).all()
    for slot in slots.values():
        np.testing.assert_array_equal(slot[rest], 0)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_slots_of_halves_are_float32_and_begin_as_the_rule_says(dtype: DType) -> None:
    slots = start_slots(np, Ftrl(initial_accumulator_value=0.25), np.zeros(SHAPE, dtype))
    wide = np.float32 if dtype.itemsize < 4 else dtype
    assert {name: (slot.dtype, slot.shape) for name, slot in slots.items()} == {
        "accumulator": (np.dtype(wide), SHAPE),
        "linear": (np.dtype(wide), SHAPE),
    }
    np.testing.assert_array_equal(slots["accumulator"], 0.25)
    np.testing.assert_array_equal(slots["linear"], 0)


def test_every_rule_there_is_is_compared_here() -> None:
    assert {type(rule) for rule in RULES.values()} == set(built_in_rules())
