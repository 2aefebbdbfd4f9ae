"""The push log: per task, each push of the current generation once, in order."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ropewalk.core.errors import FencedError, SequenceError
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.server.ps.push_marks import PushLog

TASK = TaskId("worker", 2)


def incarnation(generation: int) -> Incarnation:
    return Incarnation(TASK, generation)


def test_the_first_push_is_number_one() -> None:
    log = PushLog()
    with pytest.raises(SequenceError):
        log.is_new(incarnation(1), 2)
    assert log.is_new(incarnation(1), 1)


def test_a_push_stays_new_until_it_was_applied_whole() -> None:
    log = PushLog()
    assert [log.is_new(incarnation(1), 1), log.is_new(incarnation(1), 1)] == [True, True]
    log.applied(incarnation(1), 1)
    assert not log.is_new(incarnation(1), 1)


def test_a_gap_names_the_task_the_push_and_the_one_expected() -> None:
    log = PushLog({TASK: (1, 4)})
    with pytest.raises(SequenceError) as caught:
        log.is_new(incarnation(1), 7)
    assert caught.value.fields == {"task": str(TASK), "sequence": "7", "expected": "5"}
    assert f"push 7 of {incarnation(1)} came before push 5" in caught.value.message


def test_an_older_generation_is_fenced_and_hears_which_one_took_its_place() -> None:
    log = PushLog()
    log.register_incarnation(incarnation(5))
    for ask in (
        lambda: log.register_incarnation(incarnation(4)),
        lambda: log.is_new(incarnation(4), 1),
    ):
        with pytest.raises(FencedError) as caught:
            ask()
        assert caught.value.fields == {"task": str(TASK), "generation": "4", "current": "5"}


def test_registering_the_same_generation_again_forgets_nothing() -> None:
    log = PushLog()
    assert log.is_new(incarnation(1), 1)
    log.applied(incarnation(1), 1)
    log.register_incarnation(incarnation(1))
    assert not log.is_new(incarnation(1), 1)


def test_an_old_generations_late_completion_does_not_count_for_the_new_one() -> None:
    log = PushLog()
    assert log.is_new(incarnation(1), 1)
    log.register_incarnation(incarnation(2))
    log.applied(incarnation(1), 1)
    assert log.is_new(incarnation(2), 1)


def test_completions_out_of_order_never_step_back() -> None:
    log = PushLog({TASK: (1, 3)})
    log.applied(incarnation(1), 2)
    assert log.last == {TASK: (1, 3)}


TASKS = [TaskId("worker", index) for index in range(3)]
tasks, generations, sequences = st.sampled_from(TASKS), st.integers(1, 4), st.integers(1, 6)


class AnyMessages(RuleBasedStateMachine):
    """Any message at any time, against a list of what was accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.log = PushLog()
        self.accepted: dict[Incarnation, list[int]] = {}
        self.current: dict[TaskId, int] = {}

    @rule(task=tasks, generation=generations)
    def meet(self, task: TaskId, generation: int) -> None:
        if generation < self.current.get(task, 0):
            with pytest.raises(FencedError):
                self.log.register_incarnation(Incarnation(task, generation))
        else:
            self.log.register_incarnation(Incarnation(task, generation))
            self.current[task] = generation

    @rule(task=tasks, generation=generations, sequence=sequences, completes=st.booleans())
    def push(self, task: TaskId, generation: int, sequence: int, completes: bool) -> None:
        who = Incarnation(task, generation)
        if generation < self.current.get(task, 0):
            with pytest.raises(FencedError):
                self.log.is_new(who, sequence)
            return
        self.current[task] = generation
        done = self.accepted.setdefault(who, [])
        if sequence > len(done) + 1:
            with pytest.raises(SequenceError):
                self.log.is_new(who, sequence)
            return
        new = self.log.is_new(who, sequence)
        assert new is (sequence == len(done) + 1)
        if new and completes:
            self.log.applied(who, sequence)
            done.append(sequence)

    @invariant()
    def each_generation_was_applied_without_gap_or_repeat(self) -> None:
        assert all(done == list(range(1, len(done) + 1)) for done in self.accepted.values())

    @invariant()
    def the_state_is_one_entry_per_task(self) -> None:
        assert set(self.log.last) == set(self.current)


TestAnyMessages = AnyMessages.TestCase
TestAnyMessages.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
