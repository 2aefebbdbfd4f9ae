"""What is counted in messages: one thing is not several."""

import ast

import pytest

from helpers.sources import sources, tree
from ropewalk.core.terminal import counted


@pytest.mark.parametrize(
    ("count", "words", "said"),
    [
        (0, ("cut",), "0 cuts"),
        (1, ("cut",), "1 cut"),
        (2, ("cut",), "2 cuts"),
        (1, ("boundary", "boundaries"), "1 boundary"),
        (3, ("boundary", "boundaries"), "3 boundaries"),
    ],
)
def test_one_thing_is_not_several(count: int, words: tuple[str, ...], said: str) -> None:
    assert counted(count, *words) == said


def test_what_is_counted_on_the_screen_is_counted_by_one_function() -> None:
    """An s that depends on a number is written nowhere else."""
    found = [
        (path.name, node.lineno)
        for path in sources('"s"')
        for node in ast.walk(tree(path))
        if isinstance(node, ast.IfExp)
        if {getattr(each, "value", None) for each in (node.body, node.orelse)} == {"", "s"}
    ]
    assert found == []
