"""Cuts of a job that trains in processes: every one is consistent, whoever stands still or dies."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import ropewalk as rw
from helpers.clusters import HandStarted, tf_configs
from helpers.waiting import wait_until

# Each task counts in variables on both ps, and, in a table on one of them, every third step.
# Pushes to the first ps are small, those to the second one take longer.
PROGRAM = """
import json, os, pathlib, time
import numpy as np
import ropewalk as rw

task = json.loads(os.environ["TF_CONFIG"])["task"]
slot = 0 if task["type"] == "chief" else task["index"] + 1
strategy = rw.distribute.ParameterServerStrategy(placement=rw.distribute.placement.round_robin)
with strategy.scope():
    first = rw.Variable(np.zeros(3, np.float32), name="first")
    second = rw.Variable(np.zeros((3, 200_000), np.float32), name="second")
    table = rw.Variable(np.zeros((30_000, 8), np.float32), name="table")
ones = np.zeros(second.shape, np.float32)
ones[slot] = 1
rows = np.array([slot, 15_000 + slot, 29_990 + slot])

def step():
    first.assign_add(np.eye(3, dtype=np.float32)[slot])
    second.assign_add(ones)

def sparse():
    step()
    table.scatter_add(rw.IndexedSlices(np.ones((3, 8), np.float32), rows))

steps = 0
while not pathlib.Path("enough").exists():
    strategy.run(sparse if steps % 3 == 0 else step)
    steps += 1
    time.sleep(0.005)
    if slot == 0 and steps % 10 == 0 and not pathlib.Path("no-snapshots").exists():
        try:
            values = strategy.snapshot(timeout_s=2).values
        except rw.errors.CutVoidError as error:
            print("no snapshot:", error, flush=True)
            continue
        whole = values["second"]
        assert (whole.min(axis=1) == whole.max(axis=1))[0]
        assert values["first"][0] == whole[0, 0] == steps, (values["first"], steps)
        print("snapshot", values["first"].tolist(), flush=True)
"""


TASKS = ["/job:chief/task:0", "/job:worker/task:0", "/job:worker/task:1"]


class CutJob(HandStarted):
    """A chief, two workers and two ps that save all the time."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.model = folder / "model"
        self.folder = folder
        (folder / "program.py").write_text(PROGRAM)
        settings = {
            "ROPEWALK_MODEL_DIR": str(self.model),
            "ROPEWALK_SAVE_EVERY_S": "0.3",
            "ROPEWALK_KEEP_CHECKPOINTS": "1000",
            "ROPEWALK_HEARTBEAT_S": "0.1",
            "ROPEWALK_LEASE_S": "2",
        }
        configs = tf_configs(chief=1, worker=2, ps=2)
        command = ["ropewalk", "run", "program.py"]
        super().__init__(command, configs, folder, **settings, **environment)

    def manifests(self) -> list[Path]:
        return sorted(self.model.glob("ckpt-*/manifest.json"))

    def cuts(self) -> int:
        """How many checkpoints are of one moment of all ps."""
        return sum(json.loads(each.read_text())["cut"] is not None for each in self.manifests())

    def until_more_cuts(self, count: int = 2) -> None:
        before = self.cuts()
        wait_until(lambda: self.cuts() >= before + count, 60, "more cuts")

    def check(self) -> int:
        """Check every checkpoint that is of one moment; how many there are.

        A task that the chief has given up may have pushed its last step to one ps alone.
        """
        checked = 0
        for manifest in self.manifests():
            cut = json.loads(manifest.read_text())["cut"]
            if cut is None:
                continue
            path = str(manifest.parent)
            first, second, table = (
                rw.train.load_variable(path, name) for name in ("first", "second", "table")
            )
            for slot in (TASKS.index(task) for task in cut["workers"]):
                assert set(second[slot].tolist()) == {first[slot]}, (path, slot)
                rows = table[[slot, 15_000 + slot, 29_990 + slot]]
                assert set(rows.reshape(-1).tolist()) == {-(-first[slot] // 3)}, (path, slot)
            checked += 1
        return checked

    def stop(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
            process.wait(10)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[CutJob]:
    made = CutJob(tmp_path)
    try:
        made.until_more_cuts()
        yield made
    finally:
        made.stop()


def test_every_cut_is_consistent_while_a_worker_stands_still_and_when_one_dies(job: CutJob) -> None:
    wait_until(lambda: job.said("chief:0").count("snapshot [") >= 3, 60, "snapshots")
    # A worker that stands still is left out once the chief has given it up, and so is a dead one.
    os.kill(job.running["worker:0"].pid, signal.SIGSTOP)
    job.until_more_cuts()
    os.kill(job.running["worker:0"].pid, signal.SIGCONT)
    job.until_more_cuts()
    job.running["worker:1"].kill()
    job.until_more_cuts()
    (job.folder / "enough").touch()
    ended = job.wait()
    assert ended["chief:0"].code == 0, ended["chief:0"].text[-3000:]
    assert job.check() >= 6


@pytest.mark.soak
def test_a_ps_that_is_killed_makes_the_cut_void_and_the_next_one_is_consistent(
    tmp_path: Path,
) -> None:
    job = CutJob(tmp_path, ROPEWALK_PS_REPLICAS="2")
    try:
        job.until_more_cuts()
        job.running["ps:0"].kill()
        wait_until(lambda: "share 0: ps:1 leads" in job.said("chief:0"), 60, "a new leader")
        job.until_more_cuts(4)
        (job.folder / "enough").touch()
        ended = job.wait()
        assert ended["chief:0"].code == 0, ended["chief:0"].text[-3000:]
        assert job.check() >= 6
    finally:
        job.stop()
