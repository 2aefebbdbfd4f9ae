"""Jobs of ``ropewalk local`` of which a task leaves, or stays away for a while, as processes."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.local_run import LivePids, LocalRun
from helpers.waiting import scaled, wait_until
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint
from ropewalk.core.exit_codes import ExitCode

PROGRAM = """
import json, os, pathlib, time
import numpy as np
import ropewalk as rw

role = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    counts = [rw.Variable(np.zeros(1, np.float32), name=f"count{i}") for i in range(4)]
steps = pathlib.Path(f"steps-{role}")
made = int(steps.read_text()) if steps.exists() else 0
while not pathlib.Path("enough").exists():
    strategy.run(lambda: [count.assign_add([1]) for count in counts])
    made += 1
    pathlib.Path(f"new-{role}").write_text(str(made))
    pathlib.Path(f"new-{role}").replace(steps)
    time.sleep(0.01)
"""


pytestmark = pytest.mark.scenario


class Job(LocalRun):
    """A local job whose tasks count their steps."""

    def steps(self, role: str) -> int:
        file = self.folder / f"steps-{role}"
        return int(file.read_text()) if file.exists() else 0

    def go_on(self, *roles: str) -> None:
        """Wait until each of these roles has made more steps."""
        before = {role: self.steps(role) for role in roles}
        wait_until(lambda: all(self.steps(r) > n + 5 for r, n in before.items()), 60, "steps")


@pytest.fixture
def begin(live_pids: LivePids, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """``begin(*flags)``: a job of which each task has made some steps."""
    begun: list[Job] = []

    def start(*flags: str) -> Job:
        (tmp_path / "count.py").write_text(PROGRAM)
        job = Job(tmp_path, live_pids, ["--heartbeat-s", "0.1", *flags, "count.py"])
        begun.append(job)
        job.go_on("chief", "worker")
        return job

    yield start
    for each in begun:
        each.stop()


@pytest.mark.annex("replication")
def test_a_ps_that_leaves_early_is_lost_not_done(begin: Callable[..., Job]) -> None:
    """The chief, which would have others take over what it had, is away."""
    job = begin(
        "--ps", "2", "--ps-replicas", "2", "--restarts", "1", "--lease-s", str(scaled(1)),
        "--leave-grace-s", "0.2", "--drain-grace-s", "0.1",
    )  # fmt: skip
    job.until_said("share 0: ps:0 leads, followers: ps:1")  # of what leaves with ps:0
    job.send_away()
    job.send("chief:0", signal.SIGKILL)
    job.send("ps:0", signal.SIGTERM)
    job.until_said("leaving before the job is over")
    job.until_said("ps:0 was lost; starting it again")
    job.have_back()
    job.go_on("chief", "worker")
    assert job.end() == 0, job.said


def test_workers_wait_for_a_chief_that_is_started_again_however_long_it_is_away(
    begin: Callable[..., Job],
) -> None:
    lease_s = reconnect_s = scaled(1)
    job = begin(
        "--restarts", "1", "--lease-s", str(lease_s), "--reconnect-timeout-s", str(reconnect_s)
    )
    job.send_away()
    job.send("chief:0", signal.SIGKILL)
    job.until_said("goes on without the chief")
    before = job.steps("worker")
    # Beyond the time in which a worker gives up a chief that is not to return.
    wait_until(lambda: job.steps("worker") > before + 300, 60, "steps without the chief")
    job.have_back()
    job.until_said("the chief answers again")
    job.go_on("chief", "worker")
    assert job.end() == 0, job.said


def test_a_job_of_which_no_worker_is_left_does_not_end_well(begin: Callable[..., Job]) -> None:
    job = begin()
    job.send("worker:0", signal.SIGKILL)
    job.go_on("chief")
    made = job.steps("chief")
    assert job.end() == ExitCode.PEER_LOST, job.said
    assert "none of 1 worker is left to have a part in it: worker:0 " in job.said
    saved = latest_checkpoint(str(job.folder / "model"))
    assert saved is not None
    assert saved.global_step > made
    assert not CheckpointReader(saved.path).manifest.final


@pytest.mark.annex("replication")
def test_a_ps_that_has_left_is_started_when_the_job_is_to_have_it(
    begin: Callable[..., Job],
) -> None:
    job = begin("--ps", "2", "--ps-shares", "4")
    job.send("ps:0", signal.SIGTERM)
    job.until_said("leaves: other ps have what it had")
    for count in (2, 4):
        job.scale(count)
    job.go_on("chief", "worker")
    assert job.end() == 0, job.said
