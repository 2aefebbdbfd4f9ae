"""Names of tasks and of their lives."""

from ropewalk.core.task import Incarnation, TaskId


def test_a_task_is_written_as_tensorflow_writes_it_and_short_in_logs() -> None:
    assert str(TaskId("worker", 1)) == "/job:worker/task:1"
    assert TaskId("worker", 1).short == "worker:1"


def test_tasks_sort_by_type_then_by_number_not_by_text() -> None:
    tasks = [TaskId("worker", 10), TaskId("worker", 2), TaskId("ps", 3)]
    assert sorted(tasks) == [TaskId("ps", 3), TaskId("worker", 2), TaskId("worker", 10)]


def test_an_incarnation_of_a_task_names_its_generation() -> None:
    who = Incarnation(TaskId("ps", 0), 3)
    assert str(who) == "/job:ps/task:0 (generation 3)"
    assert who == Incarnation(TaskId("ps", 0), 3)
    assert who != Incarnation(TaskId("ps", 0), 4)
