"""CHANGELOG.md says of each version what its users need to know, in a few minutes' reading."""

import re

import pytest

from helpers.pages import ROOT

PAGE = (ROOT / "CHANGELOG.md").read_text()
VERSIONS = re.findall(r"^## .*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("entry", VERSIONS, ids=lambda entry: entry.splitlines()[0])
def test_an_entry_is_named_by_its_version_and_short(entry: str) -> None:
    assert re.match(r"## \[(Unreleased|\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2})", entry)
    assert len(entry.encode()) <= 12_000


def test_those_who_knew_the_project_by_its_old_name_find_the_new_one() -> None:
    (line,) = re.findall(r"^.*Windlass.*$", PAGE, re.MULTILINE)
    assert "called" in line
