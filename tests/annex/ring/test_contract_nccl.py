"""NCCL between workers: calls are compared, sums are sums, and a lost worker ends the wait.

NCCL needs a GPU per worker, which no machine of ours has two of. Here CuPy is played on the host,
with an NCCL that, like the real one, never comes to an end when a worker does not come.
"""

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ropewalk.annexes.ring.group import CollectiveGroup
from ropewalk.annexes.ring.nccl import NcclLink
from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.arrays.dtypes import as_dtype
from ropewalk.core.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    PeerLostError,
    RopewalkError,
)
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.net.this_machine import free_ports

pytestmark = pytest.mark.timeout(60)

WORKERS = 3
NOT_READY, LAUNCH_FAILURE = 600, 719  # cudaErrorNotReady, cudaErrorLaunchFailure
FAILED = -1  # in place of an address: the GPU has failed


class PlayedNccl:
    """``cupy.cuda.nccl``: adds up when everybody has come."""

    NCCL_SUM, NCCL_INT64, NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = 0, 4, 6, 7, 8, 9
    available = True

    class NcclError(RuntimeError):
        """What NCCL refuses, and what it finds to have failed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.arrays: dict[int, np.ndarray[Any, Any]] = {}  # by address, in place of a GPU's memory
        self.come: dict[tuple[int, ...] | bytes, list[list[int]]] = {}
        self.identities: set[tuple[int, ...] | bytes] = set()
        self.aborted: list[int] = []
        self.count = 0
        self.kind: type[tuple[int, ...] | bytes] = bytes  # since CuPy 14
        self.in_group = threading.local()
        self.groups = 0
        self.fails: dict[int, str] = {}  # by rank: what of it

    def groupStart(self) -> None:
        self.in_group.now = True

    def groupEnd(self) -> None:
        self.in_group.now = False
        with self.lock:
            self.groups += 1

    def get_unique_id(self) -> tuple[int, ...] | bytes:
        with self.lock:
            self.count += 1
            return self.kind((self.count, *range(127)))

    def NcclCommunicator(self, size: int, identity: tuple[int, ...] | bytes, rank: int) -> Any:
        assert size == WORKERS
        assert type(identity) is self.kind
        self.identities.add(identity)
        calls = 0

        def reduce(
            source: int, target: int, count: int, dtype: int, op: int, stream: SimpleNamespace
        ) -> None:
            nonlocal calls
            assert (source, op) == (target, self.NCCL_SUM)
            assert self.in_group.now
            assert dtype == getattr(self, f"NCCL_{self.arrays[source].dtype.name.upper()}")
            if self.fails.get(rank) == "call":
                raise self.NcclError("unhandled system error")
            if rank in self.fails:
                stream.waits_for = [FAILED] if self.fails[rank] == "GPU" else []
                return
            with self.lock:
                rounds = self.come.setdefault(identity, [])
                if len(rounds) == calls:
                    rounds.append([])
                mine = rounds[calls]
                mine.append(source)
                stream.waits_for = mine
                if len(mine) == WORKERS:
                    total = sum(self.arrays[address][:count] for address in mine)
                    for address in mine:
                        self.arrays[address][:count] = total
            calls += 1

        def check() -> None:
            if self.fails.get(rank) == "NCCL":
                raise self.NcclError("remote process exited or there was a network error")

        return SimpleNamespace(
            allReduce=reduce, check_async_error=check, abort=lambda: self.aborted.append(rank)
        )


class CUDARuntimeError(RuntimeError):
    """``cupy.cuda.runtime``'s, of a status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}")


