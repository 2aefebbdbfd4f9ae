"""Taking an annex out of a copy of the tree: what goes with it, and what stays."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.processes import ROOT

if not (ROOT / "tools").is_dir():
    pytest.skip("needs a checkout: tools/ is not in an sdist", allow_module_level=True)


@pytest.fixture
def without_annex(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield importlib.import_module("without_annex")
    sys.modules.pop("without_annex", None)


def test_an_annex_that_imports_another_goes_with_it(without_annex: Any, tmp_path: Path) -> None:
    for annex, text in (
        ("lower", "from ...core import arrays"),
        ("upper", "from ..lower.parts import Part"),
        ("later", "def f():\n    from ..lower import parts"),
        ("other", "from .lower import parts"),
    ):
        (tmp_path / annex).mkdir()
        (tmp_path / annex / "a.py").write_text(text)
    assert without_annex.builds_on("lower", tmp_path) == ["later", "upper"]
    assert without_annex.builds_on("upper", tmp_path) == []


def test_a_copy_lacks_the_annex_its_tests_and_their_helpers_and_nothing_else(
    without_annex: Any, tmp_path: Path
) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    files = [
        "annexes/lower/a.py",
        "annexes/upper/a.py",
        "annexes/other/a.py",
        "core/lower.py",
        "tests/annex/lower/test_a.py",
        "tests/annex/other/test_a.py",
        "tests/helpers/lower.py",
        "tests/helpers/upper/a.py",
        "tests/helpers/waiting.py",
    ]
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    (root / "annexes/upper/a.py").write_text("from ..lower.a import b")
    gone = without_annex.copy_without("lower", copy, root, map(Path, files))
    assert gone == ["lower", "upper"]
    left = sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*.py"))
    assert left == [
        "annexes/other/a.py",
        "core/lower.py",
        "tests/annex/other/test_a.py",
        "tests/helpers/waiting.py",
    ]


def test_every_annex_has_tests_of_its_own(without_annex: Any) -> None:
    lacking = [
        annex
        for annex in without_annex.annexes()
        if not any(list((ROOT / at).rglob("test_*.py")) for at in without_annex.places(annex))
    ]
    assert lacking == []
