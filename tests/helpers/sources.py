"""The product's source as trees, for tests of what it may import and use."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .processes import ROOT

ROOMS = (
    "annexes", "api", "client", "cluster", "core", "distribute", "engine", "launch",
    "net", "proto", "server", "shipping", "telemetry", "training", "worker",
)  # fmt: skip


def sources(*words: str) -> Iterator[Path]:
    """Every Python file of the package that people wrote; those with one of these words."""
    for folder in (*(ROOT / room for room in ROOMS), ROOT / "src" / "ropewalk"):
        for path in sorted(folder.rglob("*.py")):
            if "_pb2" not in path.name and (not words or _has_any(path, words)):
                yield path


def _has_any(path: Path, words: tuple[str, ...]) -> bool:
    text = path.read_text()
    return any(word in text for word in words)


def tree(path: Path) -> ast.Module:
    """A file, parsed; once in a process as it is, since many tests look at the same files."""
    return _parsed(path, path.read_text())


@cache
def _parsed(path: Path, text: str) -> ast.Module:
    return ast.parse(text, filename=str(path))
