"""Questions of a job: few at a time, each for a while, each answered once, all of it bounded."""

import pytest

from ropewalk.annexes.diagnosis.questions import (
    ASKED_S,
    KINDS,
    MOST_ANSWER_BYTES,
    Questions,
    TaskAnswer,
)
from ropewalk.core.errors import RefusedError
from ropewalk.core.task import TaskId

A, B, C = (TaskId("worker", index) for index in range(3))


def test_a_question_is_open_until_all_have_answered() -> None:
    questions = Questions()
    asked = questions.ask("stacks", "", [A, B], now=0)
    questions.deliver(asked.number, TaskAnswer(A, b"1"))
    assert [each.tasks for each in questions.open(1)] == [{B}]
    questions.deliver(asked.number, TaskAnswer(B, b"", "it cannot"))
    assert questions.open(1) == []
    answers, missing = questions.answers(asked.number, [], 100)
    assert answers == [TaskAnswer(A, b"1"), TaskAnswer(B, b"", "it cannot")]
    assert not missing


def test_the_first_answer_stays_and_a_stranger_s_is_dropped() -> None:
    questions = Questions()
    asked = questions.ask("stacks", "", [A], now=0)
    for answer in (TaskAnswer(C, b"c"), TaskAnswer(A, b"1"), TaskAnswer(A, b"2")):
        questions.deliver(asked.number, answer)
    questions.deliver(asked.number + 1, TaskAnswer(A, b"3"))
    assert questions.answers(asked.number, [], 100)[0] == [TaskAnswer(A, b"1")]


def test_answers_come_as_many_as_fit_and_one_at_least() -> None:
    questions = Questions()
    asked = questions.ask("stacks", "", [A, B, C], now=0)
    for task in (A, B, C):
        questions.deliver(asked.number, TaskAnswer(task, b"x" * 60))
    assert [each.task for each in questions.answers(asked.number, [], 130)[0]] == [A, B]
    assert [each.task for each in questions.answers(asked.number, [A, B], 10)[0]] == [C]


def test_few_are_asked_at_a_time_and_each_is_over_after_a_while() -> None:
    questions = Questions()
    numbers = [questions.ask("stacks", "", [A], now=0).number for _ in range(4)]
    assert sorted(set(numbers)) == numbers
    with pytest.raises(RefusedError, match="4 questions"):
        questions.ask("stacks", "", [A], now=1)
    assert questions.open(ASKED_S) == []
    with pytest.raises(RefusedError, match="it is over"):
        questions.answers(numbers[0], [], 10)
    assert questions.ask("stacks", "", [A], now=ASKED_S).number > numbers[-1]


def test_a_question_that_all_have_answered_makes_room_for_the_next_one() -> None:
    questions = Questions()
    numbers = [questions.ask("stacks", "", [A], now=0).number for _ in range(4)]
    for number in numbers[1:3]:
        questions.deliver(number, TaskAnswer(A, b"1"))
    questions.ask("stacks", "", [A], now=1)
    with pytest.raises(RefusedError, match="it is over"):
        questions.answers(numbers[1], [], 10)
    assert questions.answers(numbers[2], [], 10)[0] == [TaskAnswer(A, b"1")]
    assert [each.number for each in questions.open(1)][:2] == [numbers[0], numbers[3]]


def test_a_number_is_above_those_of_a_chief_that_was_started_again() -> None:
    before = Questions().ask("stacks", "", [A], now=0).number
    assert Questions().ask("stacks", "", [A], now=0).number > before


def test_an_answer_that_is_too_long_is_an_error_and_all_together_are_bounded() -> None:
    questions = Questions()
    tasks = [TaskId("worker", index) for index in range(70)]
    asked = questions.ask("report", "", tasks, now=0)
    questions.deliver(asked.number, TaskAnswer(tasks[0], b"x" * (MOST_ANSWER_BYTES + 1)))
    for task in tasks[1:]:
        questions.deliver(asked.number, TaskAnswer(task, b"x" * MOST_ANSWER_BYTES))
    answers, missing = questions.answers(asked.number, [], 10**9)
    assert not missing
    assert "is too long" in answers[0].error
    kept = sum(len(each.text) for each in answers)
    assert kept == 64 * MOST_ANSWER_BYTES


def test_what_cannot_be_asked_is_refused_with_what_can_be() -> None:
    with pytest.raises(RefusedError) as refused:
        Questions().ask("environment", "", [A], now=0)
    assert all(kind in str(refused.value) for kind in KINDS)
