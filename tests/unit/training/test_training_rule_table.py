"""Which optimizers have a rule, with which hyperparameters, and why others have none."""

from typing import Any

import pytest

from helpers import rules
from helpers.pages import ROOT
from ropewalk.core.errors import ConfigurationError, MissingExtraError
from ropewalk.core.rules.known_rules import built_in_rules
from ropewalk.core.rules.update_rules import OnServer, OnWorker, UpdateRule
from ropewalk.training.extras import require
from ropewalk.training.own_optimizer import choose_place
from ropewalk.training.rule_table import (
    optax_entries,
    optimizer_of,
    place_keras,
    place_optax,
    place_torch,
    torch_entries,
)

SGD = {"lr": 0.1, "momentum": 0.0, "dampening": 0, "weight_decay": 0, "nesterov": False}
ADAM = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.01, "amsgrad": False}
ADAGRAD = {
    "lr": 0.1,
    "lr_decay": 0,
    "eps": 1e-10,
    "initial_accumulator_value": 0,
    "weight_decay": 0,
}

SERVED: dict[str, tuple[OnServer | OnWorker, UpdateRule, float]] = {
    "torch-sgd": (place_torch("SGD", SGD), rules.SGD(learning_rate=0.1, rate_in_velocity=False), 0),
    "torch-adam-decays-in-the-gradient": (
        place_torch("Adam", ADAM),
        rules.Adam(learning_rate=0.1, beta_2=0.99, epsilon=1e-8, corrected_epsilon=True),
        0.01,
    ),
    "torch-adamw-decays-by-its-rule": (
        place_torch("AdamW", ADAM),
        rules.AdamW(
            learning_rate=0.1, beta_2=0.99, epsilon=1e-8, corrected_epsilon=True, weight_decay=0.01
        ),
        0,
    ),
    "torch-sparse-adam": (
        place_torch("SparseAdam", {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8}),
        rules.Adam(learning_rate=0.1, beta_2=0.99, epsilon=1e-8),
        0,
    ),
    "torch-adagrad-has-epsilon-after-the-root": (
        place_torch("Adagrad", ADAGRAD),
        rules.Adagrad(
            learning_rate=0.1, initial_accumulator_value=0, epsilon=1e-10, epsilon_in_root=False
        ),
        0,
    ),
    "keras-adam": (
        place_keras("Adam", {"learning_rate": 0.1, "beta_1": 0.8, "name": "adam", "clipnorm": 2.0}),
        rules.Adam(learning_rate=0.1, beta_1=0.8, clipnorm=2.0),
        0,
    ),
    "keras-adam-with-decay-is-adamw": (
        place_keras("Adam", {"learning_rate": 0.1, "weight_decay": 0.2}),
        rules.AdamW(learning_rate=0.1, weight_decay=0.2),
        0,
    ),
    "keras-adamw-without-decay": (
        place_keras("AdamW", {"learning_rate": 0.1, "weight_decay": None}),
        rules.AdamW(learning_rate=0.1, weight_decay=0.0),
        0,
    ),
    "optax-rmsprop-momentum-after-the-rate": (
        place_optax(
            [
                (
                    "scale_by_rms",
                    {
                        "decay": 0.8,
                        "eps": 1e-6,
                        "bias_correction": False,
                        "eps_in_sqrt": True,
                        "initial_scale": 0.0,
                    },
                ),
                ("scale_by_schedule", {"rate": 0.1}),
                ("trace", {"decay": 0.9, "nesterov": False, "accumulator_dtype": None}),
            ]
        ),
        rules.RMSprop(learning_rate=0.1, rho=0.8, epsilon=1e-6, momentum=0.9),
        0,
    ),
    "optax-clipped-sgd": (
        place_optax(
            [
                ("clip_by_global_norm", {"max_norm": 2.0}),
                ("trace", {"decay": 0.9, "nesterov": True, "accumulator_dtype": None}),
                ("scale", {"rate": 0.1}),
            ]
        ),
        rules.SGD(
            learning_rate=0.1,
            momentum=0.9,
            nesterov=True,
            rate_in_velocity=False,
            global_clipnorm=2.0,
        ),
        0,
    ),
}


@pytest.mark.parametrize(("place", "rule", "decay"), SERVED.values(), ids=SERVED.keys())
def test_an_optimizer_with_the_formula_of_a_rule_gets_it(
    place: Any, rule: UpdateRule, decay: float
) -> None:
    assert isinstance(place, OnServer), place
    assert optimizer_of(place).rule == rule
    assert place.decay == decay


LEFT: dict[str, tuple[OnServer | OnWorker, str]] = {
    "unknown": (place_torch("Rprop", {"lr": 0.1}), "has no rule"),
    "maximize": (place_torch("SGD", SGD | {"maximize": True}), "maximizes"),
    "dampening": (place_torch("SGD", SGD | {"dampening": 0.5}), "dampens its momentum"),
    "amsgrad": (place_torch("Adam", ADAM | {"amsgrad": True}), "amsgrad"),
    "falling rate": (place_torch("Adagrad", ADAGRAD | {"lr_decay": 0.1}), "lowers its rate"),
    "keras average": (place_keras("SGD", {"learning_rate": 0.1, "use_ema": True}), "use_ema"),
    "keras decay": (place_keras("SGD", {"learning_rate": 0.1, "weight_decay": 0.1}), "decays"),
    "optax chain": (
        place_optax([("scale_by_belief", {}), ("scale", {"rate": 0.1})]),
        "scale_by_belief > scale",
    ),
    "optax without a rate": (place_optax([("scale", {"rate": -0.1})]), "no rule carries out"),
    "optax twice": (place_optax([("scale", {"rate": 1.0})] * 2), "repeats"),
}


@pytest.mark.parametrize(("place", "reason"), LEFT.values(), ids=LEFT.keys())
def test_what_no_rule_computes_runs_on_the_worker_and_says_why(place: Any, reason: str) -> None:
    assert isinstance(place, OnWorker)
    assert reason in place.reason


def test_the_program_decides_whether_deltas_may_be_pushed() -> None:
    served, left = place_torch("SGD", SGD), place_torch("Rprop", {})
    assert choose_place(served, "allow", "SGD") is served
    assert choose_place(left, "allow", "Rprop") is left
    assert isinstance(choose_place(served, "always", "SGD"), OnWorker)
    with pytest.raises(ConfigurationError, match=r"Rprop has no rule.*deltas are forbidden"):
        choose_place(left, "forbid", "Rprop")
    with pytest.raises(ValueError, match="one of allow, forbid, always"):
        choose_place(served, "never", "SGD")  # type: ignore[arg-type]


def test_a_missing_framework_is_an_error_that_names_the_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'ropewalk\[torch\]'") as caught:
        require("a_framework_nobody_has", "torch")
    assert isinstance(caught.value, ImportError)


def test_the_page_lists_every_optimizer_of_the_table() -> None:
    page = (ROOT / "docs" / "bridges.md").read_text()
    named = {*torch_entries()} | {rule.__name__ for rule in built_in_rules()}
    named |= {part for chain in optax_entries() for part in chain} - {"rate"}
    assert [name for name in sorted(named) if f"`{name}`" not in page] == []
