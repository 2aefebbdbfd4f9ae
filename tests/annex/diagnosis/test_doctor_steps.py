"""``ropewalk doctor`` at a chief's address compares the tasks of its job."""

from collections.abc import Mapping
from typing import Any

import pytest

from ropewalk.annexes.diagnosis import doctor_steps
from ropewalk.annexes.diagnosis.asking import TaskAnswers
from ropewalk.core.task import TaskId
from ropewalk.launch.commands.doctor import DoctorStep

from .test_differences import WELL


def _judge(answers: TaskAnswers) -> Mapping[str, DoctorStep]:
    return {step.name: step for step in doctor_steps._steps(answers, 99, 101, 3)}


def _answers(**amiss: Any) -> TaskAnswers:
    return TaskAnswers({TaskId("ps", 0): WELL, TaskId("worker", 0): {**WELL, **amiss}})


def test_a_job_where_all_is_well_passes_each_step() -> None:
    steps = _judge(_answers())
    assert list(steps) == ["tasks", "versions", "clocks", "limits", "disk"]
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
