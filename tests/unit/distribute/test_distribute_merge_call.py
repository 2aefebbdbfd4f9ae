"""Several replicas in one worker: they meet in merge_call, and never wait for ever."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import windlass as wl
from windlass.distribute import PerReplica, ReplicaContext, Strategy, replica_runner

Array = np.ndarray[Any, np.dtype[Any]]

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Strategy]]:
    """Makes a strategy of so many replicas in this process."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr("windlass.distribute.devices.count_gpus", lambda: 0)

    def make(count: int) -> Strategy:
        wl.config.set_logical_cpu_devices(count)
        return wl.distribute.ParameterServerStrategy()

    yield make
    wl.config.set_logical_cpu_devices(1)


def context() -> ReplicaContext:
    found = wl.distribute.get_replica_context()
    assert found is not None
    return found


def replica() -> int:
    return context().replica_id_in_sync_group


Replicas = Callable[[int], Strategy]


def test_replicas_run_at_the_same_time_and_results_are_regrouped(replicas: Replicas) -> None:
    strategy = replicas(3)
    meeting = threading.Barrier(3)

    def step(x: int) -> tuple[int, str]:
        meeting.wait(5)  # passes only if all run together
        return x * 10, "same"

    tens, same = strategy.run(step, args=(PerReplica([1, 2, 3]),))
    assert tens.values == (10, 20, 30)
    assert same == "same"


def test_a_merge_function_runs_once_with_everybodys_arguments(replicas: Replicas) -> None:
    strategy = replicas(3)
    calls: list[tuple[Any, ...]] = []

    def merge(given: Strategy, a: Any, b: Any, *, c: Any) -> tuple[PerReplica, str]:
        calls.append((given, a, b, c))
        return PerReplica([value + 100 for value in a.values]), "all"

    def step() -> tuple[int, str]:
        mine: tuple[int, str] = context().merge_call(merge, (replica(), "x"), {"c": [replica()]})
        return mine

    result, everyone = strategy.run(step)
    assert result.values == (100, 101, 102)
    assert everyone == "all"
    [(given, a, b, c)] = calls
    assert given is strategy
    assert a.values == (0, 1, 2)
    assert b == "x"
    assert c[0].values == (0, 1, 2)


def test_replicas_may_meet_many_times(replicas: Replicas) -> None:
    strategy = replicas(2)

    def step() -> int:
        total = replica()
        for _ in range(50):
            total = context().merge_call(
                lambda _, v: PerReplica([v.values[1], v.values[0]]), (total,)
            )
        return total

    assert strategy.run(step).values == (0, 1)


def test_all_reduce_gives_every_replica_the_result(replicas: Replicas) -> None:
    strategy = replicas(3)

    def step() -> tuple[dict[str, Any], Any]:
        mine = np.array([replica(), 1.0], np.float32)
        return context().all_reduce("sum", {"a": mine, "b": (mine * 2,)}), context().all_reduce(
            "MEAN", mine
        )

    sums, means = strategy.run(step)
    for total, mean in zip(
        strategy.experimental_local_results(sums),
        strategy.experimental_local_results(means) * 3,
        strict=False,
    ):
        np.testing.assert_array_equal(total["a"], [3, 3])
        np.testing.assert_array_equal(total["b"][0], [6, 6])
        np.testing.assert_array_equal(mean, [1, 1])


def test_all_reduce_counts_an_object_all_replicas_share_once_for_each(replicas: Replicas) -> None:
    """A constant, or an argument that is not distributed, is every replica's value."""
    strategy = replicas(2)
    shared = np.array([1.0, 2.0])

    def step(x: Array) -> tuple[Any, Any, Any]:
        reduce = context().all_reduce
        return reduce("SUM", x), reduce("SUM", 1), reduce("MEAN", x)

    total, ones, mean = strategy.experimental_local_results(strategy.run(step, args=(shared,)))[0]
    np.testing.assert_array_equal(total, [2, 4])
    assert ones == 2
    np.testing.assert_array_equal(mean, shared)


def test_all_reduce_with_one_replica_is_the_value() -> None:
    assert Strategy().run(lambda: context().all_reduce("SUM", 5)) == 5
    with pytest.raises(ValueError, match="SUM or MEAN"):
        Strategy().run(lambda: context().all_reduce("MAX", 5))


def test_a_replica_that_ends_while_others_wait_is_an_error(replicas: Replicas) -> None:
    strategy = replicas(3)

    def step() -> None:
        if replica() == 1:
            context().merge_call(lambda _: None)

    with pytest.raises(RuntimeError, match=r"replicas disagree: 1 called merge_call"):
        strategy.run(step)
    assert strategy.run(replica).values == (0, 1, 2), "the next step works"


