"""Whole clusters in threads of this process, over real sockets: training, ending, failing."""

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.waiting import wait_until
from ropewalk.cluster.access import Principal
from ropewalk.core.errors import (
    DefinitionMismatchError,
    JobStoppedError,
    PeerLostError,
    ProgramError,
    RopewalkError,
)
from ropewalk.core.task import Phase, State, TaskId
from ropewalk.distribute import ParameterServerStrategy, partitioners
from ropewalk.testing import LocalCluster

Array = np.ndarray[Any, np.dtype[Any]]

CHIEF = TaskId("chief", 0)
W0, W1 = TaskId("worker", 0), TaskId("worker", 1)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def plain_process(plain_process: None) -> Iterator[None]:
    """No cluster around us, no GPU, and no thread left behind."""
    before = set(threading.enumerate())
    yield

    def have_ended() -> bool:
        gc.collect()  # a strategy's replicas end with it, which a thread that ends may hold
        return set(threading.enumerate()) <= before

    wait_until(have_ended, 3, "the threads to end")  # grpc's own: after their channels are closed


WANTED = np.arange(12, dtype=np.float32).reshape(6, 2)


def least_squares(steps: int) -> Callable[[], dict[str, Any]]:
    """A program that learns ``WANTED`` from its own examples."""

    def program() -> dict[str, Any]:
        strategy = ParameterServerStrategy(
            variable_partitioner=partitioners.FixedShardsPartitioner(2)
        )
        with strategy.scope():
            w = rw.Variable(np.zeros((6, 2), np.float32), name="w")
            b = rw.Variable(np.zeros(2, np.float32), name="b")
        optimizer = rw.optimizers.SGD(0.05)
        rng = np.random.default_rng(strategy.task_index)
        x = rng.standard_normal((64, 6)).astype(np.float32)
        y = x @ WANTED + np.float32(1)

        def step() -> float:
            error = x @ w.read_value() + b.read_value() - y
            scaled = error * np.float32(2 / len(x))
            optimizer.apply_gradients([(x.T @ scaled, w), (scaled.sum(0), b)])
            loss = float((error * error).mean())
            rw.training.report(loss=loss, total_steps=steps)
            return loss

        losses = [strategy.run(step) for _ in range(steps)]
        return {
            "losses": losses,
            "role": rw.training.task_type(),
            "is_chief": strategy.is_chief,
            "index": strategy.task_index,
            "step": strategy.global_step,
        }

    return program


def test_a_chief_and_two_workers_train_over_two_ps_and_all_end() -> None:
    with LocalCluster(workers=2, ps=2) as cluster:
        results = cluster.run(least_squares(60))
        status = cluster.status()
        values = {
            name: value
            for server in cluster.servers
            for name, value in ((label, server) for label in server.store.counters().labels)
        }
    assert set(results) == {CHIEF, W0, W1}
    for task, result in results.items():
        assert result["losses"][-1] < result["losses"][0] * 0.01, task
        assert result["role"] == task.type
        assert result["is_chief"] is (task == CHIEF)
    assert [results[task]["index"] for task in (CHIEF, W0, W1)] == [0, 1, 2]
    assert set(values) == {"w/part_0", "w/part_1", "b/part_0", "b/part_1"}
    assert status is not None
    assert status.phase is Phase.DONE
    assert status.global_step == max(result["step"] for result in results.values()) == 180
    assert status.total_steps == 60
    states = {item.task: item for item in status.tasks}
    assert {states[task].state for task in (CHIEF, W0, W1)} == {State.DONE}
    assert states[W1].report.steps == 60
    assert states[W1].report.metrics["loss"] == results[W1]["losses"][-1]
    how = [transport.split()[:2] for transport in states[W1].report.transports]
    assert [ps for ps, _ in how] == ["ps:0", "ps:1"]
    assert {transport for _, transport in how} <= {"tcp", "shm"}


def test_a_chief_alone_is_enough() -> None:
    with LocalCluster(workers=0, ps=1) as cluster:
        assert cluster.run(least_squares(5))[CHIEF]["step"] == 5


def test_ps_are_told_that_the_job_is_done() -> None:
    with LocalCluster(workers=1, ps=2) as cluster:
        cluster.run(least_squares(3))
        for server in cluster.servers:
            assert server.wait() == 0


