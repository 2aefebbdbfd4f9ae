"""Which ps a local job starts, and which it asks to leave, when its number of ps changes."""

from ropewalk.cluster.spec import PS
from ropewalk.cluster.supervision.decisions import TaskRun
from ropewalk.core.task import TaskId
from ropewalk.launch.local.cluster import Scaling

PS0, PS1, PS2 = (TaskId(PS, index) for index in range(3))


def ended(at: float) -> TaskRun:
    return TaskRun(ended=at, code=0)


def test_a_job_with_as_many_ps_as_it_is_to_have_changes_nothing() -> None:
    scaling, runs = Scaling(2), {PS0: TaskRun(), PS1: TaskRun()}
    assert scaling.to(2) == ""
    assert scaling.to_start(runs, 9.0) == []
    assert scaling.to_send_away(runs) == []


def test_a_ps_that_never_was_is_started() -> None:
    scaling = Scaling(1)
    assert scaling.to(3) == "1 → 3 ps"
    assert scaling.to_start({PS0: TaskRun()}, 9.0) == [PS1, PS2]


def test_each_extra_ps_is_asked_to_leave_once_and_none_that_has_ended() -> None:
    scaling, runs = Scaling(3), {PS0: TaskRun(), PS1: TaskRun(), PS2: ended(1.0)}
    scaling.to(1)
    assert scaling.to_send_away(runs) == [PS1]
    assert scaling.to_send_away(runs) == []
    assert scaling.sent_away == {PS1}


def test_a_ps_that_has_left_comes_again_only_while_its_job_is_known_to_go_on() -> None:
    scaling, runs = Scaling(2, sent_away={PS1}), {PS0: TaskRun(), PS1: ended(5.0)}
    assert scaling.to_start(runs, 0.0) == []  # the job is over
    assert scaling.to_start(runs, 4.0) == []  # it may have ended since
    assert scaling.to_start(runs, 6.0) == [PS1]
    assert scaling.sent_away == set()
