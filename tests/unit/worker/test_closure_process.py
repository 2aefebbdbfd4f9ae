"""A process that is lost is replaced, unless it was asked to end or never joined."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import processes
from helpers.pages import ROOT
from helpers.waiting import scaled

Run = Callable[[str], tuple[int, str, str]]

BEGINNING = """
import logging, os, signal, sys, time
from ropewalk.core.errors import JoinTimeoutError
from ropewalk.worker.closures import ClosureProcesses

logging.basicConfig(format="%(message)s")

def is_first():
    try:
        os.close(os.open("first", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

def run(serve):
    sys.exit(ClosureProcesses(serve, "worker 0").run())
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(program: str) -> tuple[int, str, str]:
        return processes.run(
            [sys.executable, "-c", BEGINNING + program],
            timeout_s=scaled(30),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )

    return run


def test_its_exit_code_is_the_process_s(run: Run) -> None:
    assert run("run(lambda joined: 143)") == (143, "", "")


def test_a_lost_one_is_replaced_and_what_it_forked_ends_with_it(run: Run) -> None:
    code, said, errors = run("""
def serve(joined):
    joined()
    if is_first():
        left = os.fork()
        if left == 0:
            os.setsid()
            time.sleep(60)
        print(left)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    print("serves")
    return 0

run(serve)
""")
    left, *rest = said.split()
    assert (code, rest) == (0, ["serves"])
    assert not Path(f"/proc/{left}").exists()
    assert errors == (
        "worker 0: the process of its closures was ended by SIGKILL; a new one takes its place\n"
    )


def test_one_that_never_joins_is_not_replaced_for_ever(run: Run) -> None:
    code, _, errors = run("run(lambda joined: os._exit(9))")
    assert code == 9
    assert errors.count("a new one takes its place") == 4


def test_a_signal_is_passed_on_and_its_end_is_the_end(run: Run) -> None:
    code, _, errors = run("""
def serve(joined):
    joined()
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)

run(serve)
""")
    assert (code, errors) == (143, "")


def test_its_error_is_raised(run: Run) -> None:
    code, _, errors = run("""
def serve(joined):
    raise JoinTimeoutError("nobody is there", missing="ps:0")

try:
    run(serve)
except JoinTimeoutError as error:
    assert error.fields == {"missing": "ps:0"}
    print(error, file=sys.stderr)
""")
    assert (code, errors) == (0, "nobody is there\n")
