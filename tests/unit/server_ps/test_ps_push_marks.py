"""Marks of complete pushes: each counts once, and the global step follows from them."""

import pytest

from ropewalk.core.errors import FencedError, RefusedError
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.bounds import MAX_STEP_LEAD
from ropewalk.core.wire.closure_pushes import ClosureRun
from ropewalk.engine.push_target import StepInfo
from ropewalk.server.ps.push_marks import PushMarks

PS, TASK = TaskId("ps", 0), TaskId("worker", 3)
WORKER, SUCCESSOR = Incarnation(TASK, 1), Incarnation(TASK, 2)


def make_marks() -> PushMarks:
    return PushMarks(PS, max_sessions=4)


@pytest.mark.parametrize("closure", [None, ClosureRun(1, lane=0, turn=1)], ids=["step", "closure"])
def test_a_push_that_completes_twice_counts_once(closure: ClosureRun | None) -> None:
    marks = make_marks()
    info = StepInfo(WORKER, 1, global_step=5, closure=closure)
    assert [marks.is_new(info), marks.is_new(info)] == [True, True]
    assert [marks.complete(info, 2), marks.complete(info, 2)] == [True, False]
    assert marks.global_step == 7
    assert not marks.is_new(info)


def test_a_global_step_that_nobody_can_have_is_refused_with_the_largest_possible_one() -> None:
    marks = make_marks()
    marks.global_step = 10
    assert marks.is_new(StepInfo(WORKER, 1, 10 + MAX_STEP_LEAD))
    with pytest.raises(RefusedError, match=f"beyond {10 + MAX_STEP_LEAD}"):
        marks.is_new(StepInfo(WORKER, 1, 11 + MAX_STEP_LEAD))


def test_the_last_push_is_one_of_the_same_generation_and_no_closures() -> None:
    marks = make_marks()
    marks.complete(StepInfo(WORKER, 1, 0), 1)
    marks.complete(StepInfo(WORKER, 1, 0, closure=ClosureRun(1, lane=0, turn=1)), 1)
    assert (marks.last_push(WORKER), marks.last_push(SUCCESSOR)) == (1, 0)
    marks.register_incarnation(SUCCESSOR)
    assert (marks.last_push(WORKER), marks.last_push(SUCCESSOR)) == (0, 0)
    with pytest.raises(FencedError):
        marks.complete(StepInfo(WORKER, 2, 0), 1)


def test_a_follower_with_the_leaders_marks_goes_on_from_them() -> None:
    leader, follower = make_marks(), make_marks()
    first, second = StepInfo(WORKER, 1, 0), StepInfo(WORKER, 2, 1)
    leader.complete(first, 1)
    follower.take(leader.copied(contents=9))
    assert not follower.is_new(first)
    assert (follower.complete(first, 1), follower.complete(second, 1)) == (False, True)
    assert (leader.global_step, follower.global_step) == (1, 2)
