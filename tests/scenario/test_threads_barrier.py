"""Barriers of a parameter-server job, and starting with enough workers; tasks in threads."""

import threading

import numpy as np
import pytest

import ropewalk as rw
from helpers.waiting import wait_until
from ropewalk.core.errors import CollectiveMismatchError, CollectiveTimeoutError
from ropewalk.core.task import State, TaskId
from ropewalk.distribute import ParameterServerStrategy
from ropewalk.distribute.program_cluster import program_cluster

pytestmark = pytest.mark.timeout(60)

ONE = TaskId("worker", 1)


def test_what_was_pushed_before_a_barrier_is_read_after_it() -> None:
    def program() -> list[float]:
        strategy = ParameterServerStrategy(prefetch=True)
        with strategy.scope():
            w = rw.Variable(np.zeros((), np.float32), name="w")
        optimizer = rw.optimizers.SGD(1.0)

        def step(amount: float) -> float:
            optimizer.apply_gradients([(np.float32(-amount), w)])
            return float(w.read_value())

        seen = []
        for _ in range(3):
            strategy.run(step, args=(1.0,))
            strategy.barrier(20)
            seen.append(strategy.run(step, args=(0.0,)))
            strategy.barrier(20)
        return seen

    with rw.testing.LocalCluster(workers=2, ps=1) as cluster:
        results = cluster.run(program)
    assert set(map(tuple, results.values())) == {(3.0, 6.0, 9.0)}


def test_a_barrier_names_who_does_not_come() -> None:
    # Who has finished is an error of its own for those that still wait: all end together.
    end = threading.Barrier(3)

    def comes() -> str:
        strategy = ParameterServerStrategy()
        try:
            strategy.barrier(timeout_s=0.5)
        except CollectiveTimeoutError as error:
            return error.fields["missing"]
        finally:
            end.wait(20)
        return "nobody"

    def stays_away() -> str:
        ParameterServerStrategy()
        end.wait(20)
        return ""

    with rw.testing.LocalCluster(workers=2, ps=1) as cluster:
        results = cluster.run_all(comes, {ONE: stays_away})
    chief = results[TaskId("chief", 0)].value
    assert chief is not None
    assert "/job:worker/task:1" in chief


def test_a_task_that_has_finished_is_not_waited_for() -> None:
    def comes() -> str:
        with pytest.raises(CollectiveMismatchError, match="task:0 has finished its program") as it:
            ParameterServerStrategy().barrier(20)
        return it.value.fields["finished"]

    with rw.testing.LocalCluster(workers=1, ps=1) as cluster:
        results = cluster.run_all(comes, {TaskId("worker", 0): lambda: ""})
    assert results[TaskId("chief", 0)].value == "/job:worker/task:0"


def test_the_chief_begins_when_all_workers_are_there() -> None:
    with rw.testing.LocalCluster(workers=3, ps=1, wait_for_workers=3) as cluster:

        def program() -> int:
            ParameterServerStrategy()
            status = cluster.status()
            assert status is not None
            return sum(
                task.task.type == "worker" and task.state is not State.MISSING
                for task in status.tasks
            )

        results = cluster.run_all(program)
    assert results[TaskId("chief", 0)].value == 3


@pytest.mark.parametrize("timeout_s", [0, -1.0])
def test_a_barrier_wants_some_time(timeout_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = ParameterServerStrategy()
    strategy.barrier()  # one process: nobody to wait for
    with pytest.raises(ValueError, match="timeout_s must be positive"):
        strategy.barrier(timeout_s)


def test_workers_with_different_numbers_of_devices_are_noticed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def program() -> None:
        strategy = ParameterServerStrategy()
        runtime = program_cluster()
        assert runtime is not None
        runtime.progress.replicas = 1 + strategy.task_index
        wait_until(lambda: "different numbers of devices" in caplog.text, timeout_s=20)

    with rw.testing.LocalCluster(workers=1, ps=1) as cluster:
        cluster.run(program)
    assert "(/job:chief/task:0: 1, /job:worker/task:0: 2): num_replicas_in_sync" in caplog.text
