"""Synchronous workers: every call has its result, and every survivor hears who is lost."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from helpers.faulty_stream import Faults
from helpers.rings import KINDS
from helpers.streams import result, start
from helpers.waiting import scaled, wait_until
from ropewalk.annexes.ring.group import CollectiveGroup
from ropewalk.annexes.ring.server import hold_server, release_server
from ropewalk.annexes.ring.worker_client import WorkerClient
from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    JoinTimeoutError,
    PeerLostError,
    RopewalkError,
    ShapeMismatchError,
)
from ropewalk.core.settings import Settings
from ropewalk.core.step_times import StepClock
from ropewalk.core.task import TaskId
from ropewalk.net.this_machine import free_ports

Array = np.ndarray[Any, np.dtype[Any]]
Work = Callable[[CollectiveGroup], Any]
Together = Callable[..., list[Any]]

pytestmark = pytest.mark.timeout(60)


def groups_of(
    count: int,
    timeout_s: float | None,
    ports: list[int] | None = None,
    wishes: list[dict[str, bool]] | None = None,
    **settings: float,
) -> list[CollectiveGroup]:
    spec = ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in ports or free_ports(count)]})
    given = wishes or [{}]
    return [
        CollectiveGroup(
            ResolvedTask(
                TaskId("worker", i),
                spec,
                TaskId("worker", 0),
                address=spec.task_address("worker", i),
            ),
            Settings.model_validate({"join_timeout_s": 20, **settings, **given[i % len(given)]}),
            timeout_s=timeout_s,
        )
        for i in range(count)
    ]


def run_all(groups: list[CollectiveGroup], work: Work) -> list[Any]:
    """Run a function as each worker; their results, or their errors."""

    def worker(group: CollectiveGroup) -> Any:
        try:
            group.open()
            return work(group)
        except RopewalkError as error:
            return error

    running = [start(partial(worker, group)) for group in groups]
    results = [result(each, 30) for each in running]
    closing_all = [start(group.close) for group in groups]
    for each in closing_all:
        result(each, 20)
    return results


@pytest.fixture(params=list(KINDS))
def together(request: pytest.FixtureRequest) -> Together:
    """Runs a function as each worker of a ring; gives their results or errors, by rank."""

    def run(count: int, work: Work, timeout_s: float | None = 20, lease_s: float = 2) -> list[Any]:
        groups = groups_of(count, timeout_s, None, KINDS[request.param], lease_s=lease_s)

        def checked(group: CollectiveGroup) -> Any:
            assert request.param in (group.transport, "mixed")
            return work(group)

        return run_all(groups, checked)

    return run


def mine(rank: int, shape: tuple[int, ...], dtype: str) -> Array:
    rng = np.random.default_rng(rank)
    return (rng.normal(size=shape) * 100).astype(dtype)


ARRAYS: list[tuple[tuple[int, ...], str]] = [
    ((), "float32"),
    ((0,), "float32"),
    ((2, 3), "float64"),
    ((100_003,), "float32"),
    ((700, 1001), "float32"),
    ((300_001,), "int64"),
]


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_all_reduce_is_the_sum_with_the_same_bits_everywhere(
    together: Together, workers: int
) -> None:
    def work(group: CollectiveGroup) -> list[Array]:
        return [group.all_reduce(mine(group.rank, *array)) for array in ARRAYS]

    results = together(workers, work)
    for number, (shape, dtype) in enumerate(ARRAYS):
        sums = [each[number] for each in results]
        expected = sum(mine(rank, shape, dtype).astype(np.float64) for rank in range(workers))
        assert {total.tobytes() for total in sums} == {sums[0].tobytes()}
        assert sums[0].shape == shape
        assert sums[0].dtype == dtype
        # float32 sums of hundreds
        np.testing.assert_allclose(sums[0], expected, rtol=1e-5, atol=1e-4)


def test_a_divisor_makes_means(together: Together) -> None:
    def work(group: CollectiveGroup) -> list[Array]:
        return [
            group.all_reduce(np.full(size, group.rank, np.float32), divisor=4)
            for size in (10, 200_000)
        ]

    for means in together(2, work):
        for mean in means:
            np.testing.assert_array_equal(mean, np.full(mean.size, 0.25))


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
    assert all(isinstance(error, RopewalkError) for error in errors)
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
    assert all(isinstance(error, CollectiveMismatchError) for error in survivors), survivors
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


@pytest.mark.parametrize("timeout_s", [0, 0.1], ids=["of-the-group", "of-the-call"])
def test_a_timeout_of_zero_is_none(together: Together, timeout_s: float) -> None:
    late = threading.Event()

    def work(group: CollectiveGroup) -> Any:
        if group.rank:
            late.wait(0.5)
        return group.all_reduce(np.ones(5, np.float32), timeout_s=0 if timeout_s else None).sum()

    assert together(2, work, timeout_s=timeout_s) == [10, 10]


def test_a_worker_that_computes_for_longer_than_a_lease_is_waited_for(together: Together) -> None:
    def work(group: CollectiveGroup) -> Any:
        total = 0.0
        for turn in range(2):
            if group.rank == turn:
                time.sleep(0.8)
            total += group.all_reduce(np.ones(5, np.float32)).sum()
        return total

    assert together(2, work, timeout_s=None, lease_s=0.2) == [20, 20]


def test_a_worker_that_leaves_after_its_last_call_has_sent_everything(together: Together) -> None:
    def work(group: CollectiveGroup) -> Any:
        if group.rank:
            time.sleep(1.5)
        found = group.broadcast(mine(0, (500_000,), "float32"))
        group.close()
        return found.tobytes() == mine(0, (500_000,), "float32").tobytes()

    assert together(2, work) == [True, True]


def test_a_call_that_cannot_be_made_is_not_counted(together: Together) -> None:
    def work(group: CollectiveGroup) -> Any:
        if group.rank == 0:
            with pytest.raises(TypeError, match="complex128"):
                group.all_reduce(np.ones(2, np.complex128))
        return group.all_reduce(np.ones(2)).tolist()

    assert together(2, work) == [[2.0, 2.0]] * 2


@pytest.mark.parametrize("kind", ["tcp", "grpc"])
def test_what_was_sent_may_be_changed_once_the_call_is_over(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A sender that has to wait for its neighbour sends the values of the call, not later ones."""
    changed = threading.Event()
    faults = Faults(plan=lambda stream, _number: stream.fill())
    client = partial(WorkerClient, wrap=faults.wrap)
    monkeypatch.setattr("ropewalk.annexes.ring.links.WorkerClient", client)

    def work(group: CollectiveGroup) -> Array:
        values = mine(group.rank, (700_000,), "float32")
        if group.rank:
            return group.broadcast(values)
        for stream in faults.streams:  # what waits is sent after the change, if that can be
            stream.before_send = lambda _count: changed.wait(0.1)
        group.broadcast(values)
        values[:] = 0
        changed.set()
        return values

    groups = groups_of(2, 20, None, KINDS[kind])
    np.testing.assert_array_equal(run_all(groups, work)[1], mine(0, (700_000,), "float32"))


