"""docs/adr/README.md lists every decision with its status, and statuses agree with each other."""

import re
from pathlib import Path

import pytest

from helpers.pages import ROOT

FOLDER = ROOT / "docs" / "adr"
INDEX = (FOLDER / "README.md").read_text()
DECISIONS = {int(path.name[:4]): path for path in sorted(FOLDER.glob("[0-9]*.md"))}

_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_NAMED = re.compile(r"ADR (\d+)")


def name(path: Path) -> str:
    return path.name[:4]


def title(path: Path) -> str:
    match = re.match(r"# (\d+)\. (.+)\n", path.read_text())
    assert match, f"{path.name} does not begin with '# NUMBER. Title'"
    assert int(match[1]) == int(path.name[:4])
    return match[2]


def status(path: Path) -> str:
    """The status of a decision in one line, without links and the last full stop."""
    match = re.search(r"^\*\*Status:\*\* (.+?)\n\n", path.read_text(), re.MULTILINE | re.DOTALL)
    assert match, f"{path.name} has no paragraph '**Status:** …'"
    return _LINK.sub(r"\1", " ".join(match[1].split())).removesuffix(".")


@pytest.mark.parametrize("path", DECISIONS.values(), ids=name)
def test_a_decision_has_its_row_in_the_index(path: Path) -> None:
    row = f"| [{int(name(path))}]({path.name}) | {title(path)} | {status(path)} |"
    assert row in INDEX.splitlines()


def test_the_index_lists_decisions_by_number_and_nothing_else() -> None:
    numbers = [int(number) for number in re.findall(r"^\| \[(\d+)\]", INDEX, re.MULTILINE)]
    assert numbers == list(DECISIONS)


def test_numbers_that_were_never_used_are_named() -> None:
    """A later gap is of a decision that is still being written."""
    (line,) = re.findall(r"^The numbers (.+) were never used\.", INDEX, re.MULTILINE)
    named = [int(number) for number in re.findall(r"\d+", line)]
    assert named == [number for number in range(1, named[-1] + 1) if number not in DECISIONS]


@pytest.mark.parametrize("path", DECISIONS.values(), ids=name)
def test_a_decision_that_changes_another_is_named_by_it(path: Path) -> None:
    for other in map(int, _NAMED.findall(status(path))):
        named = map(int, _NAMED.findall(status(DECISIONS[other])))
        assert int(name(path)) in named, f"ADR {other} does not name it in its status"


@pytest.mark.parametrize("path", DECISIONS.values(), ids=name)
def test_a_status_begins_with_what_became_of_the_decision(path: Path) -> None:
    assert re.match(r"(accepted|superseded by ADR \d+)\b", status(path))
