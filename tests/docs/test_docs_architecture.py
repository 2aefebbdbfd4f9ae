"""ARCHITECTURE and the READMEs of the rooms say what is there, and stay short.

A README lists what holds in its room, and names the tests or the contract that hold it. A walk in
ARCHITECTURE is a table of calls; a job that pushes and saves makes them in this order.
"""

import ast
import re
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
import pytest

import ropewalk as rw
from helpers.pages import ROOM_PAGES, ROOT
from helpers.sources import ROOMS, tree
from helpers.waiting import scaled
from ropewalk.core.checkpoint import list_checkpoints
from ropewalk.testing import LocalCluster

PAGE = (ROOT / "ARCHITECTURE.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS = PROJECT["tool"]["importlinter"]["contracts"]
TEST_FOLDERS = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"^\| `([\w.]+)` \| `([\w/]+\.py)` \|", re.MULTILINE)
_ROOM = re.compile(r"\[(\w+)\]\(\w+/README\.md\)")


def name(page: Path) -> str:
    return page.parent.relative_to(ROOT).as_posix()


def walks(title: str) -> list[list[tuple[str, str]]]:
    """The tables of a section: calls, each with the file that has it."""
    (section,) = re.findall(rf"^## {title}.*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return [steps for table in section.split("| call |") if (steps := _STEP.findall(table))]


PUSH, SAVE, LOCAL = map(walks, ("A push", "A save", "`ropewalk local"))


# -- the map ---------------------------------------------------------------------------------


def test_the_architecture_is_read_in_a_quarter_of_an_hour() -> None:
    assert len(PAGE.encode()) <= 16_000


def test_the_rooms_stand_in_the_order_of_their_contract() -> None:
    (layers,) = (each["layers"] for each in CONTRACTS if each["name"] == "rooms are layered")
    rows = [_ROOM.findall(line) for line in PAGE.splitlines() if line.startswith("| [")]
    assert [" | ".join(row) for row in rows if row] == layers


@pytest.mark.parametrize("walk", [*PUSH, *SAVE, *LOCAL], ids=lambda walk: walk[0][0])
def test_a_walk_names_functions_where_they_are(walk: list[tuple[str, str]]) -> None:
    missing = [step for step in walk if step[0] not in defined(ROOT / step[1])]
    assert missing == []
    assert len(walk) >= 6


def defined(path: Path) -> set[str]:
    """Functions and methods of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {node.name for node in tree(path).body if isinstance(node, kinds)}
    for outer in tree(path).body:
        if isinstance(outer, ast.ClassDef):
            found |= {f"{outer.name}.{node.name}" for node in outer.body if isinstance(node, kinds)}
    return found


# -- the walks -------------------------------------------------------------------------------

Call = tuple[int, str]  # the thread that made it, and its name


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """The calls of both walks in a job that pushed until it was saved, in their order."""
    steps = {(str(ROOT / path), call) for walk in (*PUSH, *SAVE) for call, path in walk}
    wanted, seen, log = {call for _, call in steps}, dict[CodeType, bool](), list[Call]()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_qualname in wanted:
            if code not in seen:
                seen[code] = (str(Path(code.co_filename).resolve()), code.co_qualname) in steps
            if seen[code]:
                log.append((threading.get_ident(), code.co_qualname))

    model_dir = str(tmp_path_factory.mktemp("model"))
    threading.setprofile(note)  # for threads that start from now on: all of the cluster's
    try:
        with LocalCluster(workers=1, ps=1, model_dir=model_dir, save_every_steps=1) as cluster:
            cluster.run(lambda: train_until_saved(model_dir))
    finally:
        threading.setprofile(None)
    return log


def train_until_saved(model_dir: str) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        w = rw.Variable(np.zeros(20_000, np.float32), name="w")
    optimizer = rw.optimizers.Adam(0.1)
    until = time.monotonic() + scaled(20)
    while not list_checkpoints(model_dir) and time.monotonic() < until:
        strategy.run(lambda: optimizer.apply_gradients([(w.read_value() - 1, w)]))


@pytest.mark.parametrize("walk", PUSH, ids=lambda walk: walk[0][0])
def test_a_push_goes_its_walk_in_one_thread_of_each_side(
    walk: list[tuple[str, str]], calls: list[Call]
) -> None:
    first, *rest = (call for call, _ in walk)
    passes = [
        run
        for thread in {thread for thread, _ in calls}
        for run in runs([call for by, call in calls if by == thread], first)
    ]
    assert any(is_in_order(rest, run) for run in passes), Counter(call for _, call in calls)


@pytest.mark.parametrize("walk", SAVE, ids=lambda walk: walk[0][0])
def test_a_save_goes_its_walk(walk: list[tuple[str, str]], calls: list[Call]) -> None:
    log = [call for _, call in calls]
    assert is_in_order([call for call, _ in walk], log), Counter(log)


def is_in_order(calls: Iterable[str], log: Iterable[str]) -> bool:
    """Whether a log has all of these calls, each after the one before."""
    rest = iter(log)
    return all(call in rest for call in calls)


def runs(log: Sequence[str], first: str) -> list[Sequence[str]]:
    """What follows each call of a function, up to its next one."""
    starts = [at for at, call in enumerate(log) if call == first]
    return [log[start + 1 : stop] for start, stop in pairwise([*starts, len(log)])]


# -- the rooms -------------------------------------------------------------------------------


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_and_what_holds_in_it(room: str) -> None:
    assert promises(ROOT / room / "README.md")


@pytest.mark.parametrize("page", ROOM_PAGES, ids=name)
def test_a_room_is_read_on_one_screen(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert len(lines) <= 60
    assert [line for line in lines if len(line) > 100] == []


@pytest.mark.parametrize("page", ROOM_PAGES, ids=name)
def test_a_promise_names_the_tests_and_contracts_that_hold_it(page: Path) -> None:
    wrong = {promise: faults(promise) for promise in promises(page)}
    assert {promise: why for promise, why in wrong.items() if why} == {}


@pytest.mark.parametrize(
    ("promise", "fault"),
    [
        ("All is well. Tests: `unit/core/test_clock.py`.", None),
        ('All is well. Contract: "rooms are layered".', None),
        ("All is well.", "nothing holds it"),
        ("All is well. Tests: `unit/core/test_clocks.py`.", "no test unit/core/test_clocks.py"),
        ("All is well. Tests: `unit/core/test_no_*.py`.", "no test unit/core/test_no_*.py"),
        ('All is well. Contract: "rooms are round".', "no contract rooms are round"),
    ],
    ids=["a test", "a contract", "nothing", "no test", "no tests", "no contract"],
)
def test_a_promise_that_nothing_holds_is_noticed(promise: str, fault: str | None) -> None:
    assert faults(promise) == ([fault] if fault else [])


@pytest.mark.parametrize("page", [ROOT / "ARCHITECTURE.md", *ROOM_PAGES], ids=name)
def test_a_file_that_a_page_names_is_there(page: Path) -> None:
    """By its path from the page's folder, from the one above, or from the root."""
    text = _FENCED.sub("", page.read_text())
    named = {path for path in re.findall(r"`([\w/]+\.py)`", text) if not is_test(path)}
    named.discard("train.py")  # a user's program
    below = (page.parent, page.parent.parent, ROOT, ROOT / "src")
    assert [path for path in named if not any((folder / path).exists() for folder in below)] == []


def promises(page: Path) -> list[str]:
    """The points of the section "What holds", each in one line."""
    _, _, section = page.read_text().partition("\n## What holds\n")
    return [" ".join(point.split()) for point in re.split(r"^- ", section, flags=re.MULTILINE)[1:]]


def faults(promise: str) -> list[str]:
    """What is wrong with what a promise names."""
    tests = [path for path in re.findall(r"`([^`]+)`", promise) if is_test(path)]
    contracts = re.findall(r'"([^"]+)"', promise.partition("Contract")[2])
    if not (tests or contracts):
        return ["nothing holds it"]
    return [f"no test {path}" for path in tests if not any((ROOT / "tests").glob(path))] + [
        f"no contract {text}"
        for text in contracts
        if not any(contract["name"].startswith(text) for contract in CONTRACTS)
    ]


def is_test(path: str) -> bool:
    """Whether a path is one of a test, below the folder of tests."""
    return path.partition("/")[0] in TEST_FOLDERS and path.endswith(".py")
