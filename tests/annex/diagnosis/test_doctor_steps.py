"""``ropewalk doctor`` at a chief's address compares the tasks of its job."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ropewalk.annexes.diagnosis import doctor_steps
from ropewalk.annexes.diagnosis.asking import TaskAnswers
from ropewalk.client.chief.calls import JobStatus, TaskStatus
from ropewalk.core.errors import AccessError
from ropewalk.core.report import Finding, TaskReport
from ropewalk.core.task import Phase, State, TaskId
from ropewalk.core.versions import own_versions
from ropewalk.launch.commands.doctor import DoctorStep

from .test_differences import WELL

WAYS: dict[str, Any] = {"the chief": {"round_trip_s": 0.0004, "bytes_per_s": 4e8}}


def _judge(answers: TaskAnswers, **ways: Any) -> Mapping[str, DoctorStep]:
    links = TaskAnswers({TaskId("ps", 0): WAYS, TaskId("worker", 0): {**WAYS, **ways}})
    return {step.name: step for step in doctor_steps._steps(answers, links, 99, 101, 3)}


def _answers(**amiss: Any) -> TaskAnswers:
    return TaskAnswers({TaskId("ps", 0): WELL, TaskId("worker", 0): {**WELL, **amiss}})


def test_a_job_where_all_is_well_passes_each_step() -> None:
    steps = _judge(_answers())
    assert list(steps) == ["tasks", "versions", "clocks", "network", "limits", "disk"]
    assert steps["network"].said == "400 µs to 400 µs there and back, 381.5 MiB/s and more"
    assert all(step.passed for step in steps.values())
    assert steps["tasks"].said == "ps:0, worker:0 answer"


@pytest.mark.parametrize(
    ("amiss", "step", "said"),
    [
        ({"python": "3.11.7"}, "versions", "python: 3.11.7 on worker:0"),
        ({"clock": 50.0}, "clocks", "worker:0 is 49 s behind"),
        ({"open_files": 1020}, "limits", "worker:0 has 1020 of 1024 files"),
        ({"model_dir_free_bytes": 7}, "disk", "worker:0 has 7 B free"),
    ],
    ids=["versions", "clocks", "limits", "disk"],
)
def test_what_is_amiss_fails_its_step_alone(amiss: dict[str, Any], step: str, said: str) -> None:
    steps = _judge(_answers(**amiss))
    assert [name for name, each in steps.items() if not each.passed] == [step]
    assert said in steps[step].said
    error = steps[step].error
    assert error is not None
    assert error.exit_code != 0


def test_a_task_that_is_silent_is_named_with_the_command_that_says_why() -> None:
    answers = _answers()
    answers.missing = [TaskId("worker", 1)]
    said = _judge(answers)["tasks"]
    assert not said.passed
    assert said.said.startswith("worker:1 did not answer within 3 s; `ropewalk stacks`")


def test_a_way_that_is_slower_than_the_others_fails_its_step_alone() -> None:
    steps = _judge(_answers(), **{"ps:0": {"round_trip_s": 0.03, "way": "tcp"}})
    assert [name for name, each in steps.items() if not each.passed] == ["network"]
    assert steps["network"].said == ("worker:0 to ps:0: 30 ms there and back, usual here 400 µs")


# -- is everybody there? -----------------------------------------------------------------------


def _item(task: TaskId, state: State, **more: Any) -> TaskStatus:
    plain = TaskStatus(task, state, 75.0, "127.0.0.1:7", "", 1, TaskReport(), None, 7, "here")
    return replace(plain, **more)


def _there(*items: TaskStatus, refused: str = "", way: str = "", **more: Any) -> DoctorStep:
    status = JobStatus(Phase.RUNNING, "", 80.0, 7, 0, items, "", 0, own_versions(), **more)
    return doctor_steps._there(status, refused, lambda _: way)


def test_who_is_missing_is_named_with_the_first_obstacle_in_the_way_to_a_ps() -> None:
    lost = _item(TaskId("ps", 0), State.LOST, detail="no sign of life for 10 s")
    step = _there(lost, _item(TaskId("worker", 0), State.ALIVE), way="port of h:7: refused")
    assert not step.passed
    assert step.said == "ps:0 is lost for 1m15s: no sign of life for 10 s; port of h:7: refused"


def test_a_refused_caller_is_named_where_somebody_is_missing() -> None:
    missing, why = _item(TaskId("worker", 0), State.MISSING), "the credentials of evaluator:0"
    step = _there(missing, refused=why)
    assert step.said == f"worker:0 is missing for 1m15s; callers were refused: {why}"
    assert isinstance(step.error, AccessError)
    assert _there(_item(TaskId("worker", 0), State.ALIVE), refused=why).passed


def test_a_task_that_stands_still_and_checkpoints_that_fail_are_told() -> None:
    stands, unsaved = Finding("standing", "worker:0", "stands"), Finding("unsaved", "", "no space")
    alive = _item(TaskId("worker", 0), State.ALIVE)
    assert _there(alive, findings=(stands, unsaved)).said == "stands"
    status = JobStatus(Phase.RUNNING, "", 80.0, 7, 0, (), "c-7", 7, own_versions())
    assert doctor_steps._saved(status).said == "c-7"
    step = doctor_steps._saved(replace(status, findings=(stands, unsaved)))
    assert (step.passed, step.said) == (False, "no space")
