"""Functions that are called once a module has been imported, whoever imports it."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.core import on_import

NAME = "a_framework_of_this_test"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    (tmp_path / f"{NAME}.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    found: list[str] = []
    on_import.register(NAME, lambda: found.append(str(sys.modules[NAME].VALUE)))
    yield found
    on_import._waiting.pop(NAME, None)
    sys.modules.pop(NAME, None)


def test_it_is_called_at_once_if_the_module_is_there(calls: list[str]) -> None:
    importlib.import_module(NAME)
    on_import.watch()
    assert calls == ["3"]


def test_it_is_called_when_the_module_has_been_imported_and_once(calls: list[str]) -> None:
    on_import.watch()
    assert calls == []
    module = importlib.import_module(NAME)
    assert calls == ["3"]
    importlib.reload(module)
    on_import.watch()
    assert calls == ["3"]


def test_a_module_that_is_not_there_is_as_ever(calls: list[str]) -> None:
    on_import.register("a_framework_that_nobody_has", calls.clear)
    on_import.watch()
    with pytest.raises(ModuleNotFoundError, match="a_framework_that_nobody_has"):
        importlib.import_module("a_framework_that_nobody_has")
    on_import._waiting.pop("a_framework_that_nobody_has")
