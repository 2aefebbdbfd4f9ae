"""The barrier of a job: rounds, repeated calls, restarted tasks."""

from ropewalk.cluster.job.barrier import JobBarrier
from ropewalk.core.task import Incarnation, TaskId

CHIEF, ONE, TWO = TaskId("chief", 0), TaskId("worker", 0), TaskId("worker", 1)
NOW = [Incarnation(task, 1) for task in (CHIEF, ONE, TWO)]


def test_the_last_to_arrive_ends_a_round_for_all() -> None:
    barrier = JobBarrier()
    chief, one, two = NOW
    assert barrier.arrive(one, 1, NOW) == [CHIEF, TWO]
    assert barrier.arrive(chief, 1, NOW) == [TWO]
    assert barrier.arrive(one, 1, NOW) == [TWO]
    assert barrier.arrive(two, 1, NOW) == []
    assert barrier.arrive(two, 2, NOW) == [CHIEF, ONE]  # two is at the next one already
    assert barrier.arrive(one, 1, NOW) == []
    assert barrier.arrive(chief, 1, NOW) == []
    assert barrier.arrive(one, 2, NOW) == [CHIEF]
    assert barrier.arrive(chief, 2, NOW) == []
    assert barrier.arrive(two, 2, NOW) == barrier.arrive(one, 2, NOW) == []


def test_a_call_whose_answer_was_lost_is_not_the_next_one() -> None:
    barrier = JobBarrier()
    pair = NOW[:2]
    barrier.arrive(pair[0], 1, pair)
    assert barrier.arrive(pair[1], 1, pair) == []
    assert barrier.arrive(pair[1], 1, pair) == []
    assert barrier.arrive(pair[0], 2, pair) == [ONE]


def test_a_restarted_task_has_not_arrived_until_it_comes_itself() -> None:
    barrier = JobBarrier()
    chief, one, _ = NOW
    again = Incarnation(ONE, 2)
    assert barrier.arrive(one, 5, [chief, one]) == [CHIEF]
    assert barrier.arrive(chief, 1, [chief, again]) == [ONE]
    assert barrier.arrive(again, 1, [chief, again]) == []
    assert barrier.arrive(chief, 1, [chief, again]) == []
