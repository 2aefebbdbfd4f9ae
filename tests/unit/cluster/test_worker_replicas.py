"""Devices of the workers of a coordinator: which numbers are let in, and what is said of others."""

import pytest

from ropewalk.cluster.job.barrier import WorkerReplicas
from ropewalk.core.task import TaskId

W0, W1 = TaskId("worker", 0), TaskId("worker", 1)


def test_workers_with_as_many_devices_may_come_and_come_back() -> None:
    replicas = WorkerReplicas()
    assert replicas.count is None
    assert [replicas.joined(worker, 2) for worker in (W1, W0, W1)] == [None] * 3
    assert replicas.count == 2


def test_a_worker_with_another_number_is_refused_and_both_are_named() -> None:
    replicas = WorkerReplicas()
    replicas.joined(W1, 2)
    error = replicas.joined(W0, 1)
    assert error is not None
    assert "/job:worker/task:1 has 2, /job:worker/task:0 has 1" in error.message
    assert replicas.count == 2


def test_a_worker_that_comes_back_with_another_number_is_refused() -> None:
    replicas = WorkerReplicas()
    replicas.joined(W0, 4)
    error = replicas.joined(W0, 3)
    assert error is not None
    assert "/job:worker/task:0 had 4, /job:worker/task:0 has 3" in error.message


@pytest.mark.parametrize(("read", "right"), [(None, True), (2, True), (1, False)])
def test_what_the_program_has_read_before_must_have_been_right(
    read: int | None, right: bool
) -> None:
    error = WorkerReplicas(read).joined(W0, 2)
    assert (error is None) == right
    assert right or "read as 1" in str(error)


def test_a_worker_that_does_not_say_how_many_it_has_is_let_in() -> None:
    replicas = WorkerReplicas(1)
    assert replicas.joined(W0, 0) is None
    assert replicas.count is None
    assert replicas.joined(W1, 1) is None
