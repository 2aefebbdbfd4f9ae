"""The planted defects: each changes something that is there, and names tests that are there."""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MUTANTS: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/mutants.toml").read_text())["mutant"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: str(each["name"]))
def test_a_planted_defect_changes_one_place_and_names_its_tests(mutant: dict[str, Any]) -> None:
    assert mutant["old"] in (ROOT / mutant["file"]).read_text()
    assert mutant["new"] != mutant["old"]
    for name in mutant["tests"]:
        assert (ROOT / name.partition("::")[0]).exists(), name


def test_no_two_planted_defects_have_one_name() -> None:
    assert {
        name for name, count in Counter(each["name"] for each in MUTANTS).items() if count > 1
    } == set()
