"""Update rules on rows of growing tables: against float64, dense tables, and without kernels."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.embedding import a_table, as_keys, ones, without_numba
from helpers.rules import SGD, Adagrad, Adam, Adamax, AdamW, Ftrl, Lamb, Nadam
from helpers.waiting import scaled
from ropewalk.annexes.embedding.keyed.row_rules import RowUpdater, warm_up
from ropewalk.annexes.embedding.keyed.table import KeyedTable
from ropewalk.annexes.embedding.update_rules import GroupFtrl, RowwiseAdagrad
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.engine import jit
from ropewalk.engine.library import KernelLibrary
from ropewalk.engine.update_kernel import apply_formula

pytestmark = pytest.mark.usefixtures("way")

Reference = Callable[[dict[str, Array], Array, int], None]


def rowwise(rule: RowwiseAdagrad, w: Array, slots: dict[str, Array], g: Array) -> Array:
    slots["accumulator"] = slots["accumulator"] + np.mean(g * g)
    return np.asarray(w - rule.rate(0) * g / (np.sqrt(slots["accumulator"]) + rule.epsilon))


def group(rule: GroupFtrl, w: Array, slots: dict[str, Array], g: Array) -> Array:
    rate = rule.rate(0)
    n, z = slots["accumulator"], slots["linear"]
    after = n + g * g
    z = z + g - (np.sqrt(after) - np.sqrt(n)) / rate * w
    slots["accumulator"], slots["linear"] = after, z
    l1 = rule.l1_regularization_strength
    shrunk = np.sign(z) * np.maximum(np.abs(z) - l1, 0)
    norm, lasso = np.linalg.norm(shrunk), rule.group_regularization_strength * np.sqrt(w.size)
    if norm <= lasso:
        return np.zeros_like(w)
    l2 = 2 * rule.l2_regularization_strength + rule.beta / rate
    return np.asarray(-(1 - lasso / norm) * shrunk / (np.sqrt(after) / rate + l2))


OWN = (
    RowwiseAdagrad(learning_rate=0.1, initial_accumulator_value=0.2),
    GroupFtrl(learning_rate=0.1, group_regularization_strength=0.3),
    GroupFtrl(
        learning_rate=0.1,
        l1_regularization_strength=0.05,
        l2_regularization_strength=0.1,
        group_regularization_strength=0.05,
        beta=0.5,
    ),
)
SHARED = (
    SGD(learning_rate=0.1),
    SGD(learning_rate=0.1, momentum=0.9),
    SGD(learning_rate=0.1, momentum=0.9, nesterov=True, clipvalue=0.5),
    Adagrad(learning_rate=0.1),
    Ftrl(learning_rate=0.1, l1_regularization_strength=0.01),
    Adam(learning_rate=0.1),
    Adam(learning_rate=0.1, corrected_epsilon=True, epsilon=1e-3),
    AdamW(learning_rate=0.1, weight_decay=0.1),
    Adamax(learning_rate=0.1),
    Nadam(learning_rate=0.1),
)


def reference(rule: UpdateRule, start: Array, gradients: list[Array]) -> Array:
    """One row in float64, updated as often as it has gradients."""
    w = start.astype(np.float64)[None]
    slots = {
        slot: np.full((1, 1) if isinstance(rule, RowwiseAdagrad) else w.shape, first)
        for slot, first in rule.slot_start().items()
    }
    for t, gradient in enumerate(gradients, 1):
        g = gradient.astype(np.float64)[None]
        if isinstance(rule, RowwiseAdagrad):
            w = rowwise(rule, w, slots, g)
        elif isinstance(rule, GroupFtrl):
            w = group(rule, w, slots, g)
        else:
            apply_formula(np, rule, w, slots, g, ..., rate=rule.rate(0), updates=t, scale=1.0)
    return np.asarray(w[0])


# Float32 against float64 over 12 updates: errors of 1e-7 add up, and the first steps of Adam divide
# small numbers by each other.
@pytest.mark.parametrize("rule", [*SHARED, *OWN], ids=lambda rule: rule.name)
def test_rows_are_updated_as_often_as_they_are_pushed(rule: UpdateRule) -> None:
    rng = np.random.default_rng(8)
    table = a_table(rule)
    keys = np.arange(-50, 50)
    start = table.read(keys)
    pushed: dict[int, list[Array]] = {key: [] for key in keys.tolist()}
    for step in range(12):
        some = rng.choice(keys, 60, replace=False)
        gradients = rng.standard_normal((60, 4), np.float32)
        table.push(some, gradients, step)
        for key, gradient in zip(some.tolist(), gradients, strict=True):
            pushed[key].append(gradient)
    expected = np.stack(
        [reference(rule, start[i], pushed[key]) for i, key in enumerate(keys.tolist())]
    )
    np.testing.assert_allclose(table.read(keys), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("rule", [*SHARED, *OWN], ids=lambda rule: rule.name)
def test_both_ways_give_the_same_bits(rule: UpdateRule, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> Array:
        rng = np.random.default_rng(8)
        table = a_table(rule)
        for step in range(5):
            keys = rng.integers(-40, 40, 60)
            table.push(keys, rng.standard_normal((60, 4), np.float32), step, scale=0.5)
        return table.read(np.arange(-50, 50))

    first = trained()
    without_numba(monkeypatch)
    np.testing.assert_array_equal(trained(), first)


def test_adam_corrects_a_late_row_by_its_own_updates() -> None:
    table = a_table(Adam(learning_rate=0.1))
    for step in range(200):
        table.push(as_keys(1), ones(1), step)
    before = table.read(as_keys(2))
    table.push(as_keys(2), ones(1), 200)
    # The first step of Adam is the learning rate.
    np.testing.assert_allclose(table.read(as_keys(2)), before - 0.1, atol=1e-6)


def test_adam_goes_on_where_corrections_end() -> None:
    rule = Adam(learning_rate=0.1, beta_1=0.5, beta_2=0.6)
    table = a_table(rule)
    start = table.read(as_keys(1))
    for step in range(100):  # they end at update 41
        table.push(as_keys(1), ones(1), step)
    expected = reference(rule, start[0], [ones(1)[0]] * 100)
    np.testing.assert_allclose(table.read(as_keys(1))[0], expected, rtol=1e-5)


def test_adams_corrections_are_computed_a_part_at_a_time() -> None:
    rule = Adam(learning_rate=0.1, beta_2=0.999)
    updater = RowUpdater("t", rule)
    for most in (1, 1024, 1025, 1026, 5000, 10**6):
        table = updater._table_of(rule, most).reshape(-1, 2)
        # Where they end, 0.999 ** t is 1e-9.
        assert min(most, 20_713) <= len(table) <= 20_713
    for t in (1, 2, 1025, 5000, 20_713):
        assert tuple(table[t - 1]) == rule.corrections(1.0, t)


def test_a_group_lasso_makes_whole_rows_zero() -> None:
    table = a_table(GroupFtrl(learning_rate=0.1, group_regularization_strength=1.0))
    gradients = np.stack([ones(1)[0] * 0.1, ones(1)[0] * 20])
    for step in range(3):
        table.push(as_keys(1, 2), gradients, step)
    weak, strong = table.read(as_keys(1, 2))
    assert (weak == 0).all()
    assert (strong != 0).all()


def test_group_ftrl_without_a_group_is_ftrl() -> None:
    def trained(rule: UpdateRule) -> Array:
        table = a_table(rule)
        for step in range(5):
            table.push(as_keys(1, 2), ones(2) * (step - 2), step)
        return table.read(as_keys(1, 2))

    np.testing.assert_allclose(
        trained(GroupFtrl(learning_rate=0.1)), trained(Ftrl(learning_rate=0.1)), rtol=1e-5
    )


def test_a_rowwise_slot_has_one_number_per_row() -> None:
    table = a_table(RowwiseAdagrad())
    table.push(as_keys(5, 6), ones(2), 0)
    (tile,) = table.tiles()
    assert {name: slot.shape for name, slot in tile.slots.items()} == {"accumulator": (2, 1)}


def test_a_rule_without_a_kernel_for_rows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="table 't': the update rule Lamb has no kernel"):
        a_table(Lamb())


def test_a_beta_beyond_the_table_of_corrections_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"table 't': Adam has the beta 0.999999"):
        a_table(Adam(beta_2=0.999999))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_may_be_wider_than_a_cache_line(dtype: Any) -> None:
    table: KeyedTable = a_table(Adagrad(learning_rate=1.0), dim=70, dtype=np.dtype(dtype))
    keys = np.arange(300)
    start = table.read(keys)
    table.push(keys, np.ones((300, 70), dtype), 0)
    np.testing.assert_allclose(table.read(keys), start - 1 / np.sqrt(1.1 + 1e-7), atol=1e-6)


@pytest.mark.parametrize("rule", [SGD(), RowwiseAdagrad()], ids=lambda rule: rule.name)
def test_a_table_is_defined_and_trained_while_its_kernels_are_compiled(
    rule: UpdateRule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = KernelLibrary(str(tmp_path))
    monkeypatch.setattr("ropewalk.annexes.embedding.keyed.row_rules.library", cold)
    with jit._compiling:  # so that nothing is compiled
        warm_up(rule, np.float32)
        a_table(rule).push(as_keys(1, 2), ones(2), 0)
    cold.wait(time.monotonic() + scaled(60))
    assert len(cold.loaded) == 1
