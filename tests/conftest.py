"""Every run's environment, tools, profile of Hypothesis and bounds; for tests that start processes:
programs to run, the command, and a watch that none is left.

Annotations in tests: ``run_cli: Callable[..., subprocess.CompletedProcess[str]]``,
``start_cli: Callable[..., tuple[subprocess.Popen[bytes], Path]]``,
``write_program: Callable[..., str]``, ``wait_until: Callable[..., None]``.
"""

import gc
import logging
import os
import re
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings

from helpers import ambient, failures, gpus, processes, tools
from helpers.calls import Calls
from helpers.fork_server import FORKING, OF_RUN, SERVER
from helpers.waiting import load_factor, scaled
from helpers.waiting import wait_until as wait_until_true
from ropewalk.core import annexes

ambient.forget(os.environ)
gc.disable()  # until all tests are collected: half a million objects, none of them garbage

# Hypothesis draws the same examples in every run of CI, and stores none: a failure there is one of
# the change. At a desk it draws others each time and remembers those that failed. Test machines are
# busy, so no example has a deadline; drawing takes as long as it takes on them, so nothing is too
# slow.
_QUIET: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("desk", max_examples=20, **_QUIET)
settings.register_profile("ci", max_examples=20, derandomize=True, database=None, **_QUIET)
settings.register_profile("soak", max_examples=100, database=None, **_QUIET)  # times _SOAK_FACTOR
# Whether a test fails, and not at which example: `make mutants` asks for no more.
settings.register_profile(
    "verdict", database=None, phases=[Phase.explicit, Phase.generate], **_QUIET
)
_SOAK = "SOAK" in os.environ
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE")
    or ("soak" if _SOAK else "ci" if "CI" in os.environ else "desk")
)

