"""Workers in sync: every link carries the same calls, and every survivor hears who is lost."""

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from windlass.cluster.resolved import ResolvedTask
from windlass.cluster.spec import ClusterSpec
from windlass.collectives.group import CollectiveGroup
from windlass.core.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    JoinTimeoutError,
    PeerLostError,
    ShapeMismatchError,
    WindlassError,
)
from windlass.core.settings import Settings
from windlass.core.task import TaskId
from windlass.launch.processes import free_ports

Array = np.ndarray[Any, np.dtype[Any]]
Work = Callable[[CollectiveGroup], Any]
Together = Callable[..., list[Any]]

pytestmark = pytest.mark.timeout(60)


def groups_of(
    count: int, settings: Settings, timeout_s: float | None, ports: list[int] | None = None
) -> list[CollectiveGroup]:
    spec = ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in ports or free_ports(count)]})
    return [
        CollectiveGroup(
            ResolvedTask(
                TaskId("worker", i),
                spec,
                TaskId("worker", 0),
                address=spec.task_address("worker", i),
            ),
            settings,
            timeout_s=timeout_s,
        )
        for i in range(count)
    ]


@pytest.fixture(params=["shared memory", "tcp", "grpc"])
def together(request: pytest.FixtureRequest) -> Together:
    """Runs a function as each worker of a ring; gives their results or errors, by rank."""
    settings = Settings(
        shared_memory=request.param == "shared memory",
        tcp_sessions=request.param != "grpc",
        join_timeout_s=20,
        lease_s=2,
    )

    def run(count: int, work: Work, timeout_s: float | None = 20) -> list[Any]:
        groups = groups_of(count, settings, timeout_s)
        results: list[Any] = [None] * count

        def worker(rank: int) -> None:
            try:
                groups[rank].open()
                assert groups[rank].transport == request.param
                results[rank] = work(groups[rank])
            except WindlassError as error:
                results[rank] = error

        threads = [threading.Thread(target=worker, args=(i,), daemon=True) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert not any(thread.is_alive() for thread in threads), "a worker hangs"
        for group in groups:
            group.close()
        return results

    return run


def mine(rank: int, shape: tuple[int, ...], dtype: str) -> Array:
    rng = np.random.default_rng(rank)
    return (rng.normal(size=shape) * 100).astype(dtype)


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        pytest.param((), "float32", id="scalar"),
        pytest.param((0,), "float32", id="empty"),
        pytest.param((2, 3), "float64", id="small"),
        pytest.param((100_003,), "float32", id="chunk"),
        pytest.param((700, 1001), "float32", id="chunks"),
        pytest.param((300_001,), "int64", id="integers"),
    ],
)
def test_all_reduce_is_the_sum_with_the_same_bits_everywhere(
    together: Together, workers: int, shape: tuple[int, ...], dtype: str
) -> None:
    sums = together(workers, lambda group: group.all_reduce(mine(group.rank, shape, dtype)))
    expected = sum(mine(rank, shape, dtype).astype(np.float64) for rank in range(workers))
    assert {total.tobytes() for total in sums} == {sums[0].tobytes()}
    assert sums[0].shape == shape
    assert sums[0].dtype == dtype
    np.testing.assert_allclose(sums[0], expected, rtol=1e-5, atol=1e-4)  # float32 sums of hundreds


@pytest.mark.parametrize("size", [10, 200_000])
def test_a_divisor_makes_means(together: Together, size: int) -> None:
    means = together(
        2, lambda group: group.all_reduce(np.full(size, group.rank, np.float32), divisor=4)
    )
    for mean in means:
        np.testing.assert_array_equal(mean, np.full(size, 0.25))


@pytest.mark.parametrize("workers", [2, 3])
def test_all_gather_takes_arrays_of_different_length(together: Together, workers: int) -> None:
    def work(group: CollectiveGroup) -> list[Array]:
        return group.all_gather(mine(group.rank, (group.rank * 90_000, 2), "float32"))

    for found in together(workers, work):
        assert len(found) == workers
        for rank, part in enumerate(found):
            np.testing.assert_array_equal(part, mine(rank, (rank * 90_000, 2), "float32"))


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast_gives_everybody_the_roots_values(together: Together, root: int) -> None:
    def work(group: CollectiveGroup) -> Array:
        return group.broadcast(mine(group.rank, (150_000,), "float32"), root)

    for found in together(3, work):
        np.testing.assert_array_equal(found, mine(root, (150_000,), "float32"))


def test_reduce_scatter_gives_each_worker_its_part(together: Together) -> None:
    size = 250_001
    parts = together(3, lambda group: group.reduce_scatter(np.arange(size) + group.rank))
    np.testing.assert_array_equal(np.concatenate(parts), 3 * np.arange(size) + 3)


def test_many_calls_of_changing_size_stay_in_step(together: Together) -> None:
    def work(group: CollectiveGroup) -> bool:
        for i in range(60):
            size = (i * 7919) % 100_000 + 1
            total = group.all_reduce(np.full(size, i + group.rank, np.int64))
            if not (total == 2 * i + 1).all():
                return False
            if i % 10 == 0:
                group.barrier()
        return True

    assert together(2, work) == [True, True]


def test_a_worker_in_another_call_is_an_error_that_names_both(together: Together) -> None:
    def work(group: CollectiveGroup) -> Any:
        if group.rank == 0:
            return group.all_reduce(np.ones(10, np.float32))
        return group.all_reduce(np.ones(10, np.float64))

    errors = together(2, work)
    assert any(isinstance(error, CollectiveMismatchError) for error in errors)
    assert all(isinstance(error, WindlassError) for error in errors)
    text = " ".join(str(error) for error in errors)
    assert "all_reduce of 10 float32" in text
    assert "all_reduce of 10 float64" in text


