"""Until a kernel is there its rule's formula does the same, to the bit, and refuses the same."""

from collections.abc import Sequence

import numpy as np
import pytest

from helpers.rules import variants
from ropewalk.core.arrays.dtypes import Array, DType
from ropewalk.core.rules.built_in.adagrad import Ftrl
from ropewalk.core.rules.known_rules import built_in_rules
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.engine.library import library
from ropewalk.engine.update_kernel import UpdateKernel, formula_kernel, hyperparameters

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
COUNT, WIDTH = 40_000, 5  # elements, more than two tiles


RULES = [rule for kind in built_in_rules() if kind.kernels for rule in variants(kind)]


def updated(
    rule: UpdateRule, dtype: DType, rows: Array | None, width: int, *, compiled: bool
) -> list[bytes]:
    """A value and its slots after three updates."""
    update, draw = rule.chosen_kernel(), np.random.default_rng(3)
    assert update is not None
    value = draw.standard_normal(COUNT).astype(dtype)
    active = rule.active_slots()
    slots = [
        np.abs(draw.standard_normal(COUNT if name in active else 0)).astype(dtype)
        for name in rule.slots
    ]
    for count in range(1, 4):
        numbers = hyperparameters(rule, updates=count, global_step=0, gradient_scale=0.3)
        gradient = draw.standard_normal(COUNT if rows is None else rows.size * width).astype(dtype)
        kernel = (
            library.update_kernel(update, dtype)
            if compiled
            else formula_kernel(rule, update, dtype, rate=rule.rate(0), updates=count)
        )
        kernel(value, slots, gradient, rows, width, numbers.astype(dtype))
    return [value.tobytes(), *(slot.tobytes() for slot in slots)]


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize(
    ("rows", "width"),
    [
        pytest.param(None, 0, id="dense"),
        pytest.param([1, 2, 7998], WIDTH, id="rows"),
        pytest.param(range(0, 8000, 2), WIDTH, id="many rows"),
        pytest.param([1], COUNT // 2, id="a wide row"),
    ],
)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_its_formula_gives_the_bits_of_its_kernel(
    rule: UpdateRule, rows: Sequence[int] | None, width: int, dtype: DType
) -> None:
    chosen = None if rows is None else np.array(rows, np.int64)
    formula, kernel = (
        updated(rule, dtype, chosen, width, compiled=compiled) for compiled in (False, True)
    )
    assert formula == kernel


def test_other_powers_than_a_root_differ_in_the_last_place_at_most() -> None:
    """Of FTRL alone: the compiler's ``pow`` is another one than NumPy's."""
    rule = Ftrl(learning_rate_power=-0.4)
    formula, kernel = (
        np.frombuffer(updated(rule, F64, None, 0, compiled=compiled)[0])
        for compiled in (False, True)
    )
    np.testing.assert_allclose(formula, kernel, rtol=1e-9, atol=1e-12)


def a_kernel(rule: UpdateRule) -> UpdateKernel:
    update = rule.chosen_kernel()
    assert update is not None
    return formula_kernel(rule, update, F32, rate=0.1, updates=1)


def test_wrong_arguments_are_refused_before_anything_is_changed() -> None:
    value, slots = np.ones(6, np.float32), [np.ones(6, np.float32)] * 2
    scalars, one = np.ones(8, np.float32), np.ones(1, np.float32)
    with pytest.raises(ValueError, match="gradient has 1 elements, expected 6"):
        a_kernel(Ftrl())(value, slots, one, None, 0, scalars)
    with pytest.raises(ValueError, match="row 3 is out of range"):
        a_kernel(Ftrl())(value, slots, np.ones(2, np.float32), np.array([3]), 2, scalars)
    assert value.tolist() == [1] * 6
