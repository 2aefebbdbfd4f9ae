"""The update rules for a GPU's memory, run with NumPy on rows and halves, agree with the host's.

``memory.py`` takes NumPy for CuPy here, so that a machine without a GPU sees a difference; what
CuPy makes of the formulas is a GPU machine's test. Of whole float32 and float64 values the formulas
give the bits of the kernels: ``test_engine_formula_kernel.py``.

Halves are computed in float32 and rounded once per step. Both sides may associate differently, so
a rounding may flip: two units in the last place.
"""

from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.rules import Adam, Ftrl, variants
from ropewalk.core.arrays.dtypes import BFLOAT16, FLOATS, DType
from ropewalk.core.rules.known_rules import built_in_rules
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.distribute.variables.local import LocalVariable
from ropewalk.distribute.variables.memory import start_slots
from ropewalk.engine.update_kernel import apply_formula

STEPS = 6
SHAPE = (7, 3)
RULES = [rule for kind in built_in_rules() for rule in variants(kind, learning_rate=0.1)]
ULPS: dict[DType, float] = {np.dtype(np.float16): 2 * 2.0**-10, BFLOAT16: 2 * 2.0**-7}


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "rows"])
@pytest.mark.parametrize("dtype", ULPS, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_in_half_precision(rule: UpdateRule, dtype: DType, sparse: bool) -> None:
    rng = np.random.default_rng(3)
    start = rng.normal(size=SHAPE).astype(dtype)
    theirs: Any = rw.Variable(start)
    assert isinstance(theirs, LocalVariable)
    mine = start.copy()
    slots = start_slots(np, rule, mine)
    for step in range(STEPS):
        given: Any = rng.normal(size=SHAPE).astype(dtype)
        values, index = given, ...
        if sparse:  # some rows twice, in no order
            given = rw.IndexedSlices(given, rng.integers(0, SHAPE[0], SHAPE[0]))
            rows = given.combined()
            values, index = rows.values, rows.indices
        theirs.apply(given, rule, gradient_scale=0.5)
        apply_formula(
            np, rule, mine, slots, values, index, rate=rule.rate(step), updates=step + 1, scale=0.5
        )
    their_slots, updates, _ = theirs.slots()
    assert updates == STEPS
    assert mine.dtype == dtype
    wide = [array.astype(np.float64) for array in (mine, theirs.numpy())]
    np.testing.assert_allclose(wide[0], wide[1], rtol=ULPS[dtype], atol=ULPS[dtype])
    assert slots.keys() == their_slots.keys()
    for name, slot in slots.items():
        assert slot.dtype == their_slots[name].dtype
        # A slot of a half is float32, but FTRL's follow the rounded value.
        np.testing.assert_allclose(slot, their_slots[name], rtol=ULPS[dtype], atol=ULPS[dtype])
    assert not np.array_equal(mine, start), "a rule that did nothing would agree with itself"


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
