"""Several replicas in one worker: they meet in merge_call, and never wait for ever."""

import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.replicas import barrier_of, context, replica
from ropewalk.distribute import (
    MirroredStrategy,
    ParameterServerStrategy,
    PerReplica,
    ReplicaContext,
    Strategy,
)
from ropewalk.distribute.strategies import replica_runner
from ropewalk.distribute.strategies.replica_runner import ReplicaRunner

pytestmark = pytest.mark.timeout(20)


@pytest.fixture(autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """A shell's background job ignores SIGINT, and so would its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(params=[MirroredStrategy, ParameterServerStrategy], ids=["Mirrored", "PS"])
def replicas(request: pytest.FixtureRequest) -> Callable[[int], Strategy]:
    """Makes a strategy of so many replicas in this process."""

    def make(count: int) -> Strategy:
        rw.config.set_logical_cpu_devices(count)
        made: Strategy = request.param()
        return made

    return make


Replicas = Callable[[int], Strategy]


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


def test_merge_arguments_of_different_number_are_an_error(replicas: Replicas) -> None:
    def step() -> None:
        context().merge_call(lambda *_: None, (1,) * (1 + replica()))

    with pytest.raises(ValueError, match=r"shorter|longer"):
        replicas(2).run(step)


def test_a_merge_may_answer_with_an_array_or_nothing(replicas: Replicas) -> None:
    """Of which the truth must not be asked."""
    strategy = replicas(2)

    def step() -> tuple[Any, Any, Any]:
        mine = np.array([1.0, 2.0]) * (1 + replica())
        merge = context().merge_call
        return (
            merge(lambda given, v: given.reduce("SUM", v), (mine,)),
            merge(lambda _: None),
            merge(lambda _: ()),
        )

    total, nothing, empty = strategy.run(step)
    np.testing.assert_array_equal(total, [3, 6])
    assert nothing is None
    assert empty == ()


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


def test_ctrl_c_reaches_a_caller_that_waits_in_a_merge(
    replicas: Replicas, wait_until: Callable[..., None]
) -> None:
    """The caller waits for a replica that runs on, and neither may hold the other up."""
    strategy = replicas(2)
    together = threading.Barrier(2)
    outcome: list[str] = []

    def step() -> None:
        together.wait(5)
        if replica() == 1:
            barrier = barrier_of(context())
            wait_until(lambda: barrier.waiting == 1, 5, "the caller to wait in the merge")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            wait_until(lambda: barrier.interrupted, 5, "Ctrl-C to reach the caller")
            outcome.append("the other replica comes to the merge")
        context().merge_call(lambda _: outcome.append("merged"))

    with pytest.raises(KeyboardInterrupt):
        strategy.run(step)
    assert outcome == ["the other replica comes to the merge"], "and is unwound there"
    assert strategy.run(replica).values == (0, 1), "the next step works"


def test_ctrl_c_reaches_a_caller_whose_replicas_wait(
    replicas: Replicas, wait_until: Callable[..., None]
) -> None:
    """Replicas wait for a merge that will never be held; the caller is through with its
    own part.
    """
    strategy = replicas(3)
    together, unwound = threading.Barrier(3), threading.Event()
    caller = threading.get_ident()

    def caller_waits() -> bool:
        return sys._current_frames()[caller].f_code is ReplicaRunner._wait_out.__code__

    def step() -> None:
        together.wait(5)
        if replica() == 1:
            try:
                context().merge_call(lambda _: None)
            finally:
                unwound.set()
        elif replica() == 2:
            wait_until(caller_waits, 5, "the caller to wait for the others")
            signal.pthread_kill(caller, signal.SIGINT)
            assert unwound.wait(5), "a replica waits on, though nobody will come"

    with pytest.raises(KeyboardInterrupt):
        strategy.run(step)
    assert strategy.run(replica).values == (0, 1, 2), "the next step works"


def test_a_second_ctrl_c_leaves_a_replica_behind_that_hangs(
    replicas: Replicas, wait_until: Callable[..., None]
) -> None:
    """Nothing reaches a thread that hangs in the program's own code."""
    strategy = replicas(2)
    together, released = threading.Barrier(2), threading.Event()
    caller = threading.get_ident()
    hanging: list[threading.Thread] = []

    def caller_waits() -> bool:
        return sys._current_frames()[caller].f_code is ReplicaRunner._wait_out.__code__

    def step() -> None:
        together.wait(5)
        if replica() == 1:
            barrier = barrier_of(context())
            hanging.append(threading.current_thread())
            wait_until(caller_waits, 5, "the caller to wait for the other replica")
            signal.pthread_kill(caller, signal.SIGINT)
            wait_until(lambda: barrier.interrupted, 5, "Ctrl-C to reach the caller")
            wait_until(caller_waits, 5, "the caller to wait all the same")
            signal.pthread_kill(caller, signal.SIGINT)
            released.wait(10)

    with pytest.raises(KeyboardInterrupt):
        strategy.run(step)
    assert hanging[0].is_alive()

    def next_step() -> int:
        together.wait(5)  # passes only if another thread runs the second replica
        return replica()

    assert strategy.run(next_step).values == (0, 1)
    released.set()
    hanging[0].join(5)
    assert not hanging[0].is_alive(), "once it moves again its thread ends"


def test_ctrl_c_before_the_first_replica_begins_unwinds_the_others(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = replicas(2)
    begun, unwound = threading.Event(), threading.Event()

    class Interrupted(ReplicaContext):
        def __init__(self, strategy: Any, number: int, *rest: Any) -> None:
            if number == 0:
                assert begun.wait(5)
                raise KeyboardInterrupt
            super().__init__(strategy, number, *rest)

    def step() -> None:
        begun.set()
        try:
            context().merge_call(lambda _: None)
        finally:
            unwound.set()

    with monkeypatch.context() as patch:
        patch.setattr(replica_runner, "ReplicaContext", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            strategy.run(step)
    assert unwound.is_set(), "it waits for a replica that will not come, and in the next step, too"
    assert strategy.run(replica).values == (0, 1)


@pytest.mark.usefixtures("asleep")
def test_after_ctrl_c_in_the_first_replica_no_other_begins(replicas: Replicas) -> None:
    """The caller would run those whose threads are not awake yet."""
    strategy = replicas(3)
    begun: list[int] = []

    def step() -> None:
        begun.append(replica())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        strategy.run(step)
    assert begun == [0]


def test_a_strategy_that_is_gone_leaves_no_threads(
    replicas: Replicas, wait_until: Callable[..., None]
) -> None:
    """The first replica runs in the caller's thread."""
    before = set(threading.enumerate())
    strategy = replicas(4)
    assert not set(threading.enumerate()) - before, "none before the first step"
    strategy.run(lambda: context().merge_call(lambda _: None))
    strategy.run(lambda: context().merge_call(lambda _: None))
    mine = [thread for thread in threading.enumerate() if thread not in before]
    assert len(mine) == 3
    gone = weakref.ref(strategy)
    del strategy
    # Its threads let go of the last step a moment after the caller does.
    wait_until(lambda: gc.collect() >= 0 and gone() is None, 5, "the strategy to be freed")
    for thread in mine:
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore:.*fork")  # Python's, and JAX's if another test has loaded it
def test_replicas_meet_in_a_forked_process_too(replicas: Replicas) -> None:
    """Threads do not come along: it would wait for them."""
    strategy = replicas(2)

    def step() -> Any:
        return context().merge_call(lambda _, number: sum(number.values), (replica(),))

    assert strategy.experimental_local_results(strategy.run(step))[0] == 1
    child = os.fork()
    if not child:
        signal.alarm(5)
        os._exit(0 if strategy.experimental_local_results(strategy.run(step))[0] == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_one_replica_needs_no_thread(replicas: Replicas) -> None:
    before = set(threading.enumerate())
    strategy = replicas(1)
    assert strategy.run(threading.get_ident) == threading.get_ident()
    assert set(threading.enumerate()) == before
