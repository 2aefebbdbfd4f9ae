"""Functions that are called once a module has been imported, whoever imports it."""

import importlib
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ropewalk.core.process import frameworks
from ropewalk.core.process.frameworks import call_on_import, watch_imports

NAME = "a_framework_of_this_test"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    (tmp_path / f"{NAME}.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    found: list[str] = []
    call_on_import(NAME, lambda: found.append(str(sys.modules[NAME].VALUE)))
    yield found
    frameworks._waiting.pop(NAME, None)
    sys.modules.pop(NAME, None)


def test_it_is_called_at_once_if_the_module_is_there(calls: list[str]) -> None:
    importlib.import_module(NAME)
    watch_imports()
    assert calls == ["3"]


def test_it_is_called_when_the_module_has_been_imported_and_once(calls: list[str]) -> None:
    watch_imports()
    assert calls == []
    module = importlib.import_module(NAME)
    assert calls == ["3"]
    importlib.reload(module)
    watch_imports()
    assert calls == ["3"]


def test_a_function_that_fails_is_called_again(calls: list[str]) -> None:
    def fail_once() -> None:
        calls.append("called")
        if len(calls) == 1:
            raise ImportError("in a circle")

    call_on_import(NAME, fail_once)
    watch_imports()
    with pytest.raises(ImportError, match="in a circle"):
        importlib.import_module(NAME)
    importlib.import_module(NAME)
    assert calls == ["called", "called"]


def test_a_function_that_another_thread_calls_is_waited_for(calls: list[str]) -> None:
    """Else what it changes would not be changed yet."""
    begun, may_end, seen = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert may_end.wait(10)
        calls.append("called")

    def watch() -> None:
        watch_imports()
        calls.append("after")
        seen.set()

    importlib.import_module(NAME)
    call_on_import(NAME, slow)
    threads = [threading.Thread(target=watch_imports), threading.Thread(target=watch)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    assert not seen.wait(0.2)
    may_end.set()
    for thread in threads:
        thread.join(10)
    assert calls[-2:] == ["called", "after"]


def test_a_module_that_another_thread_imports_is_waited_for(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{NAME}.py").write_text(
        "import helper_of_this_test\nhelper_of_this_test.go_on()\nVALUE = 3\n"
    )
    importlib.invalidate_caches()
    imported, helper = threading.Event(), ModuleType("helper_of_this_test")
    go_on = threading.Event()

    def wait() -> None:
        imported.set()
        go_on.wait()

    helper.go_on = wait  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, helper.__name__, helper)
    # The import began before there was a strategy: nobody reports its end.
    finders = [each for each in sys.meta_path if not isinstance(each, frameworks._Finder)]
    monkeypatch.setattr(sys, "meta_path", finders)
    importing = threading.Thread(target=importlib.import_module, args=(NAME,))
    importing.start()
    imported.wait()

    def import_module(name: str) -> ModuleType:
        go_on.set()
        return importlib.import_module(name)

    monkeypatch.setattr(frameworks, "import_module", import_module)
    watch_imports()
    go_on.set()
    importing.join()
    assert calls == ["3"]


def test_the_loader_of_other_modules_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One loader loads all modules of a zip file: none of them stands for the framework."""
    calls: list[bool] = []
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        file.writestr("zipped_framework/__init__.py", "from . import part\nVALUE = 3\n")
        file.writestr("zipped_framework/part.py", "")
    monkeypatch.syspath_prepend(tmp_path / "all.zip")
    call_on_import(
        "zipped_framework", lambda: calls.append(hasattr(sys.modules["zipped_framework"], "VALUE"))
    )
    watch_imports()
    importlib.import_module("zipped_framework")
    assert calls == [True]


def test_a_module_that_is_not_there_is_as_ever(calls: list[str]) -> None:
    call_on_import("a_framework_that_nobody_has", calls.clear)
    watch_imports()
    with pytest.raises(ModuleNotFoundError, match="a_framework_that_nobody_has"):
        importlib.import_module("a_framework_that_nobody_has")
    frameworks._waiting.pop("a_framework_that_nobody_has")
