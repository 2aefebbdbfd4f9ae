"""Packages that a project says it needs, by its own files at the top of its folder. Pure.

Only names are read: whether a version fits is a matter for whoever builds the environment.

Source: PEP 508 for the names, PEP 503 for how they are compared, PEP 621 for ``pyproject.toml``.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

REQUIREMENTS = "requirements.txt"
PYPROJECT = "pyproject.toml"
DECLARED_IN = (REQUIREMENTS, PYPROJECT)
"""Files that are looked at."""

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_REQUIREMENT = re.compile(rf"({_NAME})\s*(?:$|[\[<>=!~@(])")
_OTHER_SOURCE = re.compile(r"-[re]|--requirement|--editable|[^-]")


def declared_requirements(texts: Mapping[str, str]) -> dict[str, str]:
    """Find the packages that a project needs, and the file that says so.

    Args:
        texts: Contents of those of :data:`DECLARED_IN` that the project has.

    Returns:
        File by name, as PEP 503 writes names; by the whole line where that is no name alone: a
        requirement of some machines (a marker), a URL, ``-r more.txt``.
    """
    declared: dict[str, str] = {}
    for file in DECLARED_IN:
        text = texts.get(file, "")
        lines = text.splitlines() if file == REQUIREMENTS else _of_pyproject(text)
        for line in filter(None, map(_requirement, lines)):
            declared.setdefault(line, file)
    return declared


def missing_packages(declared: Iterable[str], installed: Iterable[str]) -> list[str]:
    """Find the declared requirements that are names, and not among what is installed."""
    there = {normalized(name) for name in installed}
    names = [name for name in declared if re.fullmatch(_NAME, name)]
    return sorted(set(names) - there)


def normalized(name: str) -> str:
    """Convert a package's name to the form in which it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirement(line: str) -> str:
    """Read a line's requirement; empty: it has none."""
    line = re.sub(r"(^|\s)#.*", "", line).strip()
    match = _REQUIREMENT.match(line)
    if match and ";" not in line:
        return normalized(match[1])
    return line if _OTHER_SOURCE.match(line) else ""


def _of_pyproject(text: str) -> list[str]:
    try:
        data: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return []  # no program needs it to run
    project, tool = data.get("project"), data.get("tool")
    listed = project.get("dependencies") if isinstance(project, dict) else None
    poetry = tool.get("poetry") if isinstance(tool, dict) else None
    of_poetry = poetry.get("dependencies") if isinstance(poetry, dict) else None
    names = [str(item) for item in listed] if isinstance(listed, list) else []
    return names + [name for name in of_poetry or {} if name != "python"]
