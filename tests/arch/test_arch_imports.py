"""Imports go down and in no circle, those by string too; the public face holds names alone."""

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from helpers.imports import Package, StringImport
from helpers.sources import tree
from ropewalk.annexes.embedding.update_rules import RULES
from ropewalk.core import public_face
from ropewalk.core.rules.known_rules import built_in_rules

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "ropewalk"
API = ROOT / "api"


def modules() -> Iterator[tuple[str, Path]]:
    """The full name and the file of every module that people wrote."""
    for room in (SOURCE, *(path for path in SOURCE.iterdir() if path.is_dir())):
        for path in room.glob("*.py") if room == SOURCE else room.resolve().rglob("*.py"):
            inside = path.relative_to(SOURCE if room == SOURCE else ROOT)
            parts = [part for part in inside.with_suffix("").parts if part != "__init__"]
            if "_pb2" not in path.name:
                yield ".".join(["ropewalk", *parts]), path


@cache
def product() -> Package:
    return Package(dict(modules()))


def room_of(module: str) -> str:
    """The room; the modules of the package itself have none."""
    return module.split(".")[1] if module.count(".") > 1 else module.rpartition("ropewalk.")[2]


def circle(imports: dict[str, set[str]]) -> list[str]:
    """A circle, if there is one."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def small_package(folder: Path, **files: str) -> Package:
    folder.joinpath("__init__.py").write_text("")
    named = {f"small.{name.replace('__', '.')}": text for name, text in files.items()}
    paths = {"small": folder / "__init__.py"}
    for name, text in named.items():
        paths[name] = folder / f"{name}.py"
        paths[name].write_text(text)
    return Package(paths)


# -- the reader of imports -------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    return import_module('small.low').g",
        "def f():\n    return importlib.import_module('.low', __package__)",
        "def f(kind):\n    return import_module(f'small.{kind}w')",
        "PLACES = {'f': 'small.low:f'}\ndef f(name):\n    return import_module(PLACES[name])",
        "COMMANDS = {'f': '.low:f'}",
        "__getattr__ = public_getattr('small.high', globals(), later={'f': 'low:f'})",
        "show({'distribute': 'low'})",
        "if TYPE_CHECKING:\n    x = 1\nelse:\n    from .low import f",
        "def f():\n    from . import low",
    ],
)
def test_an_import_is_seen_however_it_is_written(tmp_path: Path, text: str) -> None:
    package = small_package(tmp_path, high=text, low="")
    assert package.imports()["small.high"] == {"small.low"}
    assert circle(small_package(tmp_path, high=text, low="from . import high").imports())


@pytest.mark.parametrize(
    "text",
    [
        '"""small.low"""',
        "if TYPE_CHECKING:\n    from . import low",
        "raise ValueError(f'small.low {x}')",
        "log = 'small'",
        "FILE = 'small.low.json'",
        "start('-m', 'small.low')",
    ],
)
def test_a_text_for_people_and_an_import_for_types_are_none(tmp_path: Path, text: str) -> None:
    assert small_package(tmp_path, high=text, low="").imports()["small.high"] == set()


def test_an_import_of_a_variable_is_told(tmp_path: Path) -> None:
    package = small_package(tmp_path, high="def f(name):\n    return import_module(name)", low="")
    assert package.by_variable() == {"small.high"}


# -- the product -----------------------------------------------------------------------------


def test_no_import_is_in_a_circle() -> None:
    assert circle(product().imports()) == []


def is_public(module: str) -> bool:
    return module == "ropewalk" or module.startswith("ropewalk.api.")


def test_rooms_import_each_other_by_statements_alone() -> None:
    """A string would pass the contracts of import-linter unseen."""
    across: list[StringImport] = [
        each
        for each in product().by_string()
        if not is_public(each.source) and room_of(each.source) != room_of(each.target)
    ]
    assert across == []


def test_every_place_of_the_public_face_is_there() -> None:
    """A table that names a module which was moved would fail when a program asks for the name."""
    tables = [path.read_text() for path in (SOURCE / "__init__.py", *API.glob("*.py"))]
    places = {place for text in tables for place in re.findall(r'": "([\w.]+)(?::\w+)?"', text)}
    known = dict(modules())
    assert places
    assert [place for place in places if f"ropewalk.{place}" not in known] == []


# What imports what others name: update rules, programs, rules and models of users, extras, and
# commands.
_NAMED_BY_OTHERS = {
    "ropewalk.core.process.frameworks",
    "ropewalk.core.public_face",
    "ropewalk.core.rules.known_rules",
    "ropewalk.launch.commands.checkpoint",
    "ropewalk.training.extras",
    "ropewalk.worker.process.program",
}


def test_few_modules_import_what_others_name() -> None:
    assert product().by_variable() == _NAMED_BY_OTHERS


def test_the_public_face_holds_names_alone() -> None:
    for path in API.glob("*.py"):
        for node in ast.walk(tree(path)):
            assert not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda), path
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) in ("public_getattr", "globals"), path


def test_modules_look_names_up_by_one_mechanism() -> None:
    """``ropewalk`` adds its version; any other ``__getattr__`` is made in core/public_face.py."""
    made = [
        name
        for name, path in modules()
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
    ]
    assert made == ["ropewalk"]


# -- what rooms below have of it ---------------------------------------------------------------


def test_a_function_that_is_not_registered_says_who_registers() -> None:
    with pytest.raises(LookupError, match=r"'nothing': ropewalk/__init__\.py"):
        public_face.provided("nothing")


def test_a_function_is_called_by_its_name() -> None:
    public_face.provide("a test's", lambda: 3)
    assert public_face.provided("a test's")() == 3


@pytest.mark.parametrize("module", ["distribute.base.contexts", "distribute.coordinator.shipping"])
def test_a_process_that_loads_a_part_has_the_default_strategy(module: str) -> None:
    """A worker that runs closures loads no strategy before a closure asks for one."""
    code = (
        f"import ropewalk.{module}\n"
        "from ropewalk.distribute.base.contexts import default_strategy\n"
        "print(default_strategy().extended.num_replicas_in_sync)"
    )
    source = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, env=source, text=True, timeout=110) == "1\n"


# -- names of classes --------------------------------------------------------------------------


def test_a_class_name_stands_once() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for name, path in modules():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                where[node.name].append(name)
    doubled = {name: places for name, places in where.items() if len(places) > 1}
    # A rule has the name of its optimizer: it travels, and checkpoints have it.
    rules = {rule.__name__ for rule in [*built_in_rules(), *RULES]}
    assert doubled.keys() == rules, doubled
