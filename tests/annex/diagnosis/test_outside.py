"""A process that holds its interpreter, looked at from outside."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.processes import ROOT
from helpers.waiting import scaled, wait_until
from ropewalk.annexes.diagnosis import outside
from ropewalk.annexes.diagnosis.stacks import place_of
from ropewalk.annexes.diagnosis.task_process import SIGNAL

BEGIN = """
import re, sys, threading, time
from ropewalk.annexes.diagnosis import task_process
from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId

spec = ClusterSpec({"chief": ["127.0.0.1:7"], "worker": ["127.0.0.1:8"]})
task = ResolvedTask(TaskId("worker", 0), spec, TaskId("chief", 0), "127.0.0.1:7")
task_process.begin(task, Settings())
threading.Thread(target=time.sleep, args=[600], name="loader", daemon=True).start()
task_process.note_threads()
"""
# A search that takes ages, all of it in C, with the interpreter's lock.
LOOP = """
def spin():
    print("spins", flush=True)
    re.match("(a+)+$", "a" * 60 + "b")
spin()
"""
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(text)``: a process of a program, once it has printed a line."""
    begun = list[subprocess.Popen[str]]()

    def start(text: str) -> "subprocess.Popen[str]":
        path = tmp_path / "train.py"
        path.write_text(text)
        environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
        process = subprocess.Popen(
            [sys.executable, path], stdout=subprocess.PIPE, text=True, env=environment
        )
        begun.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.timeout(120)
def test_a_process_in_a_loop_of_c_writes_its_stacks_and_goes_on(start: Start) -> None:
    process = start(BEGIN + LOOP)
    seen = outside.task_process(process.pid)
    assert seen is not None
    assert (seen.task, seen.chief) == ("worker:0", "127.0.0.1:7")

    def is_inside() -> bool:  # it says that it spins before it does
        stacks = outside.stacks_of(seen)
        return bool(stacks and any("re.match" in call.text for call in stacks[0].calls))

    for _ in range(2):
        wait_until(is_inside, 10, "the loop")
        stacks = outside.stacks_of(seen)
        assert stacks is not None
        assert [stack.name for stack in stacks[:1]] == ["MainThread"]
        assert "loader" in {stack.name for stack in stacks}
        assert place_of(stacks[0]).endswith("(spin)")
        assert any("re.match" in call.text for call in stacks[0].calls)
    assert process.poll() is None


def test_a_process_that_handles_no_such_signal_is_not_sent_one(start: Start) -> None:
    undone = f"import faulthandler\nfaulthandler.unregister({SIGNAL})\nprint('ready', flush=True)\n"
    process = start(BEGIN + undone + "time.sleep(600)\n")
    seen = outside.task_process(process.pid)
    assert seen is not None
    assert outside.stacks_of(seen, wait_s=0.2) is None
    assert process.poll() is None


def test_a_process_that_is_no_task_is_none(start: Start) -> None:
    process = start("import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    assert outside.task_process(process.pid) is None
    assert process.pid not in {each.pid for each in outside.task_processes()}
    process.kill()
    process.wait(scaled(10))
    assert outside.task_process(process.pid) is None


def test_all_tasks_of_this_user_here_are_found(start: Start) -> None:
    process = start(BEGIN + "print('ready', flush=True)\ntime.sleep(600)\n")
    assert process.pid in {each.pid for each in outside.task_processes()}


def test_a_stopped_process_writes_nothing_and_is_no_error(start: Start) -> None:
    process = start(BEGIN + "print('ready', flush=True)\ntime.sleep(600)\n")
    process.send_signal(signal.SIGSTOP)
    state = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: " T " in state.read_text(), 10, "stopped")
    seen = outside.task_process(process.pid)
    assert seen is not None
    assert outside.stacks_of(seen, wait_s=0.2) is None


def test_native_stacks_say_what_to_install_or_what_py_spy_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(outside, "_OWN", tmp_path)
    assert "install py-spy" in outside.native_stacks(4711)
    tool = tmp_path / "py-spy"
    tool.write_text('#!/bin/sh\necho "$@"\n')
    tool.chmod(0o755)
    assert outside.native_stacks(4711) == "dump --pid 4711 --native\n"
    tool.write_text("#!/bin/sh\necho no rights >&2\nexit 1\n")
    assert "no rights" in outside.native_stacks(4711)


@pytest.mark.needs("a right to trace", "py-spy")
def test_native_stacks_have_the_function_of_c_that_holds_the_interpreter(start: Start) -> None:
    process = start(BEGIN + LOOP)
    said = list[str]()

    def is_inside() -> bool:
        said[:] = [outside.native_stacks(process.pid)]
        return re.search(r"^ +_?sre_.*match", said[0], re.MULTILINE) is not None

    wait_until(is_inside, 20, "the function of C")
    assert "spin (" in said[0]
    assert process.poll() is None
