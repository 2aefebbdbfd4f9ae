"""PreemptionCheckpointHandler: when it saves, what it counts, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from helpers.processes import start
from helpers.waiting import scaled, wait_until
from ropewalk.annexes.preemption.handler import CallLooks, is_due
from ropewalk.core.settings import child_environment
from ropewalk.net.this_machine import free_ports

Handler = rw.distribute.experimental.PreemptionCheckpointHandler
Config = rw.distribute.experimental.TerminationConfig


class EndedError(Exception):
    """The program was ended."""


def end() -> None:
    raise EndedError


class Program:
    """A program that adds one to a variable in each step.

    Args:
        folder: Where it saves.
        config: Arguments of its TerminationConfig.
    """

    def __init__(self, folder: Path, **config: Any) -> None:
        self.value = rw.Variable(0.0, name="value")
        self.is_noticed = threading.Event()
        checkpoint = rw.train.Checkpoint(value=self.value)
        config = {"termination_watcher_fn": self.is_noticed.is_set, "exit_fn": end, **config}
        self.handler = Handler(None, checkpoint, str(folder), Config(**config))

    def step(self, more: float = 1.0) -> float:
        self.value.assign_add(more)
        return float(self.value.numpy())

    def run(self) -> None:
        while True:
            self.handler.run(self.step)

    def run_until_ended(self) -> None:
        with pytest.raises(EndedError):
            self.run()

    def step_and_ask(self) -> None:
        while True:
            self.step()
            self.handler.save_checkpoint_if_preempted("now", name="x")

    def step_in_scopes(self) -> None:
        while True:
            with self.handler.watch_preemption_scope():
                self.step()


def test_a_step_gets_its_arguments_and_its_result_comes_back(tmp_path: Path) -> None:
    program = Program(tmp_path)
    assert program.handler.run(program.step, 2.0) == 2.0
    assert program.handler.run(program.step, more=3.0) == 5.0
    assert program.handler.total_run_calls == 2


def test_after_a_notice_it_saves_ends_and_the_next_one_goes_on_from_there(tmp_path: Path) -> None:
    first = Program(tmp_path)
    first.handler.run(first.step)
    first.is_noticed.set()
    first.run_until_ended()
    made = first.handler.total_run_calls
    assert float(first.value.numpy()) == made > 0
    second = Program(tmp_path)
    assert second.handler.total_run_calls == made
    assert float(second.value.numpy()) == made
    second.handler.run(second.step)
    assert second.handler.total_run_calls == made + 1


def test_without_run_a_program_says_when_it_can_be_saved(tmp_path: Path) -> None:
    given: list[tuple[Any, ...]] = []
    program = Program(tmp_path, save_fn=lambda *names, **named: given.append((names, named)))
    program.is_noticed.set()
    with pytest.raises(EndedError):
        program.step_and_ask()
    assert given == [(("now",), {"name": "x"})]
    assert program.handler.total_run_calls == 0


def test_the_end_of_a_scope_is_such_a_moment(tmp_path: Path) -> None:
    program = Program(tmp_path)
    program.is_noticed.set()
    with pytest.raises(EndedError):
        program.step_in_scopes()


def test_a_program_whose_exit_returns_goes_on_and_saves_no_more(tmp_path: Path) -> None:
    saves: list[float] = []
    program = Program(tmp_path, exit_fn=lambda: None, save_fn=lambda: saves.append(1.0))
    program.is_noticed.set()
    wait_until(lambda: program.handler.run(program.step) and saves, 30, "the save")
    for _ in range(500):
        program.handler.run(program.step)
    assert len(saves) == 1


def test_a_watcher_that_fails_is_a_notice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bool:
        raise OSError("no metadata server")

    Program(tmp_path, termination_watcher_fn=broken).run_until_ended()
    assert "no metadata server" in caplog.text


@pytest.mark.parametrize(
    ("noticed", "grace_s", "now", "due"),
    [
        pytest.param(None, 0.0, 1e9, False, id="no notice"),
        pytest.param(10.0, 0.0, 10.0, True, id="at once"),
        pytest.param(10.0, 4.0, 10.0, True, id="too little time to go on"),
        pytest.param(10.0, 12.0, 16.9, False, id="five seconds are left at least"),
        pytest.param(10.0, 12.0, 17.0, True, id="and are for the save"),
        pytest.param(10.0, 120.0, 99.0, False, id="three quarters of a long time"),
        pytest.param(10.0, 120.0, 100.0, True, id="and no more"),
    ],
)
def test_training_goes_on_for_a_part_of_the_grace_period(
    noticed: float | None, grace_s: float, now: float, due: bool
) -> None:
    assert is_due(noticed, grace_s, now) == due


@pytest.mark.parametrize("call_s", [0.0001, 0.01, 0.1, 3.0])
def test_workers_look_at_the_same_calls_about_twice_a_second(call_s: float) -> None:
    """The first one's suggestion counts, so a slower one beside it looks with it."""
    first, second, now, looks = CallLooks(), CallLooks(), 0.0, []
    for call in range(1, 2000):
        now += call_s
        looked = first.begin_call()
        assert looked == second.begin_call()
        if looked:
            looks.append(call)
            interval = first.suggest(now)
            second.suggest(now * 2)
            first.agree(interval)
            second.agree(interval)
    usual = looks[-1] - looks[-2]
    assert abs(usual - max(1, min(200, 0.5 / call_s))) <= 1
    assert looks[:2] == [1, 2]


