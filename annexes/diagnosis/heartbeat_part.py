"""A task's part in questions: it hears of one in a heartbeat's answer, and answers by a call."""

import logging
import threading
from functools import partial

from ...core.errors import RopewalkError, said_of
from ...core.process.threads import new_thread, nobody_waits
from ...core.wire import codec
from ...proto.v1 import chief_pb2
from ...worker.joining import JoinedTask
from .answers import answer_to
from .links import LINKS, links_of
from .task_process import note_threads

log = logging.getLogger(__name__)

_CALL_S = 10.0


class Answerer:
    """Answers questions to this task, each in a thread of its own.

    Args:
        joined: The task.
    """

    def __init__(self, joined: JoinedTask) -> None:
        self._joined = joined
        self._last = 0
        self._closing = threading.Event()

    def hear(self, answer: chief_pb2.HeartbeatResponse) -> None:
        """Answer what is asked for the first time. Called by one thread."""
        note_threads()
        task = codec.task_to_wire(self._joined.who.task)
        for question in sorted(answer.questions, key=lambda each: each.number):
            if question.number > self._last and task in question.tasks:
                self._last = question.number
                work = partial(self._answer, question)
                new_thread(f"question-{question.number}", work, failed=nobody_waits).start()

    def _answer(self, question: chief_pb2.Question) -> None:
        text, error = b"", ""
        try:
            more = links_of(self._joined) if question.kind == LINKS else {}
            text = answer_to(question.kind, question.argument, self._joined.settings, more)
        except Exception as failure:  # noqa: BLE001 - whatever it is, who asks should know
            error = said_of(failure)
        if self._closing.is_set():
            return
        try:
            self._joined.chief.answer_question(
                self._joined.who, question.number, text, error, timeout_s=_CALL_S
            )
        except RopewalkError as failure:
            log.debug("question %d is not answered: %s", question.number, failure)

    def close(self) -> None:
        """Answer nothing more."""
        self._closing.set()


PART = Answerer
"""Made when a task has joined."""
