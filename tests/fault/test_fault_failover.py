"""A ps with replicas that is killed, stands still or is asked to leave: nothing acknowledged is
lost, nothing is applied twice, and the job goes on.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers.clusters import HandStarted, tf_configs
from helpers.waiting import scaled, wait_until
from windlass.core.exit_codes import ExitCode

# Each task counts its own steps on both ps, until the test says that it is enough.
PROGRAM = """
import json, os, pathlib, sys, time
import numpy as np
import windlass as wl

task = json.loads(os.environ["TF_CONFIG"])["task"]
slot = 0 if task["type"] == "chief" else task["index"] + 1
strategy = wl.distribute.ParameterServerStrategy()
with strategy.scope():
    counts = [wl.Variable(np.zeros(3, np.int64), name=f"count{i}") for i in range(2)]
    table = wl.Variable(np.zeros((20_000, 32), np.float32), name="table")
one = np.eye(3, dtype=np.int64)[slot]
ones = np.ones(table.shape, np.float32)

def step():
    for count in counts:
        count.assign_add(one)
    table.assign_add(ones)

def say(steps):
    pathlib.Path(f"new-{slot}").write_text(str(steps))
    os.replace(f"new-{slot}", f"steps-{slot}")

steps = 0
say(steps)
while not pathlib.Path("enough").exists():
    strategy.run(step)
    steps += 1
    say(steps)
    seen = [int(count.read_value()[slot]) for count in counts]
    assert seen == [steps, steps], (seen, steps)
say(f"{steps} in all")
if slot == 0:
    while not all(pathlib.Path(f"steps-{i}").read_text().endswith("all") for i in range(3)):
        time.sleep(0.05)
    found = [count.read_value().tolist() for count in counts]
    print(json.dumps({"counts": found, "table": table.read_value()[[0, -1], 0].tolist()}))
"""


class CountingJob(HandStarted):
    """A chief, two workers and two ps with two replicas."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.configs = tf_configs(chief=1, worker=2, ps=2)
        self.environment = {
            "WINDLASS_PS_REPLICAS": "2",
            "WINDLASS_MODEL_DIR": str(folder / "model"),
            **environment,
        }
        (folder / "program.py").write_text(PROGRAM)
        self.command = ["windlass", "run", "program.py"]
        super().__init__(self.command, self.configs, folder, **self.environment)

    def until_said(self, *words: str) -> None:
        """Wait until the chief has said each of these, in this order."""

        def has_said() -> bool:
            text, start = self.said("chief:0"), 0
            for each in words:
                start = text.find(each, start) + 1
                if not start:
                    return False
            return True

        wait_until(has_said, 60, " … ".join(words))

    def steps(self) -> list[int]:
        """How many steps each task has made."""
        files = [self.folder / f"steps-{slot}" for slot in range(3)]
        return [int(file.read_text().split()[0]) if file.exists() else 0 for file in files]

    def go_on(self) -> None:
        """Wait until each task has made some more steps."""
        before = self.steps()
        wait_until(
            lambda: all(a >= b + 5 for a, b in zip(self.steps(), before, strict=True)),
            30,
            "steps of all tasks",
        )

    def start_again(self, task: str) -> None:
        """Start a task again, as a cluster manager does."""
        self.running[task].wait(scaled(10))
        again = HandStarted(
            self.command, {task: self.configs[task]}, self.folder, **self.environment
        )
        self.running[task] = again.running[task]

    def end(self) -> None:
        """Let the program end, and check every count."""
        (self.folder / "enough").touch()
        ended = self.wait()
        assert {task: each.code for task, each in ended.items()} == dict.fromkeys(ended, 0), ended[
            "chief:0"
        ].text
        [line] = [line for line in ended["chief:0"].text.splitlines() if line[:1] == "{"]
        steps = self.steps()
        assert json.loads(line) == {"counts": [steps, steps], "table": [sum(steps)] * 2}


@contextmanager
def counting_job(folder: Path, **environment: str) -> Iterator[CountingJob]:
    job = CountingJob(folder, **environment)
    try:
        job.until_said("followers: ps:", "followers: ps:")
        yield job
        job.end()
    finally:
        for process in job.running.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
            process.wait(10)


def test_a_killed_ps_takes_nothing_with_it_and_its_successor_neither(tmp_path: Path) -> None:
    with counting_job(tmp_path) as job:
        job.go_on()
        job.running["ps:0"].kill()
        job.until_said("share 0: ps:1 leads, followers: none")
        job.go_on()
        job.start_again("ps:0")
        job.until_said("share 0: ps:1 leads, followers: ps:0")
        job.until_said("share 1: ps:1 leads, followers: ps:0 (epoch 4)")
        job.running["ps:1"].kill()
        job.until_said("share 0: ps:0 leads, followers: none", "(epoch 5)")
        job.go_on()
        job.start_again("ps:1")


def test_a_ps_that_is_asked_to_leave_hands_over_what_it_has(tmp_path: Path) -> None:
    with counting_job(tmp_path) as job:
        job.go_on()
        job.running["ps:0"].terminate()
        assert job.running["ps:0"].wait(scaled(10)) == 0
        job.go_on()
    assert "leaves: other ps have what it had" in job.said("ps:0")


def test_a_ps_that_stands_still_is_replaced_and_follows_when_it_comes_back(tmp_path: Path) -> None:
    with counting_job(tmp_path) as job:
        job.go_on()
        os.kill(job.running["ps:1"].pid, signal.SIGSTOP)
        job.until_said("share 1: ps:0 leads, followers: none")
        job.go_on()
        os.kill(job.running["ps:1"].pid, signal.SIGCONT)
        job.until_said("share 1: ps:0 leads, followers: ps:1")
        job.go_on()


def test_the_loss_of_all_replicas_ends_the_job_and_says_so(tmp_path: Path) -> None:
    job = CountingJob(tmp_path)
    try:
        job.until_said("followers: ps:", "followers: ps:")
        job.go_on()
        for task in ("ps:0", "ps:1"):
            job.running[task].kill()
        assert job.running["chief:0"].wait(scaled(60)) == ExitCode.PEER_LOST
        assert "was lost, and with it the last replica of share" in job.said("chief:0")
    finally:
        for process in job.running.values():
            process.kill()
            process.wait(10)
