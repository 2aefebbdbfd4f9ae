"""A job's own numbers: rates between two samples, means over tasks, the load of each ps."""

import math

import pytest

from ropewalk.cluster.job.job import Job
from ropewalk.cluster.job.scalars import JobSample, job_scalars, sample_every_s, sample_job
from ropewalk.core.report import PsCounters, TaskEnd, TaskReport
from ropewalk.core.task import Incarnation, Outcome, TaskId

CHIEF, WORKER, PS = TaskId("chief", 0), TaskId("worker", 0), TaskId("ps", 0)
EVALUATOR = TaskId("evaluator", 0)


class Running:
    """A job whose tasks have registered at second 0."""

    def __init__(self, *tasks: TaskId) -> None:
        self.job = Job([(task, "") for task in tasks], chief=CHIEF, lease_s=100, now=0)
        self.who = {task: self.job.register(task, now=0) for task in tasks if task.type != "ps"}

    def heard(self, task: TaskId, report: TaskReport, now: float) -> Incarnation:
        self.job.heartbeat(self.who[task], report, now=now)
        return self.who[task]


def test_rates_are_of_the_time_between_samples() -> None:
    running = Running(CHIEF, WORKER, PS)
    running.job.ps_answered(PS, 1, PsCounters(pushes=10, bytes_in=0, global_step=10), now=0)
    before = sample_job(running.job, 0)
    running.heard(WORKER, TaskReport(steps=30, pushes=30, staleness=2.0, global_step=50), now=2)
    running.heard(CHIEF, TaskReport(steps=10, pushes=10, staleness=1.0, global_step=50), now=2)
    running.job.ps_answered(
        PS, 1, PsCounters(pushes=50, bytes_in=4 * 2**20, value_bytes=2**20, global_step=50), now=2
    )
    found = job_scalars(before, sample_job(running.job, 2))
    assert found["job/steps_per_second"] == 20
    assert found["job/workers"] == 2
    assert (found["job/staleness"], found["job/staleness_of_the_worst"]) == (1.5, 2.0)
    assert found["tasks/worker-0/steps_per_second"] == 15
    assert found["ps/0/pushes_per_second"] == 20
    assert found["ps/0/received_mib_per_second"] == 2
    assert found["ps/0/memory_mib"] == 1


def test_metrics_are_means_over_the_tasks_that_train_and_a_nan_is_seen() -> None:
    running = Running(CHIEF, WORKER, EVALUATOR)
    before = sample_job(running.job, 0)
    running.heard(WORKER, TaskReport(metrics={"loss": 1.0, "bad": 1.0}), now=1)
    running.heard(CHIEF, TaskReport(metrics={"loss": 3.0, "bad": math.nan}), now=1)
    running.heard(EVALUATOR, TaskReport(metrics={"loss": 100.0}), now=1)
    found = job_scalars(before, sample_job(running.job, 1))
    assert found["metrics/loss"] == 2.0
    assert math.isnan(found["metrics/bad"])
    assert "job/staleness" not in found  # in sync nobody is stale


def test_a_restarted_ps_and_worker_have_no_negative_rates() -> None:
    running = Running(CHIEF, WORKER, PS)
    running.heard(WORKER, TaskReport(steps=100), now=0)
    running.job.ps_answered(PS, 1, PsCounters(pushes=100), now=0)
    before = sample_job(running.job, 0)
    running.heard(WORKER, TaskReport(steps=4), now=2)
    running.job.ps_answered(PS, 1, PsCounters(pushes=6), now=2)
    found = job_scalars(before, sample_job(running.job, 2))
    assert found["tasks/worker-0/steps_per_second"] == 2
    assert found["ps/0/pushes_per_second"] == 3


def test_a_task_that_is_done_keeps_its_metrics() -> None:
    running = Running(CHIEF, WORKER)
    before = sample_job(running.job, 0)
    who = running.heard(WORKER, TaskReport(metrics={"loss": 1.0}), now=1)
    running.job.finish(who, TaskEnd(Outcome.DONE), TaskReport(metrics={"loss": 0.5}), now=2)
    assert job_scalars(before, sample_job(running.job, 3))["metrics/loss"] == 0.5


def test_of_many_tasks_there_are_means_alone() -> None:
    workers = [TaskId("worker", number) for number in range(70)]
    running = Running(CHIEF, *workers)
    before = sample_job(running.job, 0)
    found = job_scalars(before, sample_job(running.job, 1))
    assert found["job/workers"] == 71
    assert not [tag for tag in found if tag.startswith("tasks/")]


def test_a_job_that_resumes_did_not_make_the_steps_of_its_checkpoint_now() -> None:
    running = Running(CHIEF, WORKER)
    running.heard(WORKER, TaskReport(steps=6, global_step=1006), now=2)
    found = job_scalars(JobSample.of_nothing(0), sample_job(running.job, 2))
    assert found["job/steps_per_second"] == 3


def test_no_time_no_numbers() -> None:
    sample = sample_job(Running(CHIEF).job, 5)
    assert job_scalars(sample, sample) == {}


@pytest.mark.parametrize(
    ("age_s", "every_s"), [(0, 1), (600, 1), (6000, 10), (86_400, 60)], ids=str
)
def test_samples_grow_rare_as_a_job_grows_old(age_s: float, every_s: float) -> None:
    assert sample_every_s(age_s) == every_s