def test_values_that_cannot_be_gathered_are_an_error_on_every_worker(together: Together) -> None:
    errors = together(2, lambda group: group.all_gather(np.ones((2, 1 + group.rank))))
    assert all(isinstance(error, ShapeMismatchError) for error in errors)


@pytest.mark.parametrize("workers", [2, 4])
def test_every_survivor_names_the_worker_that_left(together: Together, workers: int) -> None:
    def work(group: CollectiveGroup) -> Any:
        group.barrier()
        if group.rank == 1:
            group.close()
            return "left"
        for _ in range(20):
            group.all_reduce(np.ones(300_000, np.float32))
        return "went on"

    results = together(workers, work)
    assert results[1] == "left"
    survivors = results[:1] + results[2:]
    assert all(isinstance(error, PeerLostError) for error in survivors), survivors
    assert all("/job:worker/task:1" in str(error) for error in survivors)


def test_a_worker_that_takes_too_long_is_named_with_what_it_does(together: Together) -> None:
    late = threading.Event()

    def work(group: CollectiveGroup) -> Any:
        group.barrier()
        if group.rank == 2:
            late.wait(20)
            return "late"
        try:
            return group.all_reduce(np.ones(5, np.float32))
        finally:
            late.set()

    results = together(3, work, timeout_s=1.0)
    assert results[2] == "late"
    for error in results[:2]:
        assert isinstance(error, CollectiveTimeoutError)
        assert error.fields["task"] == "/job:worker/task:2"
        assert "It has finished call 1, barrier" in str(error)


def test_a_timeout_of_zero_is_none(together: Together) -> None:
    """Of a group, or of a call in a group that has one."""
    late = threading.Event()

    def work(group: CollectiveGroup) -> Any:
        if group.rank:
            late.wait(0.5)
        return group.all_reduce(np.ones(5, np.float32), timeout_s=0 if patient else None).sum()

    patient = False
    assert together(2, work, timeout_s=0) == [10, 10]
    patient = True
    assert together(2, work, timeout_s=0.1) == [10, 10]


def test_a_worker_that_never_comes_is_a_join_timeout_naming_it() -> None:
    groups = groups_of(2, Settings(join_timeout_s=0.6), 5)
    with pytest.raises(JoinTimeoutError, match=r"/job:worker/task:1 at 127\.0\.0\.1:\d+"):
        groups[0].open()
    groups[0].close()


def test_a_worker_that_starts_long_after_the_lease_is_waited_for() -> None:
    """Of four workers two have both their links before the late one has any."""
    groups = groups_of(4, Settings(join_timeout_s=20, lease_s=0.5), timeout_s=0.5)
    results: list[Any] = [None] * 4

    def worker(rank: int) -> None:
        try:
            if rank == 2:
                threading.Event().wait(2.5)  # it is what the others have to sit out
            groups[rank].open()
            results[rank] = groups[rank].all_reduce(np.ones(2)).tolist()
        except WindlassError as error:
            results[rank] = error

    threads = [threading.Thread(target=worker, args=(i,), daemon=True) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for group in groups:
        group.close()
    assert results == [[4.0, 4.0]] * 4


def test_a_worker_that_was_not_there_in_time_is_named_by_all_that_wait() -> None:
    groups = groups_of(4, Settings(join_timeout_s=1.5, lease_s=0.5), timeout_s=None)
    results: list[Any] = [None] * 4

    def worker(rank: int) -> None:
        with pytest.raises((JoinTimeoutError, PeerLostError)) as caught:
            groups[rank].open()
        results[rank] = caught.value
        groups[rank].close()

    threads = [threading.Thread(target=worker, args=(i,), daemon=True) for i in (0, 1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a worker hangs"
    assert "task:2" in str(results[1])
    assert isinstance(results[1], JoinTimeoutError)


def test_a_ring_that_did_not_form_is_tried_again_under_its_number() -> None:
    ports = free_ports(2)
    alone, _ = groups_of(2, Settings(join_timeout_s=1), 20, ports)
    with pytest.raises(JoinTimeoutError):
        alone.open()
    alone.close()
    first, second = groups_of(2, Settings(join_timeout_s=15), 20, ports)
    results: list[Any] = []

    def again(group: CollectiveGroup) -> None:
        group.open()
        results.append(group.all_reduce(np.ones(1)).tolist())
        group.close()

    threads = [
        threading.Thread(target=again, args=(each,), daemon=True) for each in (first, second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == [[2.0], [2.0]]


def test_a_call_that_cannot_be_made_is_not_counted(together: Together) -> None:
    def work(group: CollectiveGroup) -> Any:
        if group.rank == 0:
            with pytest.raises(TypeError, match="complex128"):
                group.all_reduce(np.ones(2, np.complex128))
        return group.all_reduce(np.ones(2)).tolist()

    assert together(2, work) == [[2.0, 2.0]] * 2


def test_a_forked_child_that_ends_leaves_the_ring_alone() -> None:
    """In a process of its own, since grpc's threads and a fork do not go together in this one."""
    program = """
import os, sys, threading
import numpy as np
from windlass.core.settings import Settings
from tests.contract.test_contract_ring import groups_of

groups = groups_of(2, Settings(shared_memory=False, join_timeout_s=10, lease_s=2), 10)

def together(work):
    threads = [threading.Thread(target=work, args=(each,)) for each in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

together(lambda group: group.open())
child = os.fork()
if not child:
    sys.exit(0)  # runs what is registered for the end of the program
os.waitpid(child, 0)
together(lambda group: sys.stdout.write(f"{group.all_reduce(np.ones(1))[0]}\\n"))
for group in groups:
    group.close()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert ran.stdout.split() == ["2.0", "2.0"], ran.stderr
