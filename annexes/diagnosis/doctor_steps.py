"""Steps of ``ropewalk doctor`` beyond the way to a chief: its tasks answer, and do not differ."""

import time
from collections.abc import Iterator

from ...core.errors import (
    ConfigurationError,
    EnvironmentMismatchError,
    LimitExceededError,
    PeerLostError,
    PermissionDeniedError,
    RefusedError,
    RopewalkError,
    StorageError,
)
from ...core.settings import Settings
from ...launch.commands.doctor import DoctorStep
from ...launch.options import chief_client
from .asking import TaskAnswers, ask_all
from .differences import Surroundings, full_disks, other_versions, reached_limits, wrong_clocks


def further(address: str, settings: Settings, timeout_s: float) -> list[DoctorStep]:
    """Ask the tasks of the job that is led at an address, and compare them.

    Args:
        address: host:port of a task; one that leads no job has no such steps.
        settings: Settings of the caller.
        timeout_s: Time that tasks have to answer. Unit: seconds.
    """
    asked = time.time()
    try:
        with chief_client(address, settings) as chief:
            answers = ask_all(chief, "surroundings", timeout_s=timeout_s)
    except (PermissionDeniedError, RefusedError) as error:
        return [DoctorStep("tasks", None, f"not looked at: {error.message}")]
    except RopewalkError:
        return []  # a ps, or a worker, which serves no such call
    return list(_steps(answers, asked, time.time(), timeout_s))


def _steps(
    answers: TaskAnswers, asked: float, heard: float, timeout_s: float
) -> Iterator[DoctorStep]:
    tasks: Surroundings = {task.short: answer for task, answer in sorted(answers.of.items())}
    silent = ", ".join(task.short for task in sorted({*answers.missing, *answers.errors}))
    why = f"{silent} did not answer within {timeout_s:g} s; `ropewalk stacks` says why"
    yield _step("tasks", PeerLostError(why) if silent else None, f"{', '.join(tasks)} answer")
    for name, text, kind, fine in (
        ("versions", other_versions(tasks), EnvironmentMismatchError, "the same"),
        ("clocks", wrong_clocks(tasks, asked, heard), ConfigurationError, "as here, to a second"),
        ("limits", reached_limits(tasks), LimitExceededError, "none is near"),
        ("disk", full_disks(tasks), StorageError, "there is room in the model directory"),
    ):
        yield _step(name, kind(text) if text else None, fine)


def _step(name: str, error: RopewalkError | None, fine: str) -> DoctorStep:
    return DoctorStep(name, error is None, fine if error is None else error.message, error)
