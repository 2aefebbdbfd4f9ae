"""Steps of ``ropewalk doctor`` beyond the way to a chief: all tasks are there and answer, the ways
between them are as good as each other, and their surroundings do not differ.

They stand in the order in which one thing depends on another, so the first that fails is the cause.
"""

import time
from collections.abc import Callable, Iterator

from ...client.chief.calls import JobStatus, TaskStatus
from ...cluster.spec import PS
from ...core.errors import (
    AccessError,
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
from ...core.task import State, TaskId
from ...launch.commands.doctor import DoctorStep, way_to
from ...launch.options import chief_client
from ...launch.screen.status_table import human_seconds
from .asking import TaskAnswers, ask_all
from .differences import (
    Surroundings,
    fine_links,
    full_disks,
    other_versions,
    reached_limits,
    refused_callers,
    slow_links,
    wrong_clocks,
)
from .links import LINKS

_MOST_WALKED = 4  # ps that are not there, whose way is walked


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
            status = chief.status(timeout_s=timeout_s)
            answers = ask_all(chief, "surroundings", timeout_s=timeout_s)
            heard = time.time()
            links = ask_all(chief, LINKS, timeout_s=timeout_s)
            events = ask_all(chief, "events", "", [_leader(status)], timeout_s=timeout_s)
    except (PermissionDeniedError, RefusedError) as error:
        return [DoctorStep("tasks", None, f"not looked at: {error.message}")]
    except RopewalkError:
        return []  # a ps, or a worker, which serves no such call
    refused = refused_callers([str(each.get("events", "")) for each in events.of.values()])
    there = _there(status, refused, lambda ps: first_obstacle(ps, settings, timeout_s))
    return [there, *_steps(answers, links, asked, heard, timeout_s), _saved(status)]


def _leader(status: JobStatus) -> TaskId:
    tasks = [item.task for item in status.tasks]
    return next((task for task in tasks if task.type == "chief"), TaskId("worker", 0))


# -- Is everybody there? -----------------------------------------------------------------------


def first_obstacle(address: str, settings: Settings, timeout_s: float) -> str:
    """Walk the way to a task that its chief misses, and say what is in it; empty: nothing.

    Args:
        address: host:port of the task.
        settings: Settings of the caller.
        timeout_s: Time limit of each step. Unit: seconds.
    """
    failed = [step for step in way_to(address, settings, timeout_s) if step.passed is False]
    return f"{failed[0].name} of {address}: {failed[0].said}" if failed else ""


def _there(status: JobStatus, refused: str, walk: Callable[[str], str]) -> DoctorStep:
    """Name the tasks that are not there, with what is known of each, and who was refused."""
    missing = [item for item in status.tasks if item.state in (State.MISSING, State.LOST)]
    parts = [_missing(item) for item in missing]
    if refused and missing:
        parts.append(f"callers were refused: {refused}")
    ways = [item.address for item in missing if item.task.type == PS and item.address]
    parts += [obstacle for address in ways[:_MOST_WALKED] if (obstacle := walk(address))]
    standing = [each.text for each in status.findings if each.kind == "standing"]
    kind = AccessError if refused and missing else PeerLostError
    text = "; ".join([*parts, *standing])
    return _step("job", kind(text) if text else None, "all tasks are there, and make steps")


def _missing(item: TaskStatus) -> str:
    detail = f": {item.detail}" if item.detail else ""
    return f"{item.task.short} is {item.state} for {human_seconds(item.since_s)}{detail}"


# -- Do they answer, and do they differ? -------------------------------------------------------


def _steps(
    answers: TaskAnswers, links: TaskAnswers, asked: float, heard: float, timeout_s: float
) -> Iterator[DoctorStep]:
    tasks = _by_name(answers)
    silent = ", ".join(task.short for task in sorted({*answers.missing, *answers.errors}))
    why = f"{silent} did not answer within {timeout_s:g} s; `ropewalk stacks` says why"
    yield _step("tasks", PeerLostError(why) if silent else None, f"{', '.join(tasks)} answer")
    ways = _by_name(links)
    for name, text, kind, fine in (
        ("versions", other_versions(tasks), EnvironmentMismatchError, "the same"),
        ("clocks", wrong_clocks(tasks, asked, heard), ConfigurationError, "as here, to a second"),
        ("network", slow_links(ways), PeerLostError, fine_links(ways)),
        ("limits", reached_limits(tasks), LimitExceededError, "none is near"),
        ("disk", full_disks(tasks), StorageError, "there is room in the model directory"),
    ):
        yield _step(name, kind(text) if text else None, fine)


def _by_name(answers: TaskAnswers) -> Surroundings:
    return {task.short: answer for task, answer in sorted(answers.of.items())}


def _saved(status: JobStatus) -> DoctorStep:
    failing = "; ".join(each.text for each in status.findings if each.kind == "unsaved")
    last = status.last_checkpoint or "none yet"
    return _step("checkpoint", StorageError(failing) if failing else None, last)


def _step(name: str, error: RopewalkError | None, fine: str) -> DoctorStep:
    return DoctorStep(name, error is None, fine if error is None else error.message, error)
