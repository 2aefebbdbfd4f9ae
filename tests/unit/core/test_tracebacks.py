"""Tracebacks of programs: whose frames are shown between the program's own."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import ropewalk as rw
from ropewalk.core.errors import RefusedError
from ropewalk.core.process.tracebacks import program_traceback

PROGRAM = """\
def train(strategy, fit, error):
    def callback():
        raise error
    strategy.run(fit, args=(callback,))
"""
LIBRARY = """\
def fit(callback):
    inner(callback)

def inner(callback):
    callback()

def fail(callback):
    raise KeyError("of the library")
"""


def load(path: Path, text: str) -> ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(tmp_path: Path, library: str, error: Exception, function: str = "fit") -> str:
    program = load(tmp_path / "train.py", PROGRAM)
    called = load(tmp_path / "site-packages" / library / "trainer.py", LIBRARY)
    strategy = rw.distribute.OneDeviceStrategy("CPU:0")
    with pytest.raises(type(error)) as caught:
        program.train(strategy, getattr(called, function), error)
    return program_traceback(caught.value, str(tmp_path / "train.py"))


def test_frames_of_keras_between_the_programs_own_are_shown(tmp_path: Path) -> None:
    text = shown(tmp_path, "keras", ValueError("mine"))
    order = ["in train", "inside ropewalk", "in fit", "in inner", "in callback", "ValueError: mine"]
    places = [text.index(each) for each in order]
    assert places == sorted(places), text
    assert text.count("inside ropewalk") == 1


def test_where_keras_has_failed_is_shown(tmp_path: Path) -> None:
    text = shown(tmp_path, "keras", KeyError("of the library"), "fail")
    assert text.index("inside ropewalk") < text.index("in fail"), text


def test_frames_of_other_libraries_that_ropewalk_has_called_are_counted(tmp_path: Path) -> None:
    text = shown(tmp_path, "numpy", ValueError("mine"))
    assert "in inner" not in text
    assert text.index("inside ropewalk") < text.index("in callback"), text


def test_an_error_of_ours_ends_with_the_programs_last_frame(tmp_path: Path) -> None:
    text = shown(tmp_path, "keras", RefusedError("ours"))
    assert text.rstrip().endswith("ours")
    assert "in callback" in text