class OnGpu:
    """A ``cupy.ndarray``, as far as NCCL is concerned."""

    def __init__(self, nccl: PlayedNccl, values: Any) -> None:
        self.host = np.asarray(values)
        self.size, self.dtype = self.host.size, self.host.dtype
        self.data = SimpleNamespace(ptr=id(self))
        self.device = threading.Lock()  # a context, entered by one at a time
        nccl.arrays[id(self)] = self.host


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> PlayedNccl:
    played = PlayedNccl()

    class Event:
        def __init__(self) -> None:
            self.ptr = self

        def record(self, stream: SimpleNamespace) -> None:
            self.waits_for = stream.waits_for

    def query(event: Event) -> int:
        """CuPy's ``eventQuery`` gives the status, whatever it is."""
        if FAILED in event.waits_for:
            return LAUNCH_FAILURE
        with played.lock:
            return 0 if len(event.waits_for) == WORKERS else NOT_READY

    streams = threading.local()

    def current_stream() -> SimpleNamespace:
        if not hasattr(streams, "one"):
            streams.one = SimpleNamespace(waits_for=[])
            streams.one.ptr = streams.one
        return streams.one  # type: ignore[no-any-return]

    cuda = SimpleNamespace(
        Device=lambda _: threading.Lock(),
        Event=Event,
        get_current_stream=current_stream,
        runtime=SimpleNamespace(eventQuery=query, CUDARuntimeError=CUDARuntimeError),
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", played)  # no attribute: as in CuPy 14
    return played


Work = Callable[[CollectiveGroup, NcclLink], Any]


@pytest.fixture
def together(nccl: PlayedNccl) -> Callable[..., list[Any]]:
    """Runs a function as each worker; gives their results or errors, by rank."""

    def run(work: Work, timeout_s: float | None = None) -> list[Any]:
        spec = ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in free_ports(WORKERS)]})
        settings = Settings(join_timeout_s=20, lease_s=1)
        results: list[Any] = [None] * WORKERS
        groups: list[CollectiveGroup] = []

        def worker(rank: int) -> None:
            task = ResolvedTask(
                TaskId("worker", rank),
                spec,
                TaskId("worker", 0),
                address=spec.task_address("worker", rank),
            )
            group = CollectiveGroup(task, settings, timeout_s=timeout_s)
            try:
                group.open()
                results[rank] = work(group, NcclLink(group, 0))
            except (RopewalkError, CUDARuntimeError, PlayedNccl.NcclError) as error:
                results[rank] = error
            finally:
                if results[rank] == "gone":
                    group.close()  # others stay, to be asked
                groups.append(group)

        threads = [threading.Thread(target=worker, args=(i,), daemon=True) for i in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert not any(thread.is_alive() for thread in threads), "a worker hangs"
        for group in groups:
            group.close()
        return results

    return run


@pytest.mark.parametrize("kind", [bytes, tuple], ids=["CuPy 14", "CuPy 13"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16", "int64"])
def test_every_worker_has_the_sum(
    nccl: PlayedNccl, together: Callable[..., list[Any]], dtype: str, kind: Any
) -> None:
    nccl.kind = kind

    def work(group: CollectiveGroup, link: NcclLink) -> Any:
        sums = []
        for number in range(3):
            array = OnGpu(nccl, (np.arange(4) + group.rank + number).astype(as_dtype(dtype)))
            link.all_reduce([array])
            sums.append(array.host.tolist())
        return sums

    expected = [[3.0 * i + 3 + 3 * number for i in range(4)] for number in range(3)]
    assert together(work) == [expected] * WORKERS
    assert len(nccl.identities) == 1, "all have the first worker's"
    assert not nccl.aborted


def test_workers_in_different_calls_are_an_error_before_nccl_adds_up_anything(
    nccl: PlayedNccl, together: Callable[..., list[Any]]
) -> None:
    def work(group: CollectiveGroup, link: NcclLink) -> Any:
        link.all_reduce([OnGpu(nccl, np.ones(4 + (group.rank == 1), np.float32))])

    results = together(work)
    assert all(isinstance(error, CollectiveMismatchError) for error in results)
    assert "reduces 5 elements" in str(results[0])
    assert not nccl.come


def test_arrays_of_a_step_are_compared_and_begun_together(
    nccl: PlayedNccl, together: Callable[..., list[Any]]
) -> None:
    def work(group: CollectiveGroup, link: NcclLink) -> Any:
        gathers = 0
        gather = group.all_gather

        def counted(*args: Any, **options: Any) -> Any:
            nonlocal gathers
            gathers += 1
            return gather(*args, **options)

        group.all_gather = counted  # type: ignore[method-assign]
        arrays = [OnGpu(nccl, np.full(n, group.rank, np.float32)) for n in (2, 5, 1)]
        link.all_reduce(arrays)
        return gathers, [array.host.tolist() for array in arrays]

    assert together(work) == [(1, [[3.0] * 2, [3.0] * 5, [3.0]])] * WORKERS
    assert nccl.groups == WORKERS


def test_workers_with_more_arrays_than_others_are_an_error(
    nccl: PlayedNccl, together: Callable[..., list[Any]]
) -> None:
    def work(group: CollectiveGroup, link: NcclLink) -> Any:
        link.all_reduce([OnGpu(nccl, np.ones(4, np.float32)) for _ in range(1 + group.rank)])

    results = together(work)
    assert all(isinstance(error, CollectiveMismatchError) for error in results)
    assert "/job:worker/task:1 reduces 2 arrays, this worker 1;" in str(results[0])
    assert not nccl.come


@pytest.mark.parametrize("failure", ["GPU", "NCCL", "call"])
def test_what_fails_on_one_worker_ends_the_wait_of_all(
    nccl: PlayedNccl, together: Callable[..., list[Any]], failure: str
) -> None:
    """CUDA's events are then never done, and no worker would be missed: all answer."""

    nccl.fails = {1: failure}

    def work(group: CollectiveGroup, link: NcclLink) -> Any:
        link.all_reduce([OnGpu(nccl, np.ones(4, np.float32))])

    results = together(work)
    own = {"GPU": CUDARuntimeError, "NCCL": PlayedNccl.NcclError, "call": PlayedNccl.NcclError}
    assert isinstance(results[1], own[failure])
    for rank in (0, 2):
        assert isinstance(results[rank], PeerLostError), results[rank]
        assert "/job:worker/task:1" in str(results[rank])
    assert sorted(nccl.aborted) == [0, 1, 2]


def test_a_worker_that_is_lost_while_nccl_waits_is_named_and_nccl_given_up(
    nccl: PlayedNccl, together: Callable[..., list[Any]]
) -> None:
    def work(group: CollectiveGroup, link: NcclLink) -> Any:
        if group.rank == 1:
            link._compare([(4, PlayedNccl.NCCL_FLOAT32)], None)  # it comes, and then is no more
            return "gone"
        link.all_reduce([OnGpu(nccl, np.ones(4, np.float32))])
        return "done"

    results = together(work)
    assert results[1] == "gone"
    for rank in (0, 2):
        assert isinstance(results[rank], PeerLostError)
        assert "/job:worker/task:1" in str(results[rank])
    assert sorted(nccl.aborted) == [0, 2]


def test_a_worker_that_takes_too_long_is_named(
    nccl: PlayedNccl, together: Callable[..., list[Any]]
) -> None:
    over = threading.Event()

    def work(group: CollectiveGroup, link: NcclLink) -> Any:
        if group.rank == 1:
            link._compare([(4, PlayedNccl.NCCL_FLOAT32)], None)
            over.wait(20)
            return "late"
        try:
            link.all_reduce([OnGpu(nccl, np.ones(4, np.float32))], timeout_s=1)
        finally:
            if group.rank == 2:
                over.set()

    results = together(work)
    assert results[1] == "late"
    assert any(isinstance(error, CollectiveTimeoutError) for error in results)
    assert all(isinstance(results[rank], RopewalkError) for rank in (0, 2))
    assert "/job:worker/task:1" in str(results[2])