def test_exact_increments_of_several_workers_add_up_exactly() -> None:
    """Nothing is lost and nothing applied twice, dense or by rows, whatever the order."""
    rounds = 50

    def program() -> tuple[Array, Array, int]:
        strategy = ParameterServerStrategy(
            variable_partitioner=partitioners.FixedShardsPartitioner(3)
        )
        with strategy.scope():
            total = rw.Variable(np.zeros(5, np.int64), name="total", trainable=False)
            table = rw.Variable(np.zeros((8, 2), np.float32), name="table")
        optimizer = rw.optimizers.SGD(1.0)
        rows = np.array([strategy.task_index, 7, strategy.task_index])

        def step() -> None:
            gradient = rw.IndexedSlices(-np.ones((3, 2), np.float32), rows)
            optimizer.apply_gradients([(gradient, table)])

        for _ in range(rounds):
            total.assign_add(np.arange(5))
            strategy.run(step)
        done.wait(20)  # all have pushed everything
        return total.numpy(), table.numpy(), strategy.global_step

    done = threading.Barrier(4)
    with LocalCluster(workers=3, ps=2) as cluster:
        results = cluster.run(program)
        final = cluster.status()
    expected = np.zeros((8, 2), np.float32)
    expected[:4] = 2 * rounds
    expected[7] = 4 * rounds
    for total, table, _ in results.values():
        np.testing.assert_array_equal(total, np.arange(5) * rounds * 4)
        np.testing.assert_array_equal(table, expected)
    assert final is not None
    assert final.global_step == 4 * rounds


def test_replicas_of_one_worker_are_synchronous_and_workers_are_not() -> None:
    rw.config.set_logical_cpu_devices(2)
    try:

        def program() -> float:
            strategy = ParameterServerStrategy()
            with strategy.scope():
                w = rw.Variable([0.0], name="w")
            optimizer = rw.optimizers.SGD(1.0)
            for _ in range(10):
                strategy.run(lambda: optimizer.apply_gradients([(np.array([-1.0], np.float32), w)]))
            done.wait(20)
            return float(w[0])

        done = threading.Barrier(2)
        with LocalCluster(workers=1, ps=1) as cluster:
            results = cluster.run(program)
            status = cluster.status()
    finally:
        rw.config.set_logical_cpu_devices(1)
    assert set(results.values()) == {40.0}  # 2 tasks, 10 steps, 2 replicas
    assert status is not None
    assert status.global_step == 20


# -- failing -----------------------------------------------------------------------------------


def endless() -> None:
    """Trains until the job tells it to end."""
    strategy = ParameterServerStrategy()
    with strategy.scope():
        w = rw.Variable([0.0], name="w")
    optimizer = rw.optimizers.SGD(0.1)
    for _ in range(1_000_000):
        strategy.run(lambda: optimizer.apply_gradients([([0.0], w)]))
        threading.Event().wait(0.002)
    raise AssertionError("nobody ended it")


def broken() -> None:
    strategy = ParameterServerStrategy()
    with strategy.scope():
        rw.Variable([0.0], name="w")
    raise ValueError("boom")


@pytest.mark.parametrize("failing", [W1, CHIEF], ids=["worker", "chief"])
def test_a_program_that_raises_fails_the_job_and_the_others_end_naming_it(failing: TaskId) -> None:
    with LocalCluster(workers=2, ps=1) as cluster:
        results = cluster.run_all(endless, {failing: broken})
        status = cluster.status()
    assert isinstance(results[failing].error, ValueError)
    for task in {CHIEF, W0, W1} - {failing}:
        error = results[task].error
        assert isinstance(error, PeerLostError), task
        assert f"{failing} failed: ValueError: boom" in error.message
    assert status is not None
    assert (status.phase, status.reason) == (Phase.FAILED, f"{failing} failed: ValueError: boom")


def test_tasks_that_were_done_hear_who_failed_too() -> None:
    waiting = threading.Event()

    def late() -> None:
        strategy = ParameterServerStrategy()
        with strategy.scope():
            rw.Variable([0.0], name="w")
        waiting.wait(2)
        raise ValueError("boom")

    def quick() -> None:
        strategy = ParameterServerStrategy()
        with strategy.scope():
            rw.Variable([0.0], name="w")
        waiting.set()

    with LocalCluster(workers=2, ps=1) as cluster:
        results = cluster.run_all(quick, {W1: late})
    for task in (CHIEF, W0):
        error = results[task].error
        assert isinstance(error, ProgramError | PeerLostError), task
        assert "/job:worker/task:1 failed: ValueError: boom" in str(error)


