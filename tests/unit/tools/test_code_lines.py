"""What counts as a line of code, and what is said of all of them."""

import importlib
import sys
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest

from helpers.processes import ROOT

if not (ROOT / "tools").is_dir():
    pytest.skip("needs a checkout: tools/ is not in an sdist", allow_module_level=True)


@pytest.fixture
def code_lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield importlib.import_module("code_lines")
    sys.modules.pop("code_lines", None)


MODULE = dedent(
    '''\
    """What it is.

    Why.
    """

    import os
    from a import (  # a comment behind code
        b,
    )

    # A comment.
    LIMIT = 3
    """What it means."""

    TEXT = """
    not a docstring
    """


    def outer(x: int) -> int:
        """Do it."""
        # A comment.
        def inner() -> int:
            return (
                x + 1
            )

        return inner()
    '''
)


def test_docstrings_comments_and_blank_lines_are_no_code(code_lines: Any) -> None:
    counted = code_lines.count(MODULE)
    assert counted.in_all == 28
    assert counted.code == 4 + 1 + 3 + 6
    assert counted.imports == 4


def test_a_function_is_as_long_as_its_body_with_those_inside_it(code_lines: Any) -> None:
    assert sorted(code_lines.count(MODULE).functions) == [3, 5]


def test_an_empty_module_has_no_lines(code_lines: Any) -> None:
    counted = code_lines.count("")
    assert (counted.code, counted.in_all, counted.functions) == (0, 0, ())


def test_the_report_sums_rooms_and_keeps_tests_apart(code_lines: Any) -> None:
    module = code_lines.count(MODULE, "a/b.py")
    text = code_lines.report({"core": [module], "net": [module, module]}, [module])
    rows = [line.split() for line in text.splitlines()]
    assert ["net", "2", "28", "56"] in rows
    assert ["product", "3", "42", "84"] in rows
    assert ["tests", "1", "14", "28"] in rows
    assert "imports: 28.6% of the code" in text
    assert "median 4 lines of code, nine in ten at most 5" in text
    assert "largest module: a/b.py, 14 lines of code, 28 in all" in text


def test_every_room_is_counted_and_generated_modules_are_not(code_lines: Any) -> None:
    rooms = code_lines.rooms()
    assert set(rooms) >= {"ropewalk", "core", "net", "server"}
    assert all("_pb2" not in each.name for found in rooms.values() for each in found)
    names = [each.name for found in rooms.values() for each in found]
    assert "src/ropewalk/testing.py" in names
    assert len(names) == len(set(names))
