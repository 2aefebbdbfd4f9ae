"""``docs/tf-distribute.md`` says what is there: it is made of both namespaces, and none has changed
since.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "tf_names.py"

if not TOOL.exists():
    pytest.skip("needs a checkout: tools/ is not in an sdist", allow_module_level=True)


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tf_names", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tf_names"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def dumped(tool: ModuleType) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tool.NAMES.read_text())
    return found


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_page_is_fresh() -> None:
    result = run_tool("--check")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.tensorflow
@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow: make parity"
)
def test_the_dump_is_of_the_installed_tensorflow() -> None:
    result = run_tool("--dump", "--check")
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_name_has_a_state(tool: ModuleType, dumped: dict[str, Any]) -> None:
    states = tool.states_of(dumped["names"], tool.read_notes(tool.NOTES.read_text()))
    assert states.keys() == dumped["names"].keys()
    page = tool.PAGE.read_text()
    for path, described in dumped["names"].items():
        name = path.rpartition(".")[2]
        if described["kind"] != "module":
            assert f"`{name}" in page or f"`{path}" in page, path


def test_what_is_the_same_takes_what_tensorflows_takes(
    tool: ModuleType, dumped: dict[str, Any]
) -> None:
    names = dumped["names"]
    states = tool.states_of(names, tool.read_notes(tool.NOTES.read_text()))
    same = [path for path, state in states.items() if state.state == "same"]
    assert len(same) > 150
    for path in same:
        owner = names[names[path]["of"]] if names[path]["kind"] == "alias" else names[path]
        assert tool.difference(owner, states[path].here) is None, path


def test_a_name_that_is_forgotten_is_noticed(tool: ModuleType) -> None:
    names = {"tf.distribute.NewStrategy": {"kind": "class", "signature": []}}
    with pytest.raises(tool.Problem, match=r"there is no ropewalk\.distribute\.NewStrategy"):
        tool.states_of(names, {})


def test_a_note_that_is_out_of_date_is_noticed(tool: ModuleType) -> None:
    names = {"tf.distribute.ReduceOp": {"kind": "class", "signature": None}}
    with pytest.raises(tool.Problem, match="is here, and its note says 'later'"):
        tool.states_of(names, {"tf.distribute.ReduceOp": tool.Note("later", "")})
    with pytest.raises(tool.Problem, match=r"tf\.distribute\.Gone has a note, and is no name"):
        tool.states_of(names, {"tf.distribute.Gone": tool.Note("no", "")})


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        pytest.param(["a", "b="], ["a", "b="], None, id="equal"),
        pytest.param(["a", "b"], ["a", "b=", "c="], None, id="more-of-our-own"),
        pytest.param(["a"], ["a", "*", "c="], None, id="keywords-of-our-own"),
        pytest.param(["a", "b="], ["a"], "has no parameter 'b'", id="missing"),
        pytest.param(["a", "b="], ["a", "b"], "parameter 'b' must be given", id="no-default"),
        pytest.param(["a", "b="], ["b", "a="], "parameter 'a' has another place", id="order"),
        pytest.param(["a", "b="], ["a", "*", "b="], "'b' has another place", id="keyword-alone"),
        pytest.param(["a"], ["a", "b"], r"\['b'\] must be given", id="more-is-needed"),
        pytest.param(["*args", "**kwargs"], ["*args", "a="], None, id="any-number"),
        pytest.param(["*args"], ["a"], r"takes no \*args", id="not-any-number"),
        pytest.param(["**kwargs"], ["a", "b"], None, id="nobody-makes-one"),
        pytest.param(None, ["a"], None, id="enumeration"),
    ],
)
def test_parameters_are_compared(
    tool: ModuleType, theirs: list[str] | None, ours: list[str], why: str | None
) -> None:
    said = tool.refusal(theirs, ours)
    assert (said is None) == (why is None)
    assert re.search(why or "", said or "")