# -- forming a ring ----------------------------------------------------------------------------


def test_a_worker_that_never_comes_is_a_join_timeout_naming_it() -> None:
    group = groups_of(2, 5, join_timeout_s=0.6)[0]
    with pytest.raises(JoinTimeoutError, match=r"/job:worker/task:1 at 127\.0\.0\.1:\d+"):
        group.open()
    group.close()


def test_a_job_that_fails_while_the_ring_forms_is_no_late_worker() -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    spec, first = ClusterSpec({"worker": addresses}), TaskId("worker", 0)

    def failed() -> None:
        raise PeerLostError("ends because the job failed")

    task = ResolvedTask(first, spec, first, address=addresses[0])
    group = CollectiveGroup(task, Settings(join_timeout_s=20), still_wanted=failed)
    # Not a JoinTimeoutError, which is the container's own failure, and has its pod replaced.
    with pytest.raises(PeerLostError, match=r"^ends because the job failed$"):
        group.open()
    group.close()


def test_a_worker_that_is_started_again_waits_for_the_next_one_and_not_for_the_one_before() -> None:
    """Its neighbour of the life before still listens, and takes its link, before that ends, too."""
    first, second = groups_of(2, 5, join_timeout_s=scaled(20))
    address = first._workers.addresses[1]
    server = hold_server(second.task, address, Settings())
    forming = start(first.open)
    wait_until(lambda: server.incoming._links, 20, "the link")
    release_server(address)
    second.open()
    result(forming, 20)
    for each in [start(group.close) for group in (first, second)]:
        result(each, 20)


