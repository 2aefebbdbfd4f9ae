"""The worked example of a new update rule is what CONTRIBUTING says: two places, and it runs."""

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from helpers.pages import ROOT
from windlass.core.rules import built_in as folder
from windlass.core.rules.known_rules import built_in, built_in_rules, rule_from_dict
from windlass.core.rules.update_rules import UpdateRule
from windlass.distribute import optimizers
from windlass.engine.rules import apply_formula, hyperparameters

RULE, OPTIMIZER = (
    textwrap.dedent(block)
    for block in re.findall(
        r"^ +```py\n(.*?)^ +```", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL
    )
)


@pytest.fixture
def signum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[UpdateRule]]:
    """The example's file, as if it lay in ``core/rules/built_in``."""
    (tmp_path / "signum.py").write_text(RULE)
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    yield built_in("Signum")
    del sys.modules[f"{folder.__name__}.signum"]


def test_a_file_makes_a_rule_known(signum: type[UpdateRule]) -> None:
    assert signum in built_in_rules()
    rule = signum.model_validate({"learning_rate": 0.1, "beta": 0.8})
    assert rule_from_dict(rule.model_dump(mode="json")) == rule


def test_its_kernel_does_what_its_formula_says(signum: type[UpdateRule]) -> None:
    rule = signum.model_validate({"learning_rate": 0.1})
    (kernel,) = signum.kernels
    w, g, none = np.array([1.0, 2.0, 3.0]), np.array([-1.0, 0.0, 4.0]), np.empty(0)
    expected, slots, m = w.copy(), {"momentum": np.ones(3)}, np.ones(3)
    apply_formula(np, rule, expected, slots, g, ..., rate=0.1, updates=1, scale=1.0)
    h = hyperparameters(rule, updates=1, global_step=0, gradient_scale=1.0)
    kernel.function(w, m, none, none, g, np.zeros(1, np.int64), 3, h)
    assert w.tolist() == expected.tolist() == pytest.approx([0.9, 1.9, 2.9])
    assert m.tolist() == slots["momentum"].tolist()


def test_the_optimizer_constructs_it(signum: type[UpdateRule]) -> None:
    names = dict(vars(optimizers))
    exec(OPTIMIZER, names)  # noqa: S102 - our own page
    assert names["Signum"](0.1, beta=0.8).rule == signum.model_validate(
        {"learning_rate": 0.1, "beta": 0.8}
    )
