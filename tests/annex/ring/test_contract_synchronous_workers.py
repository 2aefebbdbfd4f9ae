"""MultiWorkerMirroredStrategy: what workers of several replicas make of their values."""

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.replicas import context, replica
from helpers.waiting import scaled
from ropewalk.annexes.ring.group import CollectiveGroup
from ropewalk.cluster.resolvers.resolved import resolve
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.arrays.dtypes import BFLOAT16
from ropewalk.core.errors import (
    CollectiveTimeoutError,
    IncompatibleError,
    JoinTimeoutError,
    OtherJobError,
    RopewalkError,
)
from ropewalk.core.settings import Settings
from ropewalk.distribute import MultiWorkerMirroredStrategy, PerReplica
from ropewalk.distribute.cluster_resolver import SimpleClusterResolver

Work = Callable[[MultiWorkerMirroredStrategy, int], Any]

pytestmark = pytest.mark.timeout(60)

_used: set[str] = set()


@pytest.fixture(autouse=True, params=[1, 2], ids=["one replica each", "two replicas each"])
def replicas(request: pytest.FixtureRequest, plain_process: None) -> int:
    """So many per worker; no GPU."""
    rw.config.set_logical_cpu_devices(request.param)
    return int(request.param)


def addresses(count: int) -> list[str]:
    """That nobody listens at, and no test has used."""
    found: list[str] = []
    with ExitStack() as stack:
        while len(found) < count:
            one = stack.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{one.getsockname()[1]}"
            # Rings are numbered per address: one that is used again would be another number than
            # its peer's.
            if address not in _used:
                _used.add(address)
                found.append(address)
    return found


def together(work: Work, workers: int = 2) -> list[Any]:
    """Runs a function as each worker, in threads; results by rank. Raises what one raised."""
    spec = ClusterSpec({"worker": addresses(workers)})
    results: list[Any] = [None] * workers
    errors: list[BaseException] = []

    def worker(rank: int) -> None:
        try:
            strategy = MultiWorkerMirroredStrategy(SimpleClusterResolver(spec, "", "worker", rank))
            try:
                results[rank] = work(strategy, rank)
            finally:
                strategy.close()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=worker, args=(i,), daemon=True) for i in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert not any(thread.is_alive() for thread in threads), "a worker hangs"
    if errors:
        raise errors[0]
    return results


def of_replicas(strategy: MultiWorkerMirroredStrategy, value: Callable[[int], Any]) -> Any:
    return strategy.run(lambda: value(replica()))


@pytest.mark.parametrize(
    "dtype", [np.float16, BFLOAT16, np.float32], ids=lambda d: np.dtype(d).name
)
def test_a_mean_over_workers_does_not_overflow_on_the_way(dtype: Any, replicas: int) -> None:
    def work(strategy: MultiWorkerMirroredStrategy, rank: int) -> Any:
        value = of_replicas(strategy, lambda i: np.array([60000 - 1000 * i, 1], dtype))
        means = [strategy.reduce("mean", value)]
        means += [
            part[0]
            for part in strategy.experimental_local_results(
                strategy.run(lambda v: [context().all_reduce("mean", v)], (value,))
            )
        ]
        return means

    parts = [np.array([60000 - 1000 * i, 1], dtype).astype(np.float64) for i in range(2 * replicas)]
    expected = np.mean(parts, axis=0).astype(dtype)
    for means in together(work):
        for mean in means:
            assert mean.dtype == dtype
            # One rounding, to the dtype: what was added up was wider.
            np.testing.assert_array_equal(mean.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int64, np.bool_], ids=lambda d: np.dtype(d).name
)
def test_a_mean_of_integers_over_workers_is_a_fraction_and_does_not_wrap(
    dtype: Any, replicas: int
) -> None:
    """Of small integers in float32, as TensorFlow divides them."""
    small = np.dtype(dtype).kind in "iu" and np.dtype(dtype).itemsize < 4
    wanted = np.dtype(np.float32 if small else np.float64)

    def work(strategy: MultiWorkerMirroredStrategy, rank: int) -> Any:
        return strategy.reduce(
            "mean", of_replicas(strategy, lambda i: np.array([100 + i, 1], dtype))
        )

    parts = [np.array([100 + i, 1], dtype).astype(np.float64) for i in range(2 * replicas)]
    for mean in together(work):
        assert mean.dtype == wanted
        np.testing.assert_allclose(mean, np.mean(parts, axis=0), rtol=1e-7 if small else 1e-15)


def test_sums_over_an_axis_of_shapes_that_differ_are_refused_and_not_spread(replicas: int) -> None:
    def work(strategy: MultiWorkerMirroredStrategy, rank: int) -> Any:
        shapes = [(4, 3), (4, 1)][:replicas]
        with pytest.raises(ValueError, match=r"differ in shape .*\(3,\).*\(1,\)"):
            strategy.reduce("sum", PerReplica([np.ones(shape) for shape in shapes]), axis=0)

    if replicas == 2:
        together(work)


