"""What of a job's numbers reaches a tracker, and what a tracker that fails does to the job."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.waiting import wait_until
from ropewalk.annexes.trackers import before_start, opening
from ropewalk.annexes.trackers.evaluation_records import TrackedEvaluations
from ropewalk.annexes.trackers.leading import JobTracking
from ropewalk.annexes.trackers.opening import open_run
from ropewalk.annexes.trackers.runs import JobOfRun
from ropewalk.annexes.trackers.tracking import Reporting
from ropewalk.cluster.job.job import Job
from ropewalk.core.errors import MissingExtraError
from ropewalk.core.report import TaskReport
from ropewalk.core.settings import Settings
from ropewalk.core.task import Phase, TaskId
from ropewalk.training.evaluations import Evaluation

CHIEF = TaskId("chief", 0)
JOB = JobOfRun("a-job", {})


class Recorder:
    """A run that keeps what it gets."""

    key, place = "run-1", "here"

    def __init__(self) -> None:
        self.points: list[tuple[int, Mapping[str, float]]] = []
        self.phase: Phase | None = None
        self.open = threading.Event()
        self.open.set()
        self.fails = 0

    def log(self, step: int, values: Mapping[str, float], at: float) -> None:
        assert at > 1.6e9
        assert self.open.wait(60)
        if self.fails:
            self.fails -= 1
            raise OSError("the tracker is away")
        self.points.append((step, values))

    def end(self, phase: Phase) -> None:
        self.phase = phase


class Followed:
    """A job whose chief has registered, and its companion."""

    def __init__(self, open_run: Callable[[], Any], close_s: float = 30, **options: Any) -> None:
        self.job = Job([(CHIEF, "")], chief=CHIEF, lease_s=1e6, now=0, name="a-job")
        self.who = self.job.register(CHIEF, now=0)
        self.jobs: list[JobOfRun] = []
        self.reporting = Reporting("mlflow", open_run, first_retry_s=0.01, **options)

        def report_of(job: JobOfRun) -> Reporting:
            self.jobs.append(job)
            return self.reporting

        self.tracking = JobTracking(report_of, 0, close_s)

    def turn(self, now: float, loss: float, *, is_last: bool = False) -> None:
        report = TaskReport(steps=int(now), global_step=int(now), metrics={"loss": loss})
        self.job.heartbeat(self.who, report, now=now)
        self.tracking.look(self.job, now, is_last=is_last)
        self.tracking.act()

    def end(self) -> None:
        self.job.complete()
        self.tracking.look(self.job, 1000, is_last=False)
        self.tracking.close()


def test_every_sample_reaches_the_tracker_with_its_step_and_the_end_says_how_it_went() -> None:
    run = Recorder()
    followed = Followed(lambda: run)
    followed.turn(10, 0.5)
    followed.turn(20, 0.25)
    followed.job.complete()
    followed.turn(21, 0.125, is_last=True)
    followed.tracking.close()
    assert [(step, values["metrics/loss"]) for step, values in run.points] == [
        (10, 0.5),
        (20, 0.25),
        (21, 0.125),
    ]
    assert run.points[1][1]["job/steps_per_second"] == 1
    assert run.phase is Phase.DONE
    assert followed.jobs == [JobOfRun("a-job", {"num_chief": "1"})]


def test_a_chief_that_leaves_its_job_does_not_end_the_run() -> None:
    run = Recorder()
    followed = Followed(lambda: run)
    followed.turn(10, 0.5)
    followed.tracking.close()
    assert run.phase is Phase.RUNNING


def test_a_job_whose_id_is_not_known_yet_begins_no_run() -> None:
    followed = Followed(Recorder)
    followed.job.name = None
    followed.tracking.look(followed.job, 10, is_last=False)
    followed.tracking.act()
    assert followed.jobs == []


@pytest.mark.parametrize(("final", "phase"), [(True, Phase.DONE), (False, Phase.RUNNING)])
def test_results_of_an_evaluator_are_a_run_that_ends_with_the_last_one(
    final: bool, phase: Phase
) -> None:
    run = Recorder()
    record = TrackedEvaluations(Reporting("mlflow", lambda: run))
    result = Evaluation(
        global_step=7, checkpoint="ckpt", final=final, metrics={"loss": 0.5}, seconds=1
    )
    record.add(result)
    record.close()
    assert run.points == [(7, {"metrics/loss": 0.5})]
    assert run.phase is phase


def test_a_tracker_that_is_away_at_first_gets_what_has_waited() -> None:
    run, attempts = Recorder(), list[int]()

    def open_late() -> Recorder:
        attempts.append(1)
        if len(attempts) < 4:
            raise OSError("connection refused")
        return run

    followed = Followed(open_late)
    for now in (10, 20, 30):
        followed.turn(now, 0.5)
    wait_until(lambda: len(run.points) == 3, 30, "the points that waited")
    followed.end()
    assert [step for step, _values in run.points] == [10, 20, 30]


def test_a_slow_tracker_is_left_the_newest_and_the_log_says_how_many_it_missed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Recorder()
    run.open.clear()
    followed = Followed(lambda: run, most=3, close_s=0.0)
    for now in range(10, 100, 10):
        followed.turn(now, 0.5)
    followed.end()  # while it holds one, or has not begun
    assert "mlflow has not got all of the job's numbers" in caplog.text
    run.open.set()
    wait_until(lambda: run.phase is not None, 30, "the end of the run")
    assert len(run.points) in (3, 4)
    assert [step for step, _values in run.points][-3:] == [70, 80, 90]


def test_a_point_that_is_refused_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    run = Recorder()
    run.fails = 1
    followed = Followed(lambda: run)
    for now in (10, 20):
        followed.turn(now, 0.5)
    followed.end()
    assert [step for step, _values in run.points] == [20]
    assert "mlflow has not got a point: the tracker is away" in caplog.text


def test_a_tracker_that_never_comes_does_not_hold_up_the_end() -> None:
    def never() -> Recorder:
        raise OSError("connection refused")

    followed = Followed(never)
    followed.turn(10, 0.5)
    followed.end()
    assert not followed.reporting._thread.is_alive()


def test_a_model_directory_names_the_run_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    class Client:
        @staticmethod
        def open_run(_job: JobOfRun, key: str) -> Recorder:
            asked.append(key)
            return Recorder()

    monkeypatch.setattr(opening, "import_module", lambda *_: Client)
    folder = str(tmp_path)
    for _ in range(2):
        open_run("mlflow", JOB, folder)
    open_run("wandb", JOB, folder)
    open_run("mlflow", JOB, "")
    (tmp_path / "run-of-mlflow").write_bytes(b"\xff")
    open_run("mlflow", JOB, folder)
    open_run("mlflow", JobOfRun("a-job", is_evaluation=True), folder)
    assert asked == ["", "run-1", "", "", "", ""]


def test_a_client_that_is_missing_is_an_error_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ropewalk\[wandb\]'"):
        before_start.check(Settings(track="wandb"))