_TESTS = Path(__file__).parent
_BRIDGES = "test_bridges_"  # how their files begin
_LONG = ("scenario", "fault", "docs", "contract")  # folders, and those of an annex by their names
_LONG_OF_AN_ANNEX = ("test_processes_", "test_fault_", "test_contract_", "test_jobs_")
_NEEDING = "--needing-more-than"
_WORDS = re.compile(r"\w+")
_FRAMEWORKS = re.compile(r'(importorskip|import_module|Late)\("(jax|keras|optax)"')
_OF_SOURCES = re.compile(r"^from helpers\.(imports|sources) import", re.MULTILINE)
_OF_ANNEXES = re.compile(r"^pytestmark = .*mark\.annex\(([^)]*)\)", re.MULTILINE)
_SOAK_FACTOR = 25
_increased: set[int] = set()
_TIMEOUT_S = 120.0  # of one test, on an idle machine
_FOREIGN = ("TF_CONFIG", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX", "SLURM_PROCID")

# Least squares with a known answer. Arguments: global steps, seconds to wait after each step.
_PROGRAM = """\
import sys
import threading

import numpy as np

import ropewalk as rw

STEPS, PACE_S = int(sys.argv[1]), float(sys.argv[2])
WANTED = np.arange(4, dtype=np.float32)


def evaluate(values):
    return {"error": float(np.abs(values["w"] - WANTED).max())}


def train():
    strategy = rw.distribute.ParameterServerStrategy()
    me = f"{rw.training.task_type()}:{strategy.task_index}"
    with strategy.scope():
        w = rw.Variable(np.zeros(4, np.float32), name="w")
        b = rw.Variable(np.zeros((), np.float32), name="b")
    optimizer = rw.optimizers.SGD(0.05)
    rng = np.random.default_rng(strategy.task_index)
    pause = threading.Event()

    def step():
        x = rng.normal(size=(16, 4)).astype(np.float32)
        rest = x @ w.read_value() + b.read_value() - (x @ WANTED + 1)
        optimizer.apply_gradients([(x.T @ rest / 8, w), (np.float32(2 * rest.mean()), b)])
        return (rest * rest).mean()

    count = 0
    print(f"{me} begins at {strategy.global_step}", flush=True)
    while strategy.global_step < STEPS:
        loss = strategy.run(step)
        count += 1
        rw.training.report(loss=loss, total_steps=STEPS)
        if count == 5:
            print(f"{me} has done {count} steps", flush=True)
        # HOOK
        pause.wait(PACE_S)


if rw.training.is_evaluator():
    rw.training.SidecarEvaluator(evaluate, poll_s=0.05).start()
else:
    train()
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """What ``.ci/run`` asks for after a run with few programs."""
    parser.addoption(
        _NEEDING, metavar="PATH",
        help="run only the tests that need something beyond the programs of this PATH",
    )  # fmt: skip


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what has no test of this run: most files take long to import.

    All tests of the bridges are marked, and import their frameworks; a file without a need has no
    test that needs something, and one whose tests all use an annex imports it.
    """
    if collection_path.name.startswith(_BRIDGES) and "not bridges" in config.getoption("markexpr"):
        return True if not any("bridge" in each for each in config.args) else None
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    if (marked := _OF_ANNEXES.search(text)) is not None and _missing(_WORDS.findall(marked[1])):
        return True
    return True if config.getoption(_NEEDING) is not None and ".needs(" not in text else None


def _missing(names: Iterable[str]) -> list[str]:
    """Annexes that were taken out, of these."""
    return sorted(set(names) - set(annexes.installed()))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Load what processes need once for all workers of the run."""
    os.environ[OF_RUN] = SERVER.address()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a tool, a GPU or an annex that is not here, unless it is skipped anyway."""
    tools.skip_unless_met(item)
    gpus.skip_unless_seen(item)
    for mark in item.iter_markers("annex"):
        for name in _missing(mark.args):
            pytest.skip(f"needs the annex {name}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None]:
    """At the very end, what has failed and which tools are missing."""
    yield
    failures.keep(terminalreporter, config)
    tools.show_missing(terminalreporter)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Stretch the bounds of a test's whole duration as those inside of tests are; soak
    for longer.
    """
    if (path := config.getoption(_NEEDING)) is not None:
        wanted = {item for item in items if tools.needs_more_than(item, path)}
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = [item for item in items if item in wanted]
    _deal_out(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    factor = _SOAK_FACTOR * load_factor() if _SOAK else load_factor()
    for item in items:
        own = item.get_closest_marker("timeout")
        seconds = own.args[0] if own is not None else _TIMEOUT_S
        item.add_marker(pytest.mark.timeout(seconds * factor), append=False)
        if _SOAK and isinstance(item, pytest.Function):
            _take_more_examples(item)


def _deal_out(items: list[pytest.Item], workers: int) -> None:
    """Let each of the run's workers, which get one part of the tests after another, begin with
    files that take long, so that what is left at the end is short and can be shared. Files that
    compare with frameworks are one, for whoever runs one has loaded these; so are files that look
    at the source, which whoever runs one has parsed.
    """
    long: dict[Path, list[pytest.Item]] = {}
    short: list[pytest.Item] = []
    for item in items:
        file = _dealt_with(item.path)
        (short if file is None else long.setdefault(file, [])).append(item)
    size = -(-len(items) // workers)
    files, dealt = list(long.values()), []
    for worker in range(workers):
        mine = [item for file in files[worker::workers] for item in file]
        rest = max(0, size - len(mine))
        dealt += mine + short[:rest]
        del short[:rest]
    items[:] = dealt + short


@cache
def _dealt_with(path: Path) -> Path | None:
    """The file with which one that takes long is dealt out; None: it does not take long."""
    is_of_a_folder = path.relative_to(_TESTS).parts[0] in _LONG
    if is_of_a_folder or path.name.startswith(_LONG_OF_AN_ANNEX):
        return path
    text = path.read_text()
    if _OF_SOURCES.search(text) is not None:
        return _TESTS / "arch"
    return _TESTS if _FRAMEWORKS.search(text) is not None else None


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what collecting has made: half a million objects, which
    every full collection would look at for 0.4 s. It passes less often, too: in a run that parses
    sources and searches models, it took a tenth of the processor.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)


def _take_more_examples(item: pytest.Function) -> None:
    """Also where a test says itself how many examples it takes; a profile does not reach these."""
    stateful = isinstance(getattr(item.cls, "settings", None), settings)
    holder, name = (
        (item.cls, "settings")
        if stateful
        else (getattr(item.obj, "__func__", item.obj), "_hypothesis_internal_use_settings")
    )
    given = getattr(holder, name, None)
    if given is None or id(holder) in _increased:
        return
    _increased.add(id(holder))  # all cases of a parametrized test share it
    setattr(holder, name, settings(given, max_examples=_SOAK_FACTOR * given.max_examples))


@pytest.fixture
def restored_logger() -> Iterator[logging.Logger]:
    """Ropewalk's logger, put back after a test in which a command has set it up."""
    logger = logging.getLogger("ropewalk")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield logger
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What becomes of calls of functions and methods, until the end of a test."""
    return Calls(monkeypatch)


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """``wait_until(condition, timeout_s, what)``: poll, bounded; fails the test at the end."""
    return wait_until_true


@pytest.fixture
def live_pids(no_process_left: str) -> Callable[[], dict[int, dict[str, str]]]:
    """Processes of this test that run now, each with the environment it was given."""
    return lambda: processes.marked(no_process_left)


@pytest.fixture
def no_process_left(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[str]:
    """Fail if a process of this test outlives it; end it by its pid in any case.

    Tasks are forks of a process that has loaded what they need, unless the test is marked
    real_start.
    """
    mark = uuid4().hex
    monkeypatch.setenv(processes.MARK, mark)
    monkeypatch.setenv("PYTHONPATH", str(processes.ROOT / "src"))
    for name in [*_FOREIGN, *(name for name in os.environ if name.startswith("ROPEWALK_"))]:
        monkeypatch.delenv(name, raising=False)
    if request.node.get_closest_marker("real_start") is not None:
        monkeypatch.setenv(processes.REAL_START, "1")
    if not os.environ.get(processes.REAL_START):
        monkeypatch.setattr("ropewalk.launch.processes.process.subprocess", FORKING)
    yield mark
    # A reaped process may still be listed for a moment.
    deadline = time.monotonic() + scaled(1.0)
    while (left := processes.marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    words = {pid: processes.command_line(pid) for pid in left}
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    assert not words, "processes were left"


@pytest.fixture
def run_cli(
    no_process_left: str, tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_cli(*arguments, timeout_s=60, **environment)``: the ``ropewalk`` command, to
    its end.
    """

    def run(
        *arguments: str, timeout_s: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        command = [*processes.ROPEWALK, *arguments]
        code, output, errors = processes.run(
            command, timeout_s=scaled(timeout_s), cwd=tmp_path, env={**os.environ, **environment}
        )
        return subprocess.CompletedProcess(command, code, output, errors)

    return run


@pytest.fixture
def start_cli(
    no_process_left: str, tmp_path: Path
) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], Path]]]:
    """``start_cli(*arguments, **environment)``: the command in the background, and its output."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **environment: str) -> tuple[subprocess.Popen[bytes], Path]:
        output = tmp_path / f"output-{len(started)}.txt"
        with output.open("wb") as stream:
            process = processes.start(
                [*processes.ROPEWALK, *arguments],
                cwd=tmp_path,
                env={**os.environ, **environment},
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        started.append(process)
        return process, output

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(scaled(10))


@pytest.fixture
def write_program(tmp_path: Path) -> Callable[..., str]:
    """``write_program(hook="", **replacements)``: least squares, with ``hook`` after every step.

    The hook sees ``me`` ("worker:1", numbered from the chief on) and ``count``. Replacements change
    pieces of the program's text.
    """

    def write(hook: str = "pass", *, replace: dict[str, str] | None = None) -> str:
        text = _PROGRAM.replace("# HOOK", textwrap.indent(hook, " " * 8).strip())
        for old, new in (replace or {}).items():
            assert old in text, f"the program has no {old!r}"
            text = text.replace(old, new)
        path = tmp_path / "train.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def gpus_seen(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the machine look as if it had so many GPUs; nothing may be done on them."""
    place = "ropewalk.distribute.base.devices.count_gpus"
    return lambda count: monkeypatch.setattr(place, lambda: count)


@pytest.fixture
def no_gpus(gpus_seen: Callable[[int], None]) -> None:
    """A machine without a GPU."""
    gpus_seen(0)


@pytest.fixture
def plain_process(monkeypatch: pytest.MonkeyPatch, no_gpus: None) -> Iterator[None]:
    """No cluster, no GPU; one CPU device again afterwards."""
    from ropewalk.api import config  # tests of the launcher load no strategies

    monkeypatch.delenv("TF_CONFIG", raising=False)
    yield
    config.set_logical_cpu_devices(1)
