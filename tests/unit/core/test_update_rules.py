"""Update rules as data: they travel whole, and know their slots."""

import pydantic
import pytest

from helpers.rules import SGD, Adagrad, Adam, AdamW, Ftrl, RMSprop
from ropewalk.core.rules.known_rules import rule_from_dict
from ropewalk.core.rules.schedules import CosineDecay, PiecewiseConstantDecay
from ropewalk.core.rules.update_rules import UpdateRule

RULES = [
    pytest.param(SGD(), id="SGD"),
    pytest.param(SGD(learning_rate=0.5, momentum=0.9, nesterov=True), id="Nesterov"),
    pytest.param(SGD(clipvalue=1.0, global_clipnorm=2.0), id="SGD, clipped"),
    pytest.param(Adagrad(initial_accumulator_value=0.2), id="Adagrad"),
    pytest.param(RMSprop(momentum=0.5, centered=True), id="RMSprop"),
    pytest.param(Adam(learning_rate=1), id="Adam with a whole number for a rate"),
    pytest.param(AdamW(weight_decay=0.1), id="AdamW"),
    pytest.param(Ftrl(l1_regularization_strength=0.1), id="Ftrl"),
    pytest.param(
        Adam(learning_rate=CosineDecay(initial_learning_rate=0.1, decay_steps=9)),
        id="Adam on a schedule",
    ),
    pytest.param(
        SGD(learning_rate=PiecewiseConstantDecay(boundaries=(5,), values=(1.0, 0.1))),
        id="SGD in pieces",
    ),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", ["python", "json"])
def test_a_rule_comes_back_from_its_fields(rule: UpdateRule, mode: str) -> None:
    back = rule_from_dict(rule.model_dump(mode=mode))
    assert type(back) is type(rule)
    assert back == rule


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"name": "SGD", "lr": 0.1}, id="unknown field"),
        pytest.param({"name": "Tiger"}, id="unknown rule"),
        pytest.param({"learning_rate": 0.1}, id="no name"),
        pytest.param({"name": 3}, id="a number for a name"),
        pytest.param({"name": "adam"}, id="a module, not a rule"),
        pytest.param({"name": "AdamLike"}, id="what rules are derived from"),
        pytest.param({"name": "__init__"}, id="a module of Python's own"),
        pytest.param({"name": "adam.os"}, id="a module elsewhere"),
        pytest.param({"name": "Adam", "beta_1": 1.0}, id="beta of 1 never learns"),
        pytest.param({"name": "SGD", "momentum": -0.1}, id="negative momentum"),
        pytest.param({"name": "SGD", "clipvalue": 0}, id="clipping to nothing"),
        pytest.param({"name": "SGD", "learning_rate": "fast"}, id="rate in words"),
        pytest.param(
            {"name": "SGD", "learning_rate": {"name": "CosineDecay", "decay_steps": 3}},
            id="half a schedule",
        ),
    ],
)
def test_what_is_no_rule_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"knows no update rule|is not allowed: |has no argument"):
        rule_from_dict(fields)


@pytest.mark.parametrize(
    ("rule", "changes", "message"),
    [
        (SGD(), {"lr": 0.1}, "SGD has no hyperparameter 'lr'"),
        (SGD(), {"name": "Adam"}, "SGD has no hyperparameter 'name'"),
        (Adam(), {"learning_rate": -1.0}, "learning_rate=-1.0.*greater than or equal to 0"),
        (SGD(), {"momentum": 0.9}, "momentum=0.9 needs other slot variables"),
        (SGD(momentum=0.9), {"momentum": 0.0}, "needs other slot variables"),
        (Adagrad(), {"initial_accumulator_value": 0.0}, "how slot variables begin"),
    ],
    ids=["unknown", "name", "negative", "first-slot", "no-slot", "start"],
)
def test_what_cannot_change_is_said(
    rule: UpdateRule, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        rule.changed(changes)


def test_some_updates_may_have_other_hyperparameters() -> None:
    rule = SGD(learning_rate=CosineDecay(0.1, 9), momentum=0.9)
    changed = rule.changed({"learning_rate": 0.5, "momentum": 0.8, "nesterov": True})
    assert changed == SGD(learning_rate=0.5, momentum=0.8, nesterov=True)
    assert rule.momentum == 0.9


def test_a_rule_does_not_change() -> None:
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        SGD().momentum = 0.5


@pytest.mark.parametrize(
    ("rule", "slots"),
    [
        pytest.param(SGD(), {}, id="SGD needs none"),
        pytest.param(SGD(momentum=0.9), {"momentum": 0.0}, id="momentum needs its own"),
        pytest.param(Adagrad(), {"accumulator": 0.1}, id="Adagrad starts where told"),
        pytest.param(
            Adagrad(initial_accumulator_value=0.0), {"accumulator": 0.0}, id="Adagrad from nothing"
        ),
        pytest.param(RMSprop(), {"velocity": 0.0}, id="RMSprop"),
        pytest.param(
            RMSprop(momentum=0.1), {"velocity": 0.0, "momentum": 0.0}, id="RMSprop with momentum"
        ),
        pytest.param(
            RMSprop(centered=True),
            {"velocity": 0.0, "average_gradient": 0.0},
            id="RMSprop, centred",
        ),
        pytest.param(Adam(), {"momentum": 0.0, "velocity": 0.0}, id="Adam"),
        pytest.param(AdamW(), {"momentum": 0.0, "velocity": 0.0}, id="AdamW"),
        pytest.param(
            Ftrl(initial_accumulator_value=0.3), {"accumulator": 0.3, "linear": 0.0}, id="Ftrl"
        ),
    ],
)
def test_a_rule_has_the_slots_its_hyperparameters_need(
    rule: UpdateRule, slots: dict[str, float]
) -> None:
    assert rule.slot_start() == slots
    assert list(rule.active_slots()) == list(slots)


def test_the_rate_is_a_number_or_follows_the_global_step() -> None:
    assert SGD(learning_rate=0.3).rate(step=10**6) == 0.3
    pieces = PiecewiseConstantDecay(boundaries=(5,), values=(1.0, 0.1))
    assert [SGD(learning_rate=pieces).rate(step) for step in (5, 6)] == [1.0, 0.1]


@pytest.mark.parametrize(
    ("rule", "rate"),
    [(SGD(), 0.01), (Adagrad(), 0.001), (RMSprop(), 0.001), (Adam(), 0.001), (AdamW(), 0.001)],
    ids=lambda value: type(value).__name__ if isinstance(value, pydantic.BaseModel) else "",
)
def test_default_rates_are_those_of_keras(rule: UpdateRule, rate: float) -> None:
    assert rule.learning_rate == rate