def test_a_worker_that_starts_long_after_the_lease_is_waited_for() -> None:
    """Of four workers two have both their links before the late one has any."""
    groups = groups_of(4, 0.5, lease_s=0.5)

    def come(group: CollectiveGroup) -> Any:
        if group.rank == 2:
            time.sleep(2)  # it is what the others have to sit out
        group.open()
        return group.all_reduce(np.ones(2), timeout_s=20).tolist()

    running = [start(partial(come, group)) for group in groups]
    assert [result(each, 30) for each in running] == [[4.0, 4.0]] * 4
    for each in [start(group.close) for group in groups]:
        result(each, 20)


def test_a_worker_that_was_not_there_in_time_is_named_by_all_that_wait() -> None:
    groups = groups_of(4, None, join_timeout_s=1.5, lease_s=0.5)
    del groups[2]
    errors = run_all(groups, lambda group: "formed")
    assert all(isinstance(error, (JoinTimeoutError, PeerLostError)) for error in errors)
    assert isinstance(errors[1], JoinTimeoutError)
    assert "task:2" in str(errors[1])


def test_a_ring_that_did_not_form_is_tried_again_under_its_number() -> None:
    ports = free_ports(2)
    alone = groups_of(2, 20, ports, join_timeout_s=1)[0]
    with pytest.raises(JoinTimeoutError):
        alone.open()
    alone.close()
    again = run_all(groups_of(2, 20, ports), lambda group: group.all_reduce(np.ones(1)).tolist())
    assert again == [[2.0], [2.0]]


def test_a_forked_child_that_ends_leaves_the_ring_alone() -> None:
    """In a process of its own, since grpc's threads and a fork do not go together in this one."""
    program = f"""
import os, sys
sys.path[:0] = {sys.path!r}
import numpy as np
from helpers.rings import NO_MEMORY
from tests.annex.ring.test_contract_ring import groups_of, result, start

groups = groups_of(2, 10, None, [NO_MEMORY], lease_s=2)
for each in [start(group.open) for group in groups]:
    result(each)
child = os.fork()
if not child:
    sys.exit(0)  # runs what is registered for the end of the program
os.waitpid(child, 0)
for each in [start(lambda group=group: group.all_reduce(np.ones(1))) for group in groups]:
    print(result(each)[0])
for each in [start(group.close) for group in groups]:
    result(each)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=scaled(50),
        check=False,
    )
    assert ran.stdout.split() == ["2.0", "2.0"], ran.stderr


@pytest.mark.parametrize("workers", [2, 3])
def test_all_hear_the_text_of_the_first_worker(together: Together, workers: int) -> None:
    long = "/a/path/" + "ü" * 1000

    def work(group: CollectiveGroup) -> list[str]:
        texts = (long, "") if group.rank == 0 else ("", "not this one")
        return [group.from_first(text) for text in texts]

    assert together(workers, work) == [[long, ""]] * workers


def test_what_a_worker_waits_for_others_is_measured_and_the_one_they_wait_for_waits_least() -> None:
    clocks = [StepClock(), StepClock()]
    groups = groups_of(2, 20)
    for group, clock in zip(groups, clocks, strict=True):
        group._links._clock = clock

    def work(group: CollectiveGroup) -> None:
        clock = clocks[group.rank]
        clock.step_ended()
        if group.rank == 0:
            threading.Event().wait(0.3)
        group.all_reduce(np.ones(3))
        clock.step_ended()

    assert run_all(groups, work) == [None, None]
    late, early = (clock.times() for clock in clocks)
    assert early.part("others").seconds > 0.25 > late.part("others").seconds > 0
