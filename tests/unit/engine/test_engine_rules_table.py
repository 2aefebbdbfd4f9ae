"""The table of update rules is whole: a rule that lacks a part is an error before anything runs."""

import inspect
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic_core import PydanticUndefined

from windlass.core.rules import update_rules
from windlass.core.rules.update_rules import BUILT_IN, SGD, Adam, UpdateRule
from windlass.distribute import optimizers
from windlass.engine import rules
from windlass.engine.kernels import UPDATE_FUNCTIONS
from windlass.engine.rules import RuleEntry, check_complete, entries, entry_of, register

DOCS = Path(__file__).resolve().parents[3] / "docs" / "training.md"
each_entry = pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.rule.__name__)


class Tiger(UpdateRule):
    """A rule that nobody registered."""

    slots: ClassVar[dict[str, str | float]] = {"momentum": 0.0}
    name: str = "Tiger"
    learning_rate: float = 1e-4


def an_entry(**changes: Any) -> RuleEntry:
    given: dict[str, Any] = {
        "rule": Tiger,
        "kernels": ("tiger",),
        "kernel": lambda _: "tiger",
        "slots": ("momentum",),
        "scalars": lambda rule, rate, t: (rate,),
        "array_update": lambda *_: None,
    }
    return RuleEntry(**given | changes)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten."""
    monkeypatch.setattr(rules, "_ENTRIES", dict(rules._ENTRIES))


def test_every_rule_of_the_union_has_an_entry() -> None:
    assert {entry.rule for entry in entries()} == set(BUILT_IN)


def test_a_rule_without_an_entry_is_an_error_at_import() -> None:
    with pytest.raises(TypeError, match=r"no entry in engine/rules\.py for the update rules Tiger"):
        check_complete([*BUILT_IN, Tiger])


def test_a_rule_without_an_entry_is_named_when_it_is_looked_up() -> None:
    unknown = Tiger()
    with pytest.raises(
        TypeError, match=r"Tiger is no registered update rule; those are SGD, Adagrad"
    ):
        entry_of(unknown)


@pytest.mark.usefixtures("table")
def test_a_registered_rule_is_found() -> None:
    entry = an_entry()
    register(entry)
    assert entry_of(Tiger()) is entry


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": SGD}, "SGD is registered already"),
        ({"slots": ()}, r"Tiger has the slots \('momentum',\), its entry says \(\)"),
        ({"slots": ("velocity",)}, r"its entry says \('velocity',\)"),
        ({"kernels": ()}, "Tiger has some of kernels, kernel and scalars"),
        ({"scalars": None}, "a rule with a kernel needs all three"),
    ],
    ids=["twice", "slot-left-out", "another-slot", "no-kernel", "no-scalars"],
)
def test_an_entry_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        register(an_entry(**changes))


@pytest.mark.parametrize("part", ["rule", "slots", "array_update"])
def test_an_entry_cannot_be_made_without_one_of_its_parts(part: str) -> None:
    given = {name: getattr(an_entry(), name) for name in RuleEntry.__slots__ if name != part}
    with pytest.raises(TypeError, match=f"missing .*'{part}'"):
        RuleEntry(**given)


def options(rule: type[Any]) -> list[Any]:
    """The rule as it is by default, and with every flag and number turned on."""
    given: dict[str, Any] = {}
    for name, field in rule.model_fields.items():
        if field.annotation is bool:
            given[name] = True
        elif field.annotation is float and field.default == 0.0:
            given[name] = 0.5
    return [rule(), rule(**given)]


@each_entry
def test_its_kernels_exist_take_its_slots_and_get_the_scalars_they_read(entry: RuleEntry) -> None:
    for rule in options(entry.rule) if entry.kernel is not None else ():
        assert entry.kernel is not None
        name = entry.kernel(rule)
        assert name in entry.kernels
        kernel = UPDATE_FUNCTIONS[name]
        scalars = rules.hyperparameters(rule, updates=1, global_step=0, gradient_scale=1.0)
        # SGD passes Nesterov's flag to the kernel without momentum, too, which does not look at it.
        assert scalars.size >= kernel.num_scalars
        active = set(rule.active_slots())
        always = set(entry.slots[: kernel.num_slots])
        used = {entry.slots[slot] for slot, at in kernel.optional_slots.items() if scalars[at] > 0}
        assert always | used == active
    assert all(name in UPDATE_FUNCTIONS for name in entry.kernels)


def test_every_kernel_serves_a_rule() -> None:
    assert {name for entry in entries() for name in entry.kernels} == set(UPDATE_FUNCTIONS)


@each_entry
def test_its_scalars_depend_on_the_count_only_if_it_says_so(entry: RuleEntry) -> None:
    rule = entry.rule()
    if entry.scalars is None:
        assert not entry.counts_updates, "every variable is for itself, with its count"
        return
    first, tenth = (tuple(entry.scalars(rule, 0.1, t)) for t in (1, 10))
    assert (first != tenth) is entry.counts_updates


@each_entry
def test_it_divides_by_a_rate_of_zero_only_if_such_steps_are_skipped(entry: RuleEntry) -> None:
    import numpy as np

    rule = options(entry.rule)[1]
    slots = {name: np.ones(2) for name in entry.slots}
    with np.errstate(all="ignore"):
        try:
            value = entry.array_update(np, rule, np.ones(2), slots, np.ones(2), 0.0, 1)
            finite = bool(np.isfinite(value).all())
        except ZeroDivisionError:
            finite = False
    assert finite is not entry.skips_rate_zero


@each_entry
def test_programs_construct_it_by_an_optimizer_with_the_same_arguments(entry: RuleEntry) -> None:
    optimizer = getattr(optimizers, entry.rule.__name__)
    assert entry.rule.__name__ in optimizers.__all__
    taken = {
        name: parameter.default
        for name, parameter in inspect.signature(optimizer).parameters.items()
        if name != "clipping"
    }
    taken |= dict.fromkeys(optimizers.Clipping.__annotations__)
    fields = {
        name: field.default for name, field in entry.rule.model_fields.items() if name != "name"
    }
    assert PydanticUndefined not in fields.values()
    assert taken == fields
    assert type(optimizer().rule) is entry.rule


def test_the_documentation_lists_every_rule() -> None:
    rows = re.findall(r"^\| `(\w+)\(", DOCS.read_text(), re.MULTILINE)
    assert rows == [entry.rule.__name__ for entry in entries()]


def test_adam_and_adamw_differ_in_the_decay_alone() -> None:
    scalars, of_adamw = entry_of(Adam()).scalars, entry_of(update_rules.AdamW()).scalars
    assert scalars is not None
    assert of_adamw is not None
    plain, decayed = tuple(scalars(Adam(), 0.1, 3)), update_rules.AdamW(weight_decay=0.25)
    assert tuple(of_adamw(decayed, 0.1, 3)) == (*plain[:-1], 0.1 * 0.25)
