"""The cluster a program runs in: who finds it, and who is given another one."""

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.distribute import MirroredStrategy, ParameterServerStrategy
from ropewalk.distribute.program_cluster import in_cluster, program_cluster, while_joining
from ropewalk.distribute.runtime import ClusterRuntime, local_runtime


def runtime(role: str = "worker", index: int = 0) -> ClusterRuntime:
    task = ResolvedTask(TaskId(role, index), rw.ClusterSpec({}), TaskId("chief", 0))
    return ClusterRuntime(task, Settings())


def in_another_thread() -> ClusterRuntime | None:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(program_cluster).result(5)


def test_the_innermost_cluster_counts_and_the_outer_one_comes_back() -> None:
    outer, inner = runtime(index=1), runtime(index=2)
    with in_cluster(outer):
        with in_cluster(inner):
            assert program_cluster() is inner
        assert program_cluster() is outer
    assert program_cluster() is None


def test_a_threads_cluster_is_its_own() -> None:
    with in_cluster(runtime()):
        assert in_another_thread() is None


def test_a_processes_cluster_is_that_of_all_threads_that_have_none() -> None:
    whole, own = runtime(index=1), runtime(index=2)
    with in_cluster(whole, all_threads=True):
        assert in_another_thread() is whole
        with in_cluster(own):
            assert program_cluster() is own
            assert in_another_thread() is whole
    assert in_another_thread() is None


def test_a_process_that_is_joining_is_waited_for_by_whoever_asks_first() -> None:
    joined: Future[ClusterRuntime] = Future()
    with while_joining(joined.result), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(program_cluster)
        with pytest.raises(TimeoutError):
            asked.result(0.05)
        joined.set_result(mine := runtime())
        assert asked.result(5) is mine
    assert program_cluster() is None


@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, where another test has loaded it
@pytest.mark.filterwarnings("ignore:This process")  # of Python from 3.12 on
def test_a_fork_waits_for_the_thread_that_joins_since_the_copy_does_not_have_it() -> None:
    joined: Future[ClusterRuntime] = Future()
    with while_joining(joined.result):
        threading.Timer(0.1, lambda: joined.set_result(runtime())).start()
        if (child := os.fork()) == 0:
            os._exit(0 if joined.done() else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_replicas_are_in_the_cluster_of_the_program_that_runs_them() -> None:
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy = MirroredStrategy(["CPU:0", "CPU:1"])
    finally:
        rw.config.set_logical_cpu_devices(1)
    mine = runtime()
    with in_cluster(mine):
        found = strategy.run(program_cluster)
    assert found is mine


def test_strategies_that_are_given_a_runtime_each_train_in_their_own_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several jobs in one process: nothing below the constructor looks for another cluster."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    task = ResolvedTask(TaskId("chief", 0), rw.ClusterSpec({}), TaskId("chief", 0))
    runtimes = [local_runtime(task) for _ in range(2)]
    strategies = [ParameterServerStrategy(runtime=one) for one in runtimes]
    variables = []
    with in_cluster(runtime(index=7)):  # of which no strategy is
        for number, strategy in enumerate(strategies):
            with strategy.scope():
                variables.append(rw.Variable([float(number)], name="w"))
        sgd = rw.optimizers.SGD(1.0)
        for strategy, w in zip(strategies, variables, strict=True):
            strategy.run(lambda w=w: sgd.apply_gradients([(np.ones(1, np.float32), w)]))
    assert [float(w.read_value()[0]) for w in variables] == [-1.0, 0.0]
    assert [one.progress.steps for one in runtimes] == [1, 1]
