"""Questions to the tasks of a job, and their answers, as its chief keeps them for a while.

A worker listens at no port: it hears of a question in the answer to a heartbeat, and answers by a
call. A ps is called. Everything is bounded: few questions at a time, each for half a minute, and
the bytes of all answers to one.
"""

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ...core.errors import RefusedError
from ...core.task import TaskId
from .further import further_answers

KINDS = ("echo", "events", "links", "log-level", "report", "stacks", "surroundings")
"""Kinds of questions."""

ASKED_S = 30.0
"""A task may answer for so long. Unit: seconds."""

MOST_ANSWER_BYTES = 1024 * 1024
_MOST_QUESTIONS = 4
_MOST_BYTES = 64 * 1024 * 1024  # of the answers to one question


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """Answer of a task: JSON, or why there is none."""

    task: TaskId
    text: bytes
    error: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A question.

    Attributes:
        number: Number of the question; a later question of the job has a higher one, also one of a
            chief that was started again.
        kind: Kind, from :data:`KINDS`.
        argument: A detail of the kind, such as a log level.
        until: Time at which it is over, on the chief's clock.
        tasks: Tasks that have not answered.
    """

    number: int
    kind: str
    argument: str
    until: float
    tasks: frozenset[TaskId]


@dataclass(slots=True)
class _OpenQuestion:
    question: Question
    room: int = _MOST_BYTES
    answers: dict[TaskId, TaskAnswer] = field(default_factory=dict)


class Questions:
    """The questions of a job. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[int, _OpenQuestion] = {}
        self._last = 0

    def ask(self, kind: str, argument: str, tasks: Iterable[TaskId], now: float) -> Question:
        """Ask some tasks.

        Raises:
            RefusedError: There is no such question, or too many are being asked.
        """
        if kind not in KINDS and kind not in further_answers():
            raise RefusedError(f"no task can be asked for {kind!r:.80}, but for {', '.join(KINDS)}")
        with self._lock:
            self._forget(now)
            self._make_room()
            if len(self._asked) >= _MOST_QUESTIONS:
                raise RefusedError(
                    f"{_MOST_QUESTIONS} questions to the tasks of this job are being answered; ask "
                    f"again in {ASKED_S:g} s",
                    limit=_MOST_QUESTIONS,
                )
            self._last = max(self._last + 1, time.time_ns() // 1000)
            question = Question(self._last, kind, argument, now + ASKED_S, frozenset(tasks))
            self._asked[question.number] = _OpenQuestion(question)
            return question

    def open(self, now: float) -> list[Question]:
        """List the questions that somebody has yet to answer."""
        if not self._asked:  # as almost always
            return []
        with self._lock:
            self._forget(now)
            return [asked.question for asked in self._asked.values() if asked.question.tasks]

    def deliver(self, number: int, answer: TaskAnswer) -> None:
        """Take an answer, once from each task that was asked; any other is dropped."""
        with self._lock:
            asked = self._asked.get(number)
            if asked is None or answer.task not in asked.question.tasks:
                return
            if len(answer.text) > min(asked.room, MOST_ANSWER_BYTES):
                answer = TaskAnswer(
                    answer.task, b"", f"the answer of {len(answer.text)} bytes is too long"
                )
            asked.room -= len(answer.text)
            asked.answers[answer.task] = answer
            before = asked.question
            asked.question = Question(
                before.number,
                before.kind,
                before.argument,
                before.until,
                before.tasks - {answer.task},
            )

    def answers(
        self, number: int, seen: Collection[TaskId], most_bytes: int
    ) -> tuple[list[TaskAnswer], frozenset[TaskId]]:
        """List answers that fit into so many bytes, one at least, and the tasks that have none.

        Raises:
            RefusedError: There is no such question, or it is over.
        """
        with self._lock:
            if number not in self._asked:
                raise RefusedError(f"no task is asked question {number}: it is over", value=number)
            asked, fits = self._asked[number], list[TaskAnswer]()
            for answer in _unseen(asked.answers, seen):
                most_bytes -= len(answer.text)
                if fits and most_bytes < 0:
                    break
                fits.append(answer)
            return fits, asked.question.tasks

    def _make_room(self) -> None:
        """Forget the oldest question that all have answered, if there are as many as there may be:
        who asked has read the answers, or is slower than everybody after it.
        """
        answered = [number for number, asked in self._asked.items() if not asked.question.tasks]
        if len(self._asked) >= _MOST_QUESTIONS and answered:
            del self._asked[answered[0]]

    def _forget(self, now: float) -> None:
        for number, asked in list(self._asked.items()):
            if asked.question.until <= now:
                del self._asked[number]


def _unseen(answers: Mapping[TaskId, TaskAnswer], seen: Collection[TaskId]) -> list[TaskAnswer]:
    return [answer for task, answer in answers.items() if task not in seen]