def test_workers_agree_on_the_number_of_a_checkpoint_they_do_not_name(tmp_path: Path) -> None:
    def work(strategy: MultiWorkerMirroredStrategy, rank: int) -> Any:
        with strategy.scope():
            v = rw.Variable(1.0, name="v")
        # Each on a disk of its own: only the first one sees what is written.
        directory = str(tmp_path / str(rank))
        checkpoint = rw.Checkpoint([v])
        return [checkpoint.save(directory) for _ in range(3)]

    first, second = together(work)
    assert [Path(path).name for path in first] == [f"ckpt-{i:010d}" for i in (1, 2, 3)]
    assert [Path(path).name for path in second] == [Path(path).name for path in first]


def test_one_worker_may_ask_again_after_the_end() -> None:
    def work(strategy: MultiWorkerMirroredStrategy, rank: int) -> Any:
        data = rw.data.from_arrays(np.arange(8.0), 4, shuffle=False)
        steps = iter(strategy.experimental_distribute_dataset(data))
        count = len(list(steps))
        if rank == 0:
            assert next(steps, None) is None, "everybody's data have ended: nobody has to be asked"
        return count, strategy.reduce("sum", of_replicas(strategy, lambda i: np.float32(1)))

    assert {count for count, _ in together(work)} == {2}


def test_a_strategy_that_cannot_be_made_gives_its_port_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROPEWALK_JOIN_TIMEOUT_S", "0.3")
    spec = ClusterSpec({"worker": addresses(2)})
    with pytest.raises(JoinTimeoutError, match="task:1"):
        MultiWorkerMirroredStrategy(SimpleClusterResolver(spec, "", "worker", 0))
    with socket.socket() as again:
        again.bind(("127.0.0.1", int(spec.task_address("worker", 0).rpartition(":")[2])))


def test_a_worker_of_another_job_is_refused_by_the_ring() -> None:
    def group(rank: int) -> CollectiveGroup:
        task = resolve(SimpleClusterResolver(spec, "", "worker", rank))
        return CollectiveGroup(task, Settings(job_id=f"job-{rank}", join_timeout_s=scaled(3)))

    def open_it(rank: int) -> None:
        one = group(rank)
        try:
            one.open()
        except RopewalkError as error:
            errors.append(error)
        finally:
            one.close()

    spec = ClusterSpec({"worker": addresses(2)})
    errors: list[RopewalkError] = []
    threads = [threading.Thread(target=open_it, args=(i,), daemon=True) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert any(isinstance(error, OtherJobError) for error in errors), errors
    assert "belongs to job" in str(errors[0])


# -- barrier -----------------------------------------------------------------------------------


def test_workers_wait_for_each_other_at_a_barrier() -> None:
    arrived: list[int] = []

    def work(strategy: MultiWorkerMirroredStrategy, rank: int) -> int:
        arrived.append(rank)
        strategy.barrier(20)
        return len(arrived)

    assert together(work) == [2, 2]


def test_a_barrier_of_workers_in_sync_names_who_does_not_come() -> None:
    done = threading.Event()

    def work(strategy: MultiWorkerMirroredStrategy, rank: int) -> str:
        if rank:
            done.wait(20)
            return ""
        try:
            strategy.barrier(0.5)
        except CollectiveTimeoutError as error:
            return error.fields["task"]
        finally:
            done.set()
        return "nobody"

    assert together(work)[0] == "/job:worker/task:1"


def test_a_change_of_one_worker_between_steps_is_an_error_that_names_it_on_all() -> None:
    def work(strategy: MultiWorkerMirroredStrategy, rank: int) -> str:
        with strategy.scope():
            w = rw.Variable(np.zeros(2, np.float32))
            seen = rw.Variable(
                0.0,
                synchronization=rw.VariableSynchronization.ON_READ,
                aggregation=rw.VariableAggregation.SUM,
            )
            optimizer = rw.optimizers.SGD(0.1)

        def train(steps: int) -> None:
            for _ in range(steps):
                strategy.run(lambda: optimizer.apply_gradients([(np.ones(2, np.float32), w)]))

        for _ in range(2):
            train(1)
            w.assign(np.ones(2, np.float32))
        if rank == 0:
            seen.assign(1.0)  # a metric, which is each worker's
            w.assign(np.ones(2, np.float32))
        with pytest.raises(IncompatibleError) as caught:
            train(10)
        return str(caught.value)

    for message in together(work):
        assert "/job:worker/task:0 3, /job:worker/task:1 2" in message


def test_noise_that_each_worker_draws_by_itself_is_an_error_that_names_the_variable() -> None:
    def work(strategy: MultiWorkerMirroredStrategy, rank: int) -> str:
        rng = np.random.default_rng(rank)
        with strategy.scope():
            w = rw.Variable(np.ones((8, 4), np.float32), name="w")
            best = rw.Variable(0.0, name="best")
            optimizer = rw.optimizers.SGD(0.1)

        def train(steps: int, noise: float) -> None:
            for _ in range(steps):
                strategy.run(lambda: optimizer.apply_gradients([(np.ones_like(w.numpy()), w)]))
                w.assign_add(rng.normal(scale=noise, size=(8, 4)).astype(np.float32))
                best.assign(float(rank))  # a number of the program's own

        train(5, 0.0)
        with pytest.raises(IncompatibleError) as caught:
            train(20, 0.01)
        return str(caught.value)

    for message in together(work):
        assert "copies of 'w' differ" in message
