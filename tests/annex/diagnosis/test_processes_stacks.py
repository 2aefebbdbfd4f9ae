"""Jobs that hang, as processes: the true cause is named; and what they leave when they fail."""

import json
import os
import re
import signal
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers import processes
from helpers.local_run import LivePids, LocalRun
from helpers.waiting import scaled

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(240)]

BEGIN = """
import re, threading, time
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(4, np.float32), name="w")
me = rw.training.task_type()

def step():
    w.assign_add(np.ones(4, np.float32))

strategy.run(step)
"""
# A lock between two replicas, each of which has one and wants the other's.
DEADLOCK = """
first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

def replica():
    with second:
        both.wait()
        with first:
            step()

if me == "worker":
    threading.Thread(target=replica, name="replica-1", daemon=True).start()
    with first:
        both.wait()
        print("about to hang")
        with second:
            step()
time.sleep(600)
"""
# All of it in C, with the interpreter's lock.
LOOP = """
def spin():
    print("about to hang")
    re.match("(a+)+$", "a" * 60 + "b")

if me == "worker":
    spin()
time.sleep(600)
"""
TRAIN = """
print("trains")
while True:
    strategy.run(step)
    time.sleep(0.01)
"""
Run = Callable[[str], LocalRun]


@pytest.fixture
def run(tmp_path: Path, live_pids: LivePids) -> Iterator[Run]:
    """``run(text)``: a local job of a chief, a worker and a ps with that program."""
    begun = list[LocalRun]()

    def run(text: str) -> LocalRun:
        (tmp_path / "train.py").write_text(BEGIN + text)
        job = LocalRun(tmp_path, live_pids, ["--workers", "1", "--ps", "1", "train.py"])
        begun.append(job)
        return job

    yield run
    for job in begun:
        job.launcher.send_signal(signal.SIGINT)
        job.launcher.send_signal(signal.SIGINT)
        job.launcher.wait(scaled(60))


def _stacks(folder: Path, *more: str) -> dict[str, str]:
    command = [*processes.ROPEWALK, "stacks", "model", "--json", *more]
    code, said, errors = processes.run(
        command, timeout_s=scaled(60), cwd=folder, env={**os.environ}
    )
    assert code == 0, errors
    return {each["task"]: each["finding"] for each in map(json.loads, said.splitlines())}


def test_a_deadlock_of_two_replicas_is_named_with_both_places(run: Run, tmp_path: Path) -> None:
    run(DEADLOCK).until_said("about to hang")
    until = time.monotonic() + scaled(30)
    found = _stacks(tmp_path)
    while "different locks" not in found["worker:0"] and time.monotonic() < until:
        found = _stacks(tmp_path)  # the program has just said that it is about to
    assert set(found) == {"chief:0", "ps:0", "worker:0"}
    assert "MainThread wants second (train.py:" in found["worker:0"]
    assert "replica-1 wants first (train.py:" in found["worker:0"]


def test_a_worker_in_a_loop_inside_c_is_named_with_its_line(run: Run, tmp_path: Path) -> None:
    run(LOOP).until_said("about to hang")
    found = _stacks(tmp_path, "--timeout-s", "3", "--task", "worker:0")
    assert "it did not answer within 3 s" in found["worker:0"]
    assert "hold the interpreter, in C code that is called at train.py:" in found["worker:0"]
    assert "(spin)" in found["worker:0"]


def test_doctor_compares_the_tasks_of_a_job_that_runs(run: Run, tmp_path: Path) -> None:
    job = run(TRAIN)
    job.until_said("trains", 2)
    where = re.search(r"the chief is at (\S+)", job.said)
    assert where is not None
    command = [*processes.ROPEWALK, "doctor", where[1], "--timeout-s", "20"]
    _, said, errors = processes.run(command, timeout_s=scaled(60), cwd=tmp_path)
    steps = {line.split()[0]: line.split(maxsplit=2)[1:] for line in said.splitlines()}
    assert steps["tasks"][0] == "ok", said + errors
    assert steps["tasks"][1].strip() == "chief:0, ps:0, worker:0 answer"
    assert [steps[name][0] for name in ("versions", "clocks")] == ["ok", "ok"]


def test_a_failed_job_says_what_reads_it_and_its_ps_was_killed(run: Run, tmp_path: Path) -> None:
    job = run(TRAIN)
    job.until_said("trains", 2)
    pid = job.pid("ps:0")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    job.launcher.wait(scaled(120))
    assert "ps:0 failed; ending the job" in job.said
    assert "what happened: ropewalk report model" in job.said
    command = [*processes.ROPEWALK, "report", "model", "-o", "r.zip"]
    code, said, errors = processes.run(command, timeout_s=scaled(60), cwd=tmp_path)
    assert code == 0, errors
    with zipfile.ZipFile(tmp_path / "r.zip") as pack:
        names = [name for name in pack.namelist() if name.startswith("left/")]
        lines = [json.loads(line) for name in names for line in pack.read(name).splitlines()]
    of_ps = [each for each in lines if "ps/task:0" in str((each.get("peer"), each.get("error")))]
    assert {each["event"] for each in of_ps} & {"ps.broken", "checkpoint.failed"}, said
    assert "not in it" not in said
