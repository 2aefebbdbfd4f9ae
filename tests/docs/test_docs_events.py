"""docs/events.md says what is: its table is the catalogue's, and the source has no other names."""

import ast
import subprocess
import sys
from collections.abc import Iterator

from helpers.processes import ROOT
from ropewalk.core.process.events import CATALOGUE

_ROOMS = "annexes client cluster core distribute engine launch net server telemetry training worker"


def _names() -> Iterator[str]:
    """Yield the names with which the source calls ``event``, ``record`` and ``about``."""
    for path in (path for room in _ROOMS.split() for path in (ROOT / room).rglob("*.py")):
        text = path.read_text()
        if not any(sign in text for sign in ("events import", "about=", "CATALOGUE: ")):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called in ("event", "record") and node.args:
                yield from _texts(node.args[0])
            for word in node.keywords:
                if word.arg == "about":
                    yield from _texts(word.value)


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def test_the_table_has_every_event() -> None:
    command = [sys.executable, str(ROOT / "tools" / "events_table.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_source_and_the_catalogue_have_the_same_names() -> None:
    assert set(_names()) == set(CATALOGUE)
