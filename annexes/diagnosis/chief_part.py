"""Questions as the chief serves them: to who asks, and to the tasks that answer."""

from collections.abc import Iterator

from ...core.task import State
from ...core.wire import codec
from ...core.wire.bounds import MAX_NAME_BYTES, MAX_TEXT_BYTES, check_text, shorten
from ...net.auth.guard import Visitor
from ...proto.v1 import chief_pb2
from ...server.chief.servicer import LockedJob
from ...telemetry.catalogue import Sample
from .questions import MOST_ANSWER_BYTES, Question, Questions, TaskAnswer


class QuestionsPart:
    """Serves the calls about questions. Thread-safe.

    Args:
        locked_job: The job.
    """

    def __init__(self, locked_job: LockedJob) -> None:
        self._locked_job = locked_job
        self._questions = locked_job.part(Questions)

    def add_to_heartbeat(self, answer: chief_pb2.HeartbeatResponse) -> None:
        """Tell the open questions."""
        for question in self._questions.open(self._locked_job.clock.now()):
            answer.questions.append(_question_to_wire(question))

    def add_to_status(self, status: chief_pb2.GetStatusResponse) -> None:
        """Add nothing."""

    def samples(self) -> Iterator[Sample]:
        """Yield nothing."""
        return iter(())

    def AskTasks(
        self, request: chief_pb2.AskTasksRequest, visitor: Visitor
    ) -> chief_pb2.AskTasksResponse:
        """Ask tasks. Not idempotent: each question has a new number."""
        who = visitor.principal or "the caller"
        check_text(request.kind, MAX_NAME_BYTES, "the kind of question", who)
        check_text(request.argument, MAX_NAME_BYTES, "the argument of a question", who)
        with self._locked_job.open() as (job, now):
            tasks = [each.task for each in job.members.values() if each.state is State.ALIVE]
        if request.tasks:
            named = {codec.task_from_wire(task) for task in request.tasks}
            tasks = [task for task in tasks if task in named]
        question = self._questions.ask(request.kind, request.argument, tasks, now)
        return chief_pb2.AskTasksResponse(
            number=question.number, tasks=[codec.task_to_wire(task) for task in tasks]
        )

    def GetAnswers(
        self, request: chief_pb2.GetAnswersRequest, _: Visitor
    ) -> chief_pb2.GetAnswersResponse:
        """Return answers that have come, without those of tasks that were seen. Idempotent."""
        seen = {codec.task_from_wire(task) for task in request.seen}
        answers, missing = self._questions.answers(request.number, seen, MOST_ANSWER_BYTES)
        return chief_pb2.GetAnswersResponse(
            answers=[
                chief_pb2.TaskAnswer(
                    task=codec.task_to_wire(each.task), answer=each.text, error=each.error
                )
                for each in answers
            ],
            missing=[codec.task_to_wire(task) for task in missing],
        )

    def AnswerQuestion(
        self, request: chief_pb2.AnswerQuestionRequest, _: Visitor
    ) -> chief_pb2.AnswerQuestionResponse:
        """Take the answer of a task. Idempotent: the first one stays."""
        who = codec.sender_of(request)
        error = shorten(request.error, MAX_TEXT_BYTES)
        self._questions.deliver(request.number, TaskAnswer(who.task, request.answer, error))
        return chief_pb2.AnswerQuestionResponse()


def _question_to_wire(question: Question) -> chief_pb2.Question:
    return chief_pb2.Question(
        number=question.number,
        kind=question.kind,
        argument=question.argument,
        tasks=[codec.task_to_wire(task) for task in question.tasks],
    )


PART = QuestionsPart
"""Made for each job."""
