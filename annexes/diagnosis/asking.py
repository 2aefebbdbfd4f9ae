"""Asking the tasks of a job, by its chief, and finding the job that is meant."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...client.chief.calls import ChiefClient
from ...core.errors import PeerLostError
from ...core.outside_text import read_json
from ...core.settings import Settings
from ...core.task import TaskId
from ...launch.found_job import cluster_of_name, jobs_of_cluster, written_status
from ...launch.options import chief_client
from ...launch.screen.status_table import chief_address
from .questions import ASKED_S

_CALL_S = 5.0
_LOOK_S = 0.1


@dataclass(slots=True)
class TaskAnswers:
    """Answers of tasks.

    Attributes:
        of: Answer of each.
        errors: Why some have not, in words.
        missing: Tasks that have not answered in time.
    """

    of: dict[TaskId, dict[str, Any]] = field(default_factory=dict)
    errors: dict[TaskId, str] = field(default_factory=dict)
    missing: list[TaskId] = field(default_factory=list)


def ask_all(
    chief: ChiefClient,
    kind: str,
    argument: str = "",
    tasks: Iterable[TaskId] = (),
    *,
    timeout_s: float,
) -> TaskAnswers:
    """Ask tasks and wait until all have answered, or the time is over.

    Args:
        chief: The chief of their job.
        kind: Kind of the question.
        argument: A detail of it.
        tasks: Tasks to ask; none: all that are there.
        timeout_s: Tasks are waited for so long, 25 s at most. Unit: seconds.

    Raises:
        PeerLostError: The chief does not answer.
    """
    # After ASKED_S the question is over, and what has come is forgotten.
    answers, until = TaskAnswers(), time.monotonic() + min(timeout_s, ASKED_S - _CALL_S)
    number, answers.missing = chief.ask_tasks(kind, argument, tasks, timeout_s=_CALL_S)
    more: list[tuple[TaskId, bytes, str]] = []
    while more or (answers.missing and time.monotonic() < until):
        if not more:
            time.sleep(_LOOK_S)
        seen = [*answers.of, *answers.errors]  # a message has as many as fit
        more, answers.missing = chief.answers(number, seen, timeout_s=_CALL_S)
        for task, text, error in more:
            _take(answers, task, text, error)
    return answers


def _take(answers: TaskAnswers, task: TaskId, text: bytes, error: str) -> None:
    try:
        answers.errors.update({task: error} if error else {})
        answer = {} if error else read_json(text)
        if not error:
            answers.of[task] = answer if isinstance(answer, dict) else {}
    except ValueError as wrong:
        answers.errors[task] = f"its answer cannot be read: {wrong}"


def address_of(job: str) -> str:
    """Find the address of the chief of a job that a user has named by it, or by a folder.

    Raises:
        ConfigurationError: No job has begun in the folder.
        PeerLostError: Its job is over.
    """
    if not Path(job).is_dir():
        return job
    status = written_status(job)
    if status.phase.is_over:
        raise PeerLostError(f"the job of {job} is over; `ropewalk report {job}` says what is left")
    return chief_address(status)


@contextlib.contextmanager
def chief_of(job: str, cluster: str | None, settings: Settings) -> Iterator[ChiefClient]:
    """Open a client of the chief of a job.

    Args:
        job: HOST:PORT, a model directory, or a job of ``cluster``.
        cluster: Address of the chief of a standalone cluster; None: that of the environment, for
            a name.
        settings: Settings of the caller.

    Raises:
        ConfigurationError: There is no such job.
        PeerLostError: It is over.
    """
    cluster = cluster or cluster_of_name(job)
    with contextlib.ExitStack() as opened:
        if cluster is None:
            address = address_of(job)
        else:
            jobs = opened.enter_context(jobs_of_cluster(cluster, settings))
            address = opened.enter_context(jobs.way_to(job))
        yield opened.enter_context(chief_client(address, settings))
