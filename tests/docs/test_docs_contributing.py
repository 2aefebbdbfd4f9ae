"""The worked examples of a rule, a launcher and a metric are what CONTRIBUTING says, and run."""

import json
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from click.testing import CliRunner

from helpers.pages import ROOT
from ropewalk.core.report import TaskReport
from ropewalk.core.rules import built_in as folder
from ropewalk.core.rules.known_rules import built_in, built_in_rules, rule_from_dict
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.distribute import optimizers
from ropewalk.engine.update_kernel import apply_formula, hyperparameters
from ropewalk.launch.cli import LazyGroup
from ropewalk.telemetry import catalogue
from ropewalk.telemetry.task_metrics import report_samples

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
RULE, OPTIMIZER, LAUNCHER = (
    textwrap.dedent(block)
    for block in re.findall(r"^ +```py\n(.*?)^ +```", PAGE, re.MULTILINE | re.DOTALL)
)
(METRIC,) = re.findall(r"^_metric\(.*\)$", PAGE, re.MULTILINE)


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType], None]:
    """Makes files of the test's folder modules of a package."""

    def lie_in(package: ModuleType) -> None:
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])

    return lie_in


@pytest.fixture
def signum(tmp_path: Path, beside: Callable[[ModuleType], None]) -> Iterator[type[UpdateRule]]:
    """The example's file, as if it lay in ``core/rules/built_in``."""
    (tmp_path / "signum.py").write_text(RULE)
    beside(folder)
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


@pytest.mark.annex("jobfile")
def test_a_file_and_a_line_make_a_launcher(
    tmp_path: Path, beside: Callable[[ModuleType], None]
) -> None:
    from ropewalk.annexes import jobfile

    (tmp_path / "tmux.py").write_text(LAUNCHER)
    beside(jobfile)
    (line,) = re.findall(r'`"tmux": "(.*)"`', PAGE)
    group = LazyGroup(members={"tmux": line})
    (tmp_path / "job.yaml").write_text(
        "name: digits\nprogram: train.py\nsettings: {save_every_s: 9}\n"
        "roles: {chief: {count: 1}, ps: {count: 2}, worker: {count: 1}}\n"
    )
    command = ["tmux", "--job", str(tmp_path / "job.yaml"), "--dry-run"]
    shown = CliRunner().invoke(group, command, catch_exceptions=False).output.splitlines()
    assert len(shown) == 4
    words = shlex.split(shlex.split(shown[-1])[-1])
    variables = dict(word.split("=", 1) for word in words[1 : words.index("ropewalk")])
    assert json.loads(variables["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}
    assert variables["ROPEWALK_SAVE_EVERY_S"] == "9.0"
    assert words[words.index("ropewalk") :] == ["ropewalk", "run", "train.py"]


def test_a_row_makes_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "CATALOGUE", dict(catalogue.CATALOGUE))
    exec(METRIC, vars(catalogue))  # noqa: S102 - our own page
    shown = {each.metric.name: each.value for each in report_samples(TaskReport(total_steps=7))}
    assert shown["ropewalk_goal_steps"] == 7
