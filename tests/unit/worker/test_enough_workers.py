"""The chief's program begins when enough workers have joined."""

import logging

import pytest

from ropewalk.cluster.job.job import Job
from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.clock import SystemClock
from ropewalk.core.errors import ConfigurationError, JobStoppedError, JoinTimeoutError
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.server.chief.servicer import LockedJob
from ropewalk.worker.lead.leader import wait_for_workers

CHIEF = TaskId("chief", 0)
SPEC = ClusterSpec({"chief": ["c:1"], "worker": ["a:1", "b:1", "d:1"]})


def locked_job(*joined: int) -> LockedJob:
    clock = SystemClock()
    expected = [(task, "") for task in SPEC.tasks()]
    job = Job(expected, chief=CHIEF, lease_s=10, now=clock.now())
    for index in joined:
        job.register(TaskId("worker", index), now=clock.now())
    return LockedJob(job, clock)


def wait(
    job: LockedJob, count: int, *, dynamic: bool = False, checks: int = 1000, resumes: bool = False
) -> None:
    settings = Settings(wait_for_workers=count, join_timeout_s=0.2)
    task = ResolvedTask(CHIEF, SPEC, CHIEF, dynamic=dynamic)
    left = iter(range(checks))

    def check() -> None:
        if next(left, None) is None:
            raise JobStoppedError("asked to stop")

    wait_for_workers(job, settings, task, check, resumes=resumes)


def test_enough_are_enough(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    wait(locked_job(0, 2), 2)
    assert not caplog.records


def test_who_is_missing_is_said_and_named_in_the_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ropewalk.worker")
    with pytest.raises(JoinTimeoutError, match=r"0\.2 s .* for 2 workers .*; 1 joined") as caught:
        wait(locked_job(1), 2)
    missing = "/job:worker/task:0, /job:worker/task:2"
    assert caught.value.fields["missing"] == missing
    assert caplog.messages == [f"waiting for 1 of 2 workers: {missing}"]


def test_a_job_that_was_scaled_down_resumes_without_those_that_are_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wait(locked_job(0), 2, resumes=True)
    assert "goes on with 1 of 2 workers" in caplog.messages[-1]
    assert "/job:worker/task:1" in caplog.messages[-1]


def test_a_wait_ends_when_the_job_does() -> None:
    with pytest.raises(JobStoppedError):
        wait(locked_job(), 2, checks=2)


def test_more_than_the_cluster_has_is_refused_at_once_unless_it_may_grow() -> None:
    with pytest.raises(ConfigurationError, match="--wait-for-workers=4: the cluster has 3 workers"):
        wait(locked_job(0, 1, 2), 4)
    with pytest.raises(JoinTimeoutError):
        wait(locked_job(0, 1, 2), 4, dynamic=True)


def test_all_workers_of_the_cluster_are_waited_for_and_the_status_says_for_whom() -> None:
    job, seen = locked_job(0), list[str]()

    def look() -> None:
        with job.open() as (inside, now):
            seen.append(inside.reason)
            if len(seen) == 3:
                inside.register(TaskId("worker", 2), now=now)
            if len(seen) == 5:
                inside.register(TaskId("worker", 1), now=now)

    wait_for_workers(job, Settings(wait_for_workers=-1), ResolvedTask(CHIEF, SPEC, CHIEF), look)
    both, one = "waiting for worker:1, worker:2", "waiting for worker:1"
    assert seen == ["", both, both, one, one]
    with job.open() as (inside, _):
        assert inside.reason == ""


def test_of_all_workers_those_that_do_not_come_are_not_waited_for_in_vain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wait(locked_job(0, 2), -1)
    assert caplog.messages == [
        "goes on with 2 of 3 workers (wait_for_workers): /job:worker/task:1 did not join within "
        "0.2 s"
    ]
    lost = locked_job(0, 1, 2)
    with lost.open() as (job, now):
        job.expire(now=now + 100)
    caplog.clear()
    wait(lost, -1)
    assert not caplog.records, "one that was there may be gone for good"
    with pytest.raises(JobStoppedError):
        wait(lost, 3, checks=2)


def test_a_job_that_is_stopped_while_its_chief_waits_keeps_its_reason() -> None:
    job = locked_job(0)

    def stop() -> None:
        with job.open() as (inside, _):
            inside.stop("Ctrl-C")
        raise JobStoppedError("asked to stop")

    with pytest.raises(JobStoppedError):
        wait_for_workers(job, Settings(wait_for_workers=-1), ResolvedTask(CHIEF, SPEC, CHIEF), stop)
    with job.open() as (inside, _):
        assert inside.reason == "Ctrl-C"
