"""Which pushes of a worker count as a step."""

from ropewalk.distribute.strategies.server_step import ServerStepCount


def push(count: ServerStepCount) -> int:
    """What a push adds to the global step."""
    increment = count.increment
    count.is_counted = True
    return increment


def test_a_step_counts_once_however_many_pushes_it_takes() -> None:
    count = ServerStepCount()
    for _ in range(2):
        count.begin()
        assert [push(count), push(count)] == [1, 0]


def test_steps_that_are_parts_of_one_count_once_and_the_next_one_for_itself() -> None:
    count = ServerStepCount()
    with count.as_one():
        counted = []
        for _ in range(3):
            count.begin()
            counted.append(push(count))
    assert counted == [1, 0, 0]
    count.begin()
    assert push(count) == 1


def test_what_belongs_to_the_step_before_counts_nothing() -> None:
    count = ServerStepCount()
    with count.joined():
        count.begin()
        assert push(count) == 0
    count.begin()
    assert push(count) == 1