def test_more_merge_calls_on_one_replica_are_an_error(replicas: Replicas) -> None:
    strategy = replicas(2)

    def step() -> None:
        for _ in range(1 + replica()):
            context().merge_call(lambda _: None)

    with pytest.raises(RuntimeError, match="same calls in the same order"):
        strategy.run(step)


def test_merge_arguments_of_different_number_are_an_error(replicas: Replicas) -> None:
    def step() -> None:
        context().merge_call(lambda *_: None, (1,) * (1 + replica()))

    with pytest.raises(ValueError, match=r"shorter|longer"):
        replicas(2).run(step)


@pytest.mark.parametrize("failing", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("waiting", [False, True], ids=["alone", "while-others-wait"])
def test_a_replicas_exception_is_raised_in_the_caller(
    replicas: Replicas, failing: int, waiting: bool
) -> None:
    strategy = replicas(2)
    left: list[int] = []

    def step() -> None:
        if replica() == failing:
            raise KeyError(f"replica {failing}")
        try:
            if waiting:
                context().merge_call(lambda _: None)
        except Exception:  # noqa: BLE001 - what programs write
            left.append(-1)
        finally:
            left.append(replica())

    with pytest.raises(KeyError, match=f"replica {failing}"):
        strategy.run(step)
    assert left == [1 - failing], "the other replica was unwound, and could not swallow it"


def test_an_exception_in_a_merge_function_is_raised_once_in_the_caller(replicas: Replicas) -> None:
    strategy = replicas(2)

    def merge(_: Strategy) -> None:
        raise ZeroDivisionError("merged")

    with pytest.raises(ZeroDivisionError, match="merged"):
        strategy.run(lambda: context().merge_call(merge))
    assert strategy.run(replica).values == (0, 1)


def test_inside_merge_call_cross_replica_methods_work(replicas: Replicas) -> None:
    strategy = replicas(2)

    def step() -> float:
        got: float = context().merge_call(
            lambda given, v: given.reduce("SUM", v), (float(replica()) + 1,)
        )
        return got

    assert strategy.run(step) == 3.0


def test_merge_call_of_another_replicas_context_is_refused(replicas: Replicas) -> None:
    strategy = replicas(2)
    contexts: dict[int, ReplicaContext] = {}
    met = threading.Barrier(2)

    def step() -> None:
        contexts[replica()] = context()
        met.wait(5)
        with pytest.raises(RuntimeError, match="not current"):
            contexts[1 - replica()].merge_call(lambda _: None)

    strategy.run(step)


def test_ctrl_c_reaches_a_caller_whose_replicas_wait(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas wait for a merge that the interrupted caller will never hold."""
    strategy = replicas(2)
    caller = threading.current_thread()

    class Interrupted(threading.Condition):
        """Ctrl-C comes while the caller waits for the replicas."""

        def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
            if threading.current_thread() is caller:
                raise KeyboardInterrupt
            return super().wait_for(predicate, timeout)

    meeting = replica_runner._Meeting([], Interrupted())

    def meet(group: list[replica_runner._Replica]) -> replica_runner._Meeting:
        meeting.replicas = group
        return meeting

    late = threading.Event()

    def rescue() -> None:
        late.set()
        with meeting.changed:
            meeting.aborted = True
            meeting.changed.notify_all()

    monkeypatch.setattr(replica_runner, "_Meeting", meet)
    timer = threading.Timer(3, rescue)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            strategy.run(lambda: context().merge_call(lambda _: None))
    finally:
        timer.cancel()
        timer.join()
    assert not late.is_set(), "the caller waited for replicas that waited for it"


def test_a_strategy_that_is_gone_leaves_no_threads(replicas: Replicas) -> None:
    before = set(threading.enumerate())
    strategy = replicas(4)
    strategy.run(lambda: context().merge_call(lambda _: None))
    mine = [thread for thread in threading.enumerate() if thread not in before]
    assert len(mine) == 4
    gone = weakref.ref(strategy)
    del strategy
    gc.collect()
    assert gone() is None
    for thread in mine:
        thread.join(5)
        assert not thread.is_alive()


def test_the_number_of_logical_devices_is_that_of_the_replicas(replicas: Replicas) -> None:
    assert replicas(5).num_replicas_in_sync == 5
    assert wl.config.list_compute_devices() == [f"/device:CPU:{i}" for i in range(5)]
    with pytest.raises(ValueError, match="at least one"):
        wl.config.set_logical_cpu_devices(0)
