"""Every built-in rule is whole: fields, formula, kernel, optimizer and documentation fit."""

import inspect
import re
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from pydantic_core import PydanticUndefined

from helpers.rules import variants
from ropewalk.core.rules.built_in.adam import Adam, AdamW
from ropewalk.core.rules.known_rules import built_in_rules
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.distribute import optimizers
from ropewalk.engine import update_kernel as rules

DOCS = Path(__file__).resolve().parents[3] / "docs" / "training.md"
each_rule = pytest.mark.parametrize("kind", built_in_rules(), ids=lambda kind: kind.__name__)


def test_a_rule_without_a_formula_cannot_be_constructed() -> None:
    class Tiger(UpdateRule):
        slots: ClassVar[dict[str, str | float]] = {"momentum": 0.0}
        name: str = "Tiger"
        learning_rate: float = 1e-4

    with pytest.raises(TypeError, match=r"abstract class Tiger .*'?array_update'?"):
        Tiger()  # type: ignore[abstract]


@each_rule
def test_its_kernels_take_its_slots_and_get_the_scalars_they_read(kind: type[UpdateRule]) -> None:
    slots = tuple(kind.slots)
    assert not kind.kernels or len(slots) <= 3
    for rule in variants(kind):
        kernel = rule.chosen_kernel()
        assert (kernel is None) == (not kind.kernels)
        if kernel is None:
            continue
        assert kernel in kind.kernels
        scalars = rules.hyperparameters(rule, updates=1, global_step=0, gradient_scale=1.0)
        # SGD passes Nesterov's flag to the kernel without momentum, too, which does not look at it.
        assert scalars.size >= kernel.num_scalars
        used = {slots[slot] for slot, at in kernel.optional_slots.items() if scalars[at] > 0}
        assert {*slots[: kernel.num_slots]} | used == set(rule.active_slots())


def test_a_kernel_has_a_name_of_its_own() -> None:
    """The library of compiled kernels, and Numba's files, know them by it."""
    kernels = {id(kernel): kernel for kind in built_in_rules() for kernel in kind.kernels}
    names = [kernel.name for kernel in kernels.values()]
    assert sorted(names) == sorted(set(names))


@each_rule
def test_its_kernel_does_what_its_formula_says(kind: type[UpdateRule]) -> None:
    """As plain Python; ``test_engine_rules_reference.py`` looks at the compiled ones."""
    for rule in variants(kind) if kind.kernels else ():
        kernel, active = rule.chosen_kernel(), rule.active_slots()
        assert kernel is not None
        draw = np.random.default_rng(0)
        w, g = draw.standard_normal(6), draw.standard_normal(6)
        slots = {name: np.abs(draw.standard_normal(6)) for name in active}
        scalars = rules.hyperparameters(rule, updates=3, global_step=0, gradient_scale=0.5)
        expected, after = w.copy(), {name: slot.copy() for name, slot in slots.items()}
        rules.apply_formula(
            np, rule, expected, after, g, ..., rate=rule.rate(0), updates=3, scale=0.5
        )
        none = np.empty(0)
        s0, s1, s2 = (*(slots.get(name, none) for name in kind.slots), none, none, none)[:3]
        kernel.function(w, s0, s1, s2, g, np.zeros(1, np.int64), 6, scalars)
        for name, slot in slots.items():
            np.testing.assert_allclose(slot, after[name], rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(w, expected, rtol=1e-12)


@each_rule
def test_its_scalars_depend_on_the_count_only_if_it_says_so(kind: type[UpdateRule]) -> None:
    if not kind.kernels:
        return  # on each variable for itself, with its count
    first, tenth = (tuple(kind().scalars(0.1, t)) for t in (1, 10))  # type: ignore[call-arg]
    assert (first != tenth) is kind.counts_updates


@each_rule
def test_it_divides_by_a_rate_of_zero_only_if_such_steps_are_skipped(
    kind: type[UpdateRule],
) -> None:
    rule = variants(kind)[1]
    slots = {name: np.ones(2) for name in kind.slots}
    with np.errstate(all="ignore"):
        try:
            value = rule.array_update(np, np.ones(2), slots, np.ones(2), 0.0, 1)
            finite = bool(np.isfinite(value).all())
        except ZeroDivisionError:
            finite = False
    assert finite is not kind.skips_rate_zero


@each_rule
def test_programs_construct_it_by_an_optimizer_with_the_same_arguments(
    kind: type[UpdateRule],
) -> None:
    optimizer = getattr(optimizers, kind.__name__)
    assert kind.__name__ in optimizers.__all__
    taken = {
        name: parameter.default
        for name, parameter in inspect.signature(optimizer).parameters.items()
        if name != "clipping"
    }
    taken |= dict.fromkeys(optimizers.Clipping.__annotations__)
    del taken["name"]  # an optimizer's own: a rule has another one
    fields = {name: field.default for name, field in kind.model_fields.items() if name != "name"}
    assert PydanticUndefined not in fields.values()
    assert taken == fields
    assert type(optimizer().rule) is kind


def test_the_documentation_lists_every_rule() -> None:
    rows = re.findall(r"^\| `(\w+)\(", DOCS.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(kind.__name__ for kind in built_in_rules())


def test_adam_and_adamw_differ_in_the_decay_alone() -> None:
    plain, decayed = tuple(Adam().scalars(0.1, 3)), AdamW(weight_decay=0.25)
    assert tuple(decayed.scalars(0.1, 3)) == (*plain[:-1], 0.1 * 0.25)