def test_run_raises_what_the_first_failing_program_raised() -> None:
    def program() -> None:
        if rw.training.task_type() == "worker":
            broken()
        endless()

    with LocalCluster(workers=1, ps=1) as cluster, pytest.raises(ValueError, match="boom"):
        cluster.run(program)


def test_two_optimizers_for_one_variable_are_an_error_naming_both() -> None:
    def other() -> None:
        strategy = ParameterServerStrategy()
        with strategy.scope():
            w = rw.Variable([0.0], name="w")
        stop = threading.Event()
        for _ in range(200):  # until the others have bound theirs
            rw.optimizers.SGD(0.1).apply_gradients([([0.0], w)])
            stop.wait(0.005)
            break
        rw.optimizers.Adam(0.1).apply_gradients([([0.0], w)])

    with LocalCluster(workers=1, ps=1) as cluster:
        results = cluster.run_all(endless, {W0: other})
    error = results[W0].error
    assert isinstance(error, DefinitionMismatchError)
    assert "Adam" in error.message
    assert "SGD" in error.message


def test_a_job_that_is_asked_to_stop_ends_everywhere_at_the_next_step() -> None:
    def program() -> None:
        if rw.training.task_type() == "chief":
            stopper.start()
        endless()

    def stop() -> None:
        client = ChiefClient(cluster.spec.task_address("chief", 0), Settings(), Principal("driver"))
        client._stub.StopJob(chief_pb2.StopJobRequest(reason="enough"), timeout=5)
        client.close()

    from ropewalk.client.chief.calls import ChiefClient
    from ropewalk.core.settings import Settings
    from ropewalk.proto.v1 import chief_pb2

    stopper = threading.Thread(target=stop)
    with LocalCluster(workers=2, ps=1) as cluster:
        results = cluster.run_all(program)
        status = cluster.status()
    stopper.join(5)
    for task, result in results.items():
        assert isinstance(result.error, JobStoppedError), task
        assert "enough" in result.error.message
    assert status is not None
    assert (status.phase, status.reason) == (Phase.STOPPED, "enough")


def test_a_ps_that_dies_fails_the_job_and_every_error_names_it() -> None:
    began = threading.Barrier(4)

    def program() -> None:
        strategy = ParameterServerStrategy(
            variable_partitioner=partitioners.FixedShardsPartitioner(2)
        )
        with strategy.scope():
            w = rw.Variable(np.zeros(4, np.float32), name="w")
        began.wait(20)
        for _ in range(1_000_000):
            strategy.run(w.assign_add, args=(np.ones(4, np.float32),))

    def kill() -> None:
        began.wait(20)
        cluster.servers[1].stop(grace_s=0)

    killer = threading.Thread(target=kill)
    with LocalCluster(workers=2, ps=2, reconnect_timeout_s=0.5, lease_s=1.0) as cluster:
        killer.start()
        results = cluster.run_all(program)
        killer.join(5)
    for task, result in results.items():
        assert isinstance(result.error, RopewalkError), task
        assert "/job:ps/task:1" in result.error.message


@pytest.mark.parametrize("adds", [False, True], ids=["assigns", "adds"])
def test_a_late_worker_that_overwrites_averages_is_told_what_keeps_them(
    adds: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first step reads the averages of the beginning, and compiles while another trains."""
    batch, begun, trained = np.full(3, 4, np.float32), threading.Event(), threading.Event()

    def program() -> float:
        strategy = ParameterServerStrategy()
        with strategy.scope():
            mean = rw.Variable(np.zeros(3, np.float32), name="mean", trainable=False)

        def step() -> None:
            before = mean.read_value()
            if strategy.is_chief:
                assert begun.wait(30)
            else:
                begun.set()
                assert trained.wait(30)  # as long as its compiler takes
            change = 0.1 * (batch - before)
            mean.assign_add(change) if adds else mean.assign(before + change)

        for _ in range(60 if strategy.is_chief else 1):
            strategy.run(step)
        found = float(mean.numpy()[0])
        trained.set()
        if not strategy.is_chief:
            strategy.run(step)
        return found

    with LocalCluster(workers=1, ps=1) as cluster:
        results = cluster.run(program)
    assert results[CHIEF] == pytest.approx(4, abs=0.1)
    assert results[W0] == pytest.approx(4.4 if adds else 0.4, abs=0.1)
    said = [r.getMessage() for r in caplog.records if "in each of its steps" in r.getMessage()]
    assert len(said) == (0 if adds else 1), said
    if said:
        assert "worker:0 assigns 'mean'" in said[0]
        assert "v.assign_add(after - before)" in said[0]
