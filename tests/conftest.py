"""For tests that start processes: programs to run, the command, and a watch that none is left.

Annotations in tests: ``run_cli: Callable[..., subprocess.CompletedProcess[str]]``,
``start_cli: Callable[..., tuple[subprocess.Popen[bytes], Path]]``,
``write_program: Callable[..., str]``, ``wait_until: Callable[..., None]``.
"""

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_MARK = "TEST_PROCESS_MARK"  # children inherit it, so that none of them can hide
_FOREIGN = ("TF_CONFIG", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX", "SLURM_PROCID")

# Least squares with a known answer. Arguments: global steps, seconds to wait after each step.
_PROGRAM = """\
import sys
import threading

import numpy as np

import windlass as wl

STEPS, PACE_S = int(sys.argv[1]), float(sys.argv[2])
WANTED = np.arange(4, dtype=np.float32)


def evaluate(values):
    return {"error": float(np.abs(values["w"] - WANTED).max())}


def train():
    strategy = wl.distribute.ParameterServerStrategy()
    me = f"{wl.training.task_type()}:{strategy.task_index}"
    with strategy.scope():
        w = wl.Variable(np.zeros(4, np.float32), name="w")
        b = wl.Variable(np.zeros((), np.float32), name="b")
    optimizer = wl.optimizers.SGD(0.05)
    rng = np.random.default_rng(strategy.task_index)
    pause = threading.Event()

    def step():
        x = rng.normal(size=(16, 4)).astype(np.float32)
        rest = x @ w.read_value() + b.read_value() - (x @ WANTED + 1)
        optimizer.apply_gradients([(x.T @ rest / 8, w), (np.float32(2 * rest.mean()), b)])
        return (rest * rest).mean()

    count = 0
    print(f"{me} begins at {strategy.global_step}")
    while strategy.global_step < STEPS:
        loss = strategy.run(step)
        count += 1
        wl.training.report(loss=loss, total_steps=STEPS)
        if count == 5:
            print(f"{me} has done {count} steps")
        # HOOK
        pause.wait(PACE_S)


if wl.training.is_evaluator():
    wl.training.SidecarEvaluator(evaluate, poll_s=0.05).start()
else:
    train()
"""


def _marked(mark: str) -> list[int]:
    """Processes that inherited the mark. Zombies have no environment any more."""
    found = []
    wanted = f"{_MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue  # not ours, or gone
    return found


def _wait(condition: Callable[[], object], timeout_s: float, what: str = "") -> None:
    pause = threading.Event()
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:g} s for {what or condition}")
        pause.wait(0.02)


@pytest.fixture
def restored_logger() -> Iterator[logging.Logger]:
    """Windlass's logger, put back after a test in which a command has set it up."""
    logger = logging.getLogger("windlass")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield logger
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """``wait_until(condition, timeout_s, what)``: poll, bounded; fails the test at the end."""
    return _wait


@pytest.fixture
def live_pids(no_process_left: str) -> Callable[[], list[int]]:
    """Processes of this test that run now."""
    return lambda: _marked(no_process_left)


@pytest.fixture
def no_process_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Fail if a process of this test outlives it; end it by its pid in any case."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(_MARK, mark)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    for name in [*_FOREIGN, *(name for name in os.environ if name.startswith("WINDLASS_"))]:
        monkeypatch.delenv(name, raising=False)
    yield mark
    deadline = time.monotonic() + 1.0  # a reaped process may still be listed for a moment
    while (left := _marked(mark)) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    words = {pid: _command_line(pid) for pid in left}
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    assert not words, "processes were left"


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "gone"


@pytest.fixture
def run_cli(
    no_process_left: str, tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_cli(*arguments, timeout_s=60, **environment)``: the ``windlass`` command, to its end."""

    def run(
        *arguments: str, timeout_s: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "windlass.launch.cli", *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

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
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "windlass.launch.cli", *arguments],
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
        process.wait(10)


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
