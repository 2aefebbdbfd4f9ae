"""What pages, errors and examples tell people to install is ours, and is there.

``pip install NAME`` runs what is called NAME on the package index, whoever put it there. So every
such line names Ropewalk or a package that it is known to go with, and an extra that there is; and
until the first release no page sends a newcomer to the index for Ropewalk.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from helpers.pages import PAGES, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OURS = canonicalize_name(PROJECT["project"]["name"])
EXTRAS = frozenset(PROJECT["project"]["optional-dependencies"])
KNOWN = frozenset({"jupyterlab", "optuna", "pip"})
"""Others' packages that a page may tell people to install, looked at by hand."""

PROSE = [*PAGES, *(ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING"))]
NOTEBOOKS = [*(ROOT / "docs").rglob("*.ipynb"), *(ROOT / "examples").rglob("*.ipynb")]
BUILDS = [ROOT / "Makefile", ROOT / "docker-compose.yml", *(ROOT / "deploy").rglob("Dockerfile*")]
ROOMS = [path.resolve() for path in (ROOT / "src" / "ropewalk").iterdir() if path.is_dir()]
PRODUCT = [
    *(ROOT / "src" / "ropewalk").glob("*.py"),
    *(path for room in ROOMS for path in room.rglob("*.py")),
]
PROGRAMS = [
    path for name in ("examples", "benchmarks", "tools") for path in (ROOT / name).rglob("*.py")
]
SOURCES = [*PRODUCT, *PROGRAMS]

_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)([^`]+)\1")
_COMMAND = re.compile(
    r"(?:pip3? install|\$\(INSTALL\))((?: +(?:'[^']+'|\"[^\"]+\"|[^\s'\"`#;&|]+))+)"
)
_WORD = re.compile(r"'([^']+)'|\"([^\"]+)\"|(\S+)")
_VARIES = "varies"  # stands for what an f-string puts in
_TAKES_A_VALUE = {"--requirement", "--group", "--only-binary"}


def commands(text: str) -> list[str]:
    """What follows ``pip install`` in a text: in its lines, and in code within its prose."""
    text = text.replace("\\\n", " ")
    prose = _FENCED.sub("", text)
    spans = [" ".join(match[2].split()) for match in _CODE.finditer(prose)]
    lines = "\n".join([*_FENCED.findall(text), _CODE.sub("", prose), *spans])
    return [match[1].strip() for match in _COMMAND.finditer(lines)]


def requirements(command: str) -> list[str]:
    """What a command installs; a command within a sentence ends with its punctuation."""
    words, found = _WORD.finditer(command), list[str]()
    for match in words:
        word = match[1] or match[2] or match[3]
        word = word.rstrip(",.:)") or word
        if word in _TAKES_A_VALUE:
            next(words)
        elif word and not word.startswith("-"):
            found.append(word)
        if match[0][-1] in ",:)" or command[match.end() : match.end() + 1] in {",", ".", ":", ")"}:
            break
    return found


def fault(word: str, *, from_index: bool) -> str | None:
    """What is wrong with a requirement, or None.

    Args:
        word: The requirement as pip is given it.
        from_index: Whether Ropewalk itself may be named as the package index names it.
    """
    if word.startswith("git+"):
        return None if word.endswith(f"/{OURS}") else "a repository of another name"
    here = re.fullmatch(r"\.(\[.*\])?", word)
    asked = Requirement(f"{OURS}{here[1] or ''}" if here else word)
    name = canonicalize_name(asked.name)
    if name != OURS:
        return None if name in KNOWN else "a package that nobody has looked at"
    if unknown := asked.extras - EXTRAS - {_VARIES}:
        return f"no extras of ours: {', '.join(sorted(unknown))}"
    if not here and asked.url is None and not from_index:
        return "Ropewalk from the index, where it is not before the first release"
    return None


def strings(source: Path) -> Iterator[str]:
    """The strings of a module, joined where they are written in parts."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (getattr(part, "value", None) for part in node.values)
            yield "".join(part if isinstance(part, str) else _VARIES for part in parts)


def faults(text: str, *, from_index: bool = False) -> dict[str, str]:
    """Requirements of a text that are not right, and why."""
    asked = [word for command in commands(text) for word in requirements(command)]
    found = {word: fault(word, from_index=from_index) for word in asked}
    return {word: why for word, why in found.items() if why}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("$ pip install '.[keras]'   # Keras", [".[keras]"]),
        ("needs `pip install\n'.[k8s]'` and more", [".[k8s]"]),
        ("so `pip install optuna`, here", ["optuna"]),
        ("not installed: pip install 'ropewalk[jax]', or choose another", ["ropewalk[jax]"]),
        ("has none: pip install 'ropewalk[k8s]'. `ropewalk k8s` is", ["ropewalk[k8s]"]),
        ("pip install --group dev 'pip>=25.1' \\\n  -e .", ["pip>=25.1", "."]),
        ("```console\n$ pip install . jupyterlab\n```", [".", "jupyterlab"]),
    ],
    ids=["comment", "wrapped", "code", "message", "sentence", "continued", "fenced"],
)
def test_a_command_is_found_however_it_is_written(text: str, words: list[str]) -> None:
    assert [word for command in commands(text) for word in requirements(command)] == words


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (".", None),
        (".[jax,examples]", None),
        ("git+https://HOST/PATH/ropewalk", None),
        ("ropewalk[torch] @ git+https://HOST/PATH/ropewalk", None),
        ("git+https://HOST/PATH/windlass", "another name"),
        (".[jaxx]", "no extras of ours: jaxx"),
        ("windlass", "nobody has looked at"),
        ("ropewalk", "from the index"),
        ("Ropewalk[jax]", "from the index"),
    ],
)
def test_what_is_not_ours_or_not_there_is_noticed(word: str, said: str | None) -> None:
    found = fault(word, from_index=False)
    assert (found is None) == (said is None)
    assert (said or "") in (found or "")


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_installs_what_is_there(path: Path) -> None:
    lines = path.read_text().splitlines()
    text = "\n".join(line for line in lines if "from the first release on" not in line)
    assert faults(text, from_index=path.name == "CHANGELOG.md") == {}


@pytest.mark.parametrize("path", NOTEBOOKS + BUILDS, ids=lambda path: path.name)
def test_a_notebook_and_a_build_install_what_is_there(path: Path) -> None:
    assert faults(path.read_text()) == {}


def test_an_error_and_an_example_name_an_extra_that_there_is() -> None:
    """By the name of the installed package: pip adds an extra to it, and asks no index for it."""
    found = {
        path.relative_to(ROOT).as_posix(): wrong
        for path in SOURCES
        if "pip install" in path.read_text()
        for text in strings(path)
        if (wrong := faults(text, from_index=path in PRODUCT))
    }
    assert found == {}


def test_every_extra_that_is_named_is_one() -> None:
    for path in [*PROSE, *SOURCES]:
        for named in re.findall(rf"\b{OURS}\[([\w,]+)\]", path.read_text()):
            assert set(named.split(",")) <= EXTRAS, (path, named)


def test_a_missing_framework_is_looked_for_by_an_extra_that_there_is() -> None:
    """Where an error's extra varies, it is an argument of ``require``."""
    asked = [
        extra
        for path in SOURCES
        if "require(" in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require"
        for argument in node.args[1:2]
        if isinstance(argument, ast.Constant)
        for extra in str(argument.value).split(",")
    ]
    assert {"jax", "torch"} <= set(asked) <= EXTRAS


def test_the_first_screen_says_how_to_install_what_is_there_today() -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "quickstart.md"):
        words = [word for each in commands(page.read_text()) for word in requirements(each)]
        assert "." in words, page
        assert any("git+https://HOST/PATH" in word for word in words), page
