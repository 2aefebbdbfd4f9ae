"""Questions to ps, which the chief calls."""

import json
from functools import partial

from ...client.ps.control import PsControl
from ...cluster.access import principal_of_task
from ...cluster.job.job import Job
from ...cluster.spec import PS
from ...core.errors import RopewalkError
from ...core.process.threads import new_thread, nobody_waits
from ...core.task import TaskId
from ...worker.lead.companions import Companion, LedJob
from .links import LINKS, links_to_ps
from .questions import ASKED_S, Question, Questions, TaskAnswer


class PsAsker:
    """Asks ps, each in a thread of its own: one that hangs delays no other.

    Args:
        led: The job.
    """

    def __init__(self, led: LedJob) -> None:
        self._led = led
        self._questions = led.locked_job.part(Questions)
        self._last = 0
        self._due: list[tuple[Question, TaskId, str]] = []

    def start(self) -> None:
        """Begin: nothing is to do."""

    def look(self, job: Job, now: float, *, is_last: bool) -> None:  # noqa: ARG002
        """Find the addresses of the ps that are asked for the first time."""
        for question in self._questions.open(now):
            if question.number > self._last:
                self._last = question.number
                self._due += [
                    (question, task, job.members[task].address)
                    for task in question.tasks
                    if task.type == PS
                ]

    def act(self) -> None:
        """Ask them."""
        due, self._due = self._due, []
        for question, task, address in due:
            ask = partial(self._ask, question, task, address)
            new_thread(f"ask-{task.short}", ask, failed=nobody_waits).start()

    def _ask(self, question: Question, task: TaskId, address: str) -> None:
        who = principal_of_task(self._led.leader, self._led.settings.job_id)
        ps = PsControl(task, address, self._led.settings, who)
        try:
            answer = TaskAnswer(task, self._answer_of(ps, question))
        except RopewalkError as error:
            answer = TaskAnswer(task, b"", error.message)
        finally:
            ps.close()
        self._questions.deliver(question.number, answer)

    def _answer_of(self, ps: PsControl, question: Question) -> bytes:
        if question.kind == LINKS:
            return json.dumps(links_to_ps(ps, self._led.settings)).encode()
        return ps.ask(question.kind, question.argument, timeout_s=ASKED_S)

    def why_none_follows(self) -> str | None:
        """Return that it is not known here."""
        return None

    def close(self) -> None:
        """End: threads that ask end with the process."""


def companions(led: LedJob) -> list[Companion]:
    """Ask the ps of a job.

    Args:
        led: The job that is led.
    """
    return [PsAsker(led)]