def test_who_gives_what_it_cannot_use_is_told(tmp_path: Path) -> None:
    checkpoint = rw.train.Checkpoint(value=rw.Variable(0.0))
    with pytest.raises(ValueError, match="checkpoint_dir says where"):
        Handler(None, checkpoint)
    manager = rw.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=2)
    with pytest.raises(ValueError, match="the manager's own"):
        Handler(None, manager, str(tmp_path))
    with pytest.raises(TypeError, match="got str"):
        Handler(None, "model", str(tmp_path))  # type: ignore[arg-type]
    spec = rw.train.ClusterSpec({"worker": ["a:1"], "ps": ["b:1"]})
    resolver = rw.distribute.cluster_resolver.SimpleClusterResolver(spec)
    with pytest.raises(NotImplementedError, match="goes on without a worker"):
        Handler(resolver, manager)


def test_outside_the_main_thread_there_are_no_signals(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def make() -> None:
        with pytest.raises(ValueError, match="termination_watcher_fn") as raised:
            Program(tmp_path, termination_watcher_fn=None)
        errors.append(raised.value)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert errors


PROGRAM = """
import sys, time
import numpy as np
import ropewalk as rw

strategy = rw.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(3, np.float32), name="w")
checkpoint = rw.train.Checkpoint(w=w)
handler = rw.distribute.experimental.PreemptionCheckpointHandler(
    strategy.cluster_resolver, checkpoint, sys.argv[1]
)
print("begins after", handler.total_run_calls, float(w.numpy()[0]), flush=True)
optimizer = rw.optimizers.SGD(1.0)


def step():
    optimizer.apply_gradients([(-np.ones(3, np.float32) / 2, w)])


last = int(sys.argv[2]) or 10**9
while handler.total_run_calls < last:
    handler.run(lambda: strategy.run(step))
    if handler.total_run_calls % 10 == 0:
        print("step", handler.total_run_calls, flush=True)
    time.sleep(0.01)
print("done after", handler.total_run_calls, float(w.numpy()[0]), flush=True)
"""


def start_workers(folder: Path, last: int) -> list[subprocess.Popen[str]]:
    (folder / "program.py").write_text(PROGRAM)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]

    def worker(rank: int) -> subprocess.Popen[str]:
        where = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        return start(
            [sys.executable, "-u", folder / "program.py", folder / "saved", str(last)],
            env=child_environment(TF_CONFIG=json.dumps(where)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return [worker(rank) for rank in range(2)]


@pytest.mark.annex("ring")
def test_workers_in_sync_save_after_the_same_step_and_go_on_from_it(tmp_path: Path) -> None:
    """SIGTERM of one of them, while neither has a model directory: nothing else saves."""
    processes = start_workers(tmp_path, 0)
    try:
        assert processes[1].stdout is not None
        for line in processes[1].stdout:
            if line.startswith("step 20"):
                break
        os.kill(processes[1].pid, signal.SIGTERM)
        said = [process.communicate(timeout=scaled(60))[0] for process in processes]
        assert [process.returncode for process in processes] == [143, 143], said
        processes += start_workers(tmp_path, 400)
        after = [process.communicate(timeout=scaled(60))[0] for process in processes[2:]]
        assert [process.returncode for process in processes[2:]] == [0, 0], after
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    begun = [text.split("begins after ")[1].splitlines()[0].split() for text in after]
    assert begun[0] == begun[1]  # the same step on both
    calls, value = int(begun[0][0]), float(begun[0][1])
    assert calls >= 20
    assert value == calls  # each step counted once
    assert all("done after 400 400.0" in text for text in after)
