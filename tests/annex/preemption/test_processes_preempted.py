"""Tasks whose machine is about to be taken away, one after the other, and then all of them."""

import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from helpers.local_run import LivePids, LocalRun
from helpers.waiting import scaled, wait_until
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint
from ropewalk.core.task import State, TaskId

pytestmark = pytest.mark.scenario


@pytest.fixture
def job(
    tmp_path: Path, live_pids: LivePids, write_program: Callable[..., str]
) -> Iterator[LocalRun]:
    write_program("if count % 10 == 0:\n    print('step', count, flush=True)")
    run = LocalRun(
        tmp_path,
        live_pids,
        ["--workers", "2", "--ps", "1", "--evaluator", "--heartbeat-s", "0.1",
         "--preemption-file", str(tmp_path / "notice"), "train.py", "1000000", "0.01"],
    )  # fmt: skip
    try:
        yield run
    finally:
        run.stop()


def has_left(job: LocalRun, task: str) -> bool:
    return job.pid(task) is None


def test_who_is_asked_alone_leaves_a_job_that_goes_on_and_a_notice_has_all_leave_it_saved(
    job: LocalRun, tmp_path: Path
) -> None:
    job.until_said("worker:1 | step 20")
    for task in ("evaluator:0", "worker:1"):
        job.send(task, signal.SIGTERM)
        wait_until(partial(has_left, job, task), 30, f"{task} to leave")
    status = job.status()
    assert status is not None
    states = {each.task: each.state for each in status.tasks}
    assert states[TaskId("worker", 1)] is State.LEFT
    assert states[TaskId("worker", 0)] is State.ALIVE
    trained = status.global_step
    wait_until(lambda: (job.status() or status).global_step > trained + 20, 30, "more steps")
    assert job.launcher.poll() is None, job.said

    (tmp_path / "notice").touch()
    assert job.launcher.wait(scaled(30)) == 143, job.said
    assert "(preemption_file)" in job.said
    saved = latest_checkpoint(str(tmp_path / "model"))
    assert saved is not None
    assert saved.global_step > trained + 20
    CheckpointReader(saved.path).verify()
