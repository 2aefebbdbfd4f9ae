"""A chief that returns (``chief_returns``) and is asked to stop: alone, and with the whole job."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.replication.counting_job import CountingJob, counting_job
from helpers.replication.histories import read_history
from helpers.waiting import scaled, wait_until
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint
from ropewalk.core.exit_codes import ExitCode

CHIEF, WORKERS, PS = "chief:0", ("worker:0", "worker:1"), ("ps:0", "ps:1")
LOST_S = 4.0  # of lease_s and reconnect_timeout_s, after which others give up a chief
RETURNS: dict[str, Any] = {"ROPEWALK_CHIEF_RETURNS": "true", "ROPEWALK_RECONNECT_TIMEOUT_S": "1"}


@contextmanager
def job_to_stop(folder: Path) -> Iterator[CountingJob]:
    """A job that ends before its program does."""
    job = CountingJob(folder, replicas=1, rows=100, pause_s=0.01, **RETURNS)
    try:
        job.go_on()
        yield job
    finally:
        job.stop()


@pytest.mark.parametrize(
    "replicas",
    [
        pytest.param(1, id="no replicas", marks=pytest.mark.soak),
        pytest.param(2, id="replicas"),
    ],
)
def test_a_chief_that_alone_is_asked_to_stop_leaves_its_job_to_the_next_one(
    tmp_path: Path, replicas: int
) -> None:
    lease: dict[str, Any] = {"ROPEWALK_LEASE_S": str(scaled(LOST_S) - 1)}
    with counting_job(
        tmp_path, replicas=replicas, chief_counts=False, rows=100, pause_s=0.05, **RETURNS, **lease
    ) as job:
        job.go_on()
        job.running[CHIEF].terminate()
        assert job.running[CHIEF].wait(scaled(20)) == ExitCode.DRAINED
        left = time.monotonic()
        said = job.said(CHIEF)
        assert "leaves the job to the next chief" in said
        assert "(final)" not in said
        assert latest_checkpoint(str(tmp_path / "model")) is not None
        while time.monotonic() < left + scaled(LOST_S) + 2:  # as a chief that is killed had
            job.go_on(20)
        said = "goes on without the chief"
        wait_until(lambda: said in job.said("worker:0"), 20, "what the worker says of it")
        job.start_again(CHIEF)
        job.until_said("going on at global step")
        job.go_on()
        assert all(job.running[task].poll() is None for task in (*WORKERS, *PS))
    # Every count was as many as the steps that were made, and all have ended with 0.
    assert "the chief answers again" in job.said("worker:0")


@pytest.mark.parametrize(
    "order",
    [
        pytest.param((CHIEF, *WORKERS, *PS), id="the chief first"),
        pytest.param((*PS, *WORKERS, CHIEF), id="the ps first", marks=pytest.mark.soak),
        pytest.param((CHIEF, *WORKERS), id="all but the ps, as at a deadline"),
    ],
)
def test_a_job_that_is_stopped_as_a_whole_saves_all_steps_and_ends(
    tmp_path: Path, order: tuple[str, ...]
) -> None:
    with job_to_stop(tmp_path) as job:
        for task in order:
            job.running[task].terminate()
            time.sleep(0.2)  # the kubelets of its pods hear of it one after the other
        codes = {task: each.code for task, each in job.wait().items()}
        said = job.said(CHIEF)
        assert codes == dict.fromkeys(codes, ExitCode.DRAINED), said
        assert "leaves the job" not in said
        newest = latest_checkpoint(str(tmp_path / "model"))
        assert newest is not None, said
        saved = CheckpointReader(newest.path)
        for slot in range(job.num_workers + 1):
            made = read_history(tmp_path / f"history-{slot}", slot)
            for index in range(len(PS)):
                count = saved.read(f"count{index}")[slot]
                assert made.acknowledged <= count <= len(made.pushes)
