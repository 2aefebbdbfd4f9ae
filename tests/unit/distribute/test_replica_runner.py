"""How replicas are run: together when they need each other, without deadlock, leaving nothing."""

import contextvars
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import windlass as wl
from windlass.distribute import (
    MirroredStrategy,
    PerReplica,
    ReplicaContext,
    Strategy,
)
from windlass.distribute.strategies.replica_barrier import ReplicaBarrier
from windlass.distribute.strategies.replica_thread import ReplicaThread

pytestmark = pytest.mark.timeout(30)

SUM = wl.VariableAggregation.SUM
Replicas = Callable[[int], Strategy]
Step = Callable[[], Any]

HERE = "/job:localhost/replica:0/task:0"


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicas]:
    """Makes a strategy of so many replicas on logical CPU devices."""
    monkeypatch.setattr("windlass.distribute.base.devices.count_gpus", lambda: 0)

    def make(count: int) -> Strategy:
        wl.config.set_logical_cpu_devices(count)
        return MirroredStrategy()

    yield make
    wl.config.set_logical_cpu_devices(1)


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replicas' threads are slow to wake, so that the caller does all the work."""
    monkeypatch.setattr(ReplicaThread, "start", lambda thread, work: None)


def context() -> ReplicaContext:
    found = wl.distribute.get_replica_context()
    assert found is not None
    return found


def replica() -> int:
    return context().replica_id_in_sync_group


def nothing(*_: Any) -> None:
    """A merge that does nothing."""


def something_else(*_: Any) -> None:
    """Another one."""


# -- who runs what ---------------------------------------------------------------------------


def test_a_programs_own_barrier_between_replicas_works_again_and_again(replicas: Replicas) -> None:
    """All replicas run at the same time, in every one of many steps, several times in each."""
    strategy = replicas(3)
    barrier = threading.Barrier(3)

    def step(number: int) -> int:
        for _ in range(3):
            barrier.wait(5)
        return number + replica()

    for number in range(100):
        assert strategy.run(step, args=(number,)).values == (number, number + 1, number + 2)


def test_a_barrier_of_all_but_the_first_replica_works(replicas: Replicas) -> None:
    """The caller is through at once, takes on another replica, and that waits for the third."""
    strategy = replicas(3)
    barrier = threading.Barrier(2)

    def step() -> int:
        if replica():
            barrier.wait(5)
        return replica()

    for _ in range(100):
        assert strategy.run(step).values == (0, 1, 2)


def test_the_first_replica_runs_in_the_callers_thread(replicas: Replicas) -> None:
    strategy = replicas(3)
    together = threading.Barrier(3)

    def step() -> int:
        together.wait(5)
        return threading.get_ident()

    threads = strategy.run(step).values
    assert threads[0] == threading.get_ident()
    assert len(set(threads)) == 3


def test_a_step_shorter_than_waking_a_thread_is_done_by_the_caller(
    replicas: Replicas, asleep: None
) -> None:
    strategy = replicas(3)
    order: list[int] = []

    def step(x: int) -> tuple[int, int, str]:
        order.append(replica())
        return x * 10, threading.get_ident(), context().devices[0]

    tens, thread, devices = strategy.run(step, args=(PerReplica([1, 2, 3]),))
    assert tens.values == (10, 20, 30)
    assert set(strategy.experimental_local_results(thread)) == {threading.get_ident()}
    assert devices.values == tuple(f"{HERE}/device:CPU:{i}" for i in range(3))
    assert order == [0, 1, 2]


def test_every_replica_runs_once_whoever_runs_it(replicas: Replicas) -> None:
    strategy = replicas(4)
    ran: list[int] = []
    for _ in range(500):
        strategy.run(lambda: ran.append(replica()))
    assert sorted(ran) == sorted([0, 1, 2, 3] * 500)


def test_two_threads_may_run_steps_of_one_strategy_in_turn(replicas: Replicas) -> None:
    strategy = replicas(2)
    inside: list[int] = []
    overlaps: list[int] = []

    def merge(_: Strategy, name: str) -> None:
        inside.append(1)
        if len(inside) > 1:
            overlaps.append(1)
        inside.pop()

    def program(name: str, results: list[tuple[str, ...]]) -> None:
        for _ in range(50):

            def step() -> str:
                context().merge_call(merge, (name,))
                return f"{name}{replica()}"

            results.append(strategy.run(step).values)

    results: dict[str, list[tuple[str, ...]]] = {"a": [], "b": []}
    threads = [threading.Thread(target=program, args=item) for item in results.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == {"a": [("a0", "a1")] * 50, "b": [("b0", "b1")] * 50}
    assert not overlaps, "one run at a time"


# -- what the caller set ---------------------------------------------------------------------

_setting: contextvars.ContextVar[str] = contextvars.ContextVar("_setting", default="unset")


@pytest.mark.parametrize("by", ["threads", "caller"])
def test_contextvars_of_the_caller_reach_every_replica_and_no_replica_anothers(
    replicas: Replicas, by: str, request: pytest.FixtureRequest
) -> None:
    strategy = replicas(3)
    if by == "caller":
        request.getfixturevalue("asleep")
    together = threading.Barrier(3)

    def step() -> str:
        if by == "threads":
            together.wait(5)
        seen = _setting.get()
        _setting.set(f"of replica {replica()}")
        return seen

    def program() -> Any:
        _setting.set("of the caller")
        return strategy.run(step)

    assert contextvars.copy_context().run(program) == "of the caller"
    assert _setting.get() == "unset"


def test_numpys_error_state_holds_in_the_replicas(replicas: Replicas) -> None:
    strategy = replicas(2)
    together = threading.Barrier(2)

    def step() -> str:
        together.wait(5)
        with pytest.raises(FloatingPointError):
            np.ones(1) / np.zeros(1)
        return "raised"

    with np.errstate(divide="raise"):
        assert strategy.run(step) == "raised"


# -- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize("others", ["wait-in-a-merge", "run-on", "have-ended"])
@pytest.mark.parametrize("failing", [0, 1, 2], ids=["first", "middle", "last"])
def test_a_failure_is_raised_once_and_unwinds_the_others(
    replicas: Replicas, failing: int, others: str, wait_until: Callable[..., None]
) -> None:
    strategy = replicas(3)
    together = threading.Barrier(3)
    unwound: list[int] = []
    swallowed: list[int] = []

    def step() -> None:
        barrier = barrier_of(context())
        together.wait(5)
        if replica() == failing:
            if others == "wait-in-a-merge":
                wait_until(lambda: barrier.waiting == 2, 5, "the others to wait")
            elif others == "have-ended":
                wait_until(lambda: barrier.ended == 2, 5, "the others to end")
            raise KeyError(f"replica {failing}")
        if others == "have-ended":
            unwound.append(replica())
            return
        if others == "run-on":
            wait_until(lambda: barrier.ended > 0, 5, "the failure")
        try:
            context().merge_call(nothing)
        except Exception:  # noqa: BLE001 - what programs write
            swallowed.append(replica())
        finally:
            unwound.append(replica())

    with pytest.raises(KeyError, match=f"replica {failing}") as caught:
        strategy.run(step)
    assert sorted(unwound) == [i for i in range(3) if i != failing]
    assert not swallowed, "an aborted replica must not go on as if nothing had happened"
    assert any(entry.name == "step" for entry in caught.traceback), "the user's line is shown"
    assert strategy.run(replica).values == (0, 1, 2), "the next step works"


def barrier_of(current: ReplicaContext) -> ReplicaBarrier:
    """The run a replica takes part in."""
    merge = current._merge
    assert isinstance(merge, partial)
    barrier = getattr(merge.func, "__self__", None)
    assert isinstance(barrier, ReplicaBarrier)
    return barrier


def test_of_several_failures_one_is_raised_and_the_next_step_works(replicas: Replicas) -> None:
    strategy = replicas(3)
    together = threading.Barrier(3)

    def step() -> None:
        together.wait(5)
        raise KeyError(replica())

    for _ in range(20):
        with pytest.raises(KeyError):
            strategy.run(step)
    assert strategy.run(replica).values == (0, 1, 2)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("failing", [0, 1], ids=["first", "second"])
def test_what_ends_a_program_is_raised_as_it_is(
    replicas: Replicas, failing: int, error: type[BaseException]
) -> None:
    strategy = replicas(2)
    together = threading.Barrier(2)

    def step() -> None:
        together.wait(5)
        if replica() == failing:
            raise error
        context().merge_call(nothing)

    with pytest.raises(error):
        strategy.run(step)
    assert strategy.run(replica).values == (0, 1)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_failing_merge_unwinds_all_replicas(
    replicas: Replicas, error: type[BaseException]
) -> None:
    strategy = replicas(3)
    went_on: list[int] = []

    def merge(_: Strategy) -> None:
        raise error

    def step() -> None:
        context().merge_call(nothing)
        context().merge_call(merge)
        went_on.append(replica())

    with pytest.raises(error):
        strategy.run(step)
    assert not went_on
    assert strategy.run(replica).values == (0, 1, 2)


def test_replicas_results_of_different_structure_are_an_error_and_the_next_step_works(
    replicas: Replicas,
) -> None:
    strategy = replicas(2)
    with pytest.raises(ValueError, match=r"(?i)expected|mismatch"):
        strategy.run(lambda: (1,) * (1 + replica()))
    assert strategy.run(replica).values == (0, 1)


# -- replicas that disagree ------------------------------------------------------------------


class Program:
    """Two variables, and steps in which the second replica does something else than the first."""

    def __init__(self, strategy: Strategy) -> None:
        with strategy.scope():
            self.a = wl.Variable(np.zeros(2), name="a", aggregation=SUM)
            self.b = wl.Variable(np.zeros(2), name="b", aggregation=SUM)
        self.extended = strategy.extended

    def merge_functions(self) -> None:
        if replica() == 0:
            context().merge_call(nothing)  # mark 0
        else:
            context().merge_call(something_else)  # mark 1

    def merge_and_assign(self) -> None:
        if replica() == 0:
            context().merge_call(nothing)  # mark 0
        else:
            self.a.assign_add(np.ones(2))  # mark 1

    def assigned_variables(self) -> None:
        if replica() == 0:
            self.a.assign_add(np.ones(2))  # mark 0
        else:
            self.b.assign_add(np.ones(2))  # mark 1

    def all_reduce_ops(self) -> None:
        if replica() == 0:
            context().all_reduce("SUM", np.ones(2))  # mark 0
        else:
            context().all_reduce("MEAN", np.ones(2))  # mark 1

    def all_gather_axes(self) -> None:
        if replica() == 0:
            context().all_gather(np.ones((2, 2)), axis=0)  # mark 0
        else:
            context().all_gather(np.ones((2, 2)), axis=1)  # mark 1

    def reduce_and_gather(self) -> None:
        if replica() == 0:
            context().all_reduce("SUM", np.ones(2))  # mark 0
        else:
            context().all_gather(np.ones(2), axis=0)  # mark 1

    def updated_variables(self) -> None:
        if replica() == 0:
            self.extended.update(self.a, nothing)  # mark 0
        else:
            self.extended.update(self.b, nothing)  # mark 1

    def update_functions(self) -> None:
        if replica() == 0:
            self.extended.update(self.a, nothing)  # mark 0
        else:
            self.extended.update(self.a, something_else)  # mark 1


@pytest.mark.parametrize(
    "name", [name for name in vars(Program) if not name.startswith("_")], ids=str
)
def test_replicas_in_different_merges_are_an_error_that_shows_both_places(
    replicas: Replicas, name: str
) -> None:
    strategy = replicas(2)
    program = Program(strategy)
    with pytest.raises(RuntimeError, match="different merge calls") as caught:
        strategy.run(getattr(program, name))
    text = str(caught.value)
    first, second = text.index("replica 0 is at:"), text.index("replica 1 is at:")
    assert first < text.index("# mark 0") < second < text.index("# mark 1")
    assert f", in {name}\n" in text[first:second]
    assert f", in {name}\n" in text[second:]
    assert "windlass/distribute" not in text, "Windlass's own lines help nobody"
    assert strategy.run(replica).values == (0, 1), "the next step works"
    assert program.a.numpy().tolist() == [0, 0], "nothing was written"


@pytest.mark.parametrize("more", [0, 1], ids=["first-has-more", "second-has-more"])
def test_a_replica_that_ends_early_is_an_error_that_shows_where_the_other_waits(
    replicas: Replicas, more: int
) -> None:
    strategy = replicas(2)

    def step() -> None:
        for _ in range(3 if replica() == more else 2):
            context().merge_call(nothing)  # mark

    for _ in range(20):
        with pytest.raises(RuntimeError, match="ended without") as caught:
            strategy.run(step)
        text = str(caught.value)
        assert f"replicas disagree: {more} called merge_call" in text
        assert f"replica {1 - more} has ended" in text
        assert "# mark" in text[text.index(f"replica {more} is at:") :]
    assert strategy.run(replica).values == (0, 1)


def test_of_three_replicas_the_error_shows_each(replicas: Replicas) -> None:
    strategy = replicas(3)

    def step() -> None:
        if replica() == 1:
            return
        if replica() == 0:
            context().merge_call(nothing)  # mark 0
        else:
            context().merge_call(something_else)  # mark 2

    with pytest.raises(RuntimeError, match=r"0, 2 called merge_call") as caught:
        strategy.run(step)
    text = str(caught.value)
    assert text.index("# mark 0") < text.index("replica 1 has ended") < text.index("# mark 2")


def test_replicas_that_create_different_variables_are_an_error(replicas: Replicas) -> None:
    strategy = replicas(2)
    with pytest.raises(RuntimeError, match=r"replica 0: 'v' of shape \(1,\).*replica 1: .*\(2,\)"):
        strategy.run(lambda: wl.Variable(np.zeros(1 + replica()), name="v"))
    assert strategy.run(lambda: wl.Variable(0.5, name="w")).shape == ()


def test_replicas_with_different_optimizers_are_an_error(replicas: Replicas) -> None:
    strategy = replicas(2)
    program = Program(strategy)
    optimizers = [wl.optimizers.SGD(0.1), wl.optimizers.SGD(0.2)]

    def step() -> None:
        optimizers[replica()].apply_gradients([(np.ones(2), program.a)])

    with pytest.raises(ValueError, match=r"(?s)different optimizers.*0\.1.*0\.2"):
        strategy.run(step)
    equal = [wl.optimizers.SGD(0.1), wl.optimizers.SGD(0.1)]
    strategy.run(lambda: equal[replica()].apply_gradients([(np.ones(2), program.a)]))
    np.testing.assert_allclose(program.a.numpy(), -0.2)  # two ones, summed, at 0.1


def test_functions_made_by_the_same_line_on_each_replica_are_the_same(replicas: Replicas) -> None:
    """Each replica makes a closure, a partial and a bound method of its own."""
    strategy = replicas(2)

    class Adder:
        def __init__(self, number: int) -> None:
            self.number = number

        def add(self, _: Strategy, values: PerReplica) -> int:
            return int(sum(values.values)) + self.number

    def add(number: int, _: Strategy, values: PerReplica) -> int:
        return int(sum(values.values)) + number

    def step() -> tuple[int, int, int]:
        merge, mine = context().merge_call, replica()
        return (
            merge(lambda _, v: sum(v.values) + (mine >= 0), (mine,)),
            merge(partial(add, 1), (mine,)),
            merge(Adder(1).add, (mine,)),
        )

    assert strategy.run(step) == (2, 2, 2)


# -- under load ------------------------------------------------------------------------------


@pytest.mark.parametrize("switch_s", [0.005, 1e-5], ids=["usual", "threads-switch-all-the-time"])
def test_thousands_of_short_steps_with_merges_all_give_their_result(
    replicas: Replicas, switch_s: float
) -> None:
    strategy = replicas(4)

    def step(merges: int, number: int) -> int:
        total = number + replica()
        for _ in range(merges):
            # From the second on all give the very same number, so it is not distributed.
            total = context().merge_call(
                lambda _, v: sum(v.values) if isinstance(v, PerReplica) else 4 * v, (total,)
            )
        return total

    before = sys.getswitchinterval()
    sys.setswitchinterval(switch_s)
    try:
        for number in range(3000):
            merges = number % 4
            result = strategy.run(step, args=(merges, number))
            if merges:
                # The first merge adds up 0+1+2+3 and four times the number, later ones four equal
                # totals.
                assert result == (4 * number + 6) * 4 ** (merges - 1)
            else:
                assert result.values == (number, number + 1, number + 2, number + 3)
    finally:
        sys.setswitchinterval(before)


def test_failures_between_thousands_of_steps_do_not_spoil_the_next(replicas: Replicas) -> None:
    strategy = replicas(3)

    def step(failing: int) -> int:
        if replica() == failing:
            raise KeyError(failing)
        return int(context().merge_call(lambda _, v: sum(v.values), (replica(),)))

    for number in range(1000):
        failing = number % 4
        if failing < 3:
            with pytest.raises(KeyError):
                strategy.run(step, args=(failing,))
        else:
            assert strategy.run(step, args=(failing,)) == 3


# -- what is left ----------------------------------------------------------------------------


class Batch:
    """Something large that a step uses."""


@pytest.mark.parametrize(
    "end", ["well", "in-the-first", "in-the-last", "in-a-merge", "disagreeing"]
)
def test_what_a_step_used_is_freed_when_it_is_over(
    replicas: Replicas, end: str, wait_until: Callable[..., None]
) -> None:
    """Not at the next step, and not when the garbage collector finds the time."""
    strategy = replicas(3)
    strategy.run(replica)

    def merge(_: Strategy, batch: Batch) -> Batch:
        if end == "in-a-merge":
            raise KeyError
        return batch

    def step(batch: Batch) -> Batch | None:
        if (end == "in-the-first" and replica() == 0) or (end == "in-the-last" and replica() == 2):
            raise KeyError
        if end == "disagreeing" and replica() == 1:
            return batch
        result: Batch = context().merge_call(merge, (batch,))
        return result

    gc.collect()
    gc.disable()
    try:
        batch = Batch()
        freed = weakref.ref(batch)
        if end == "well":
            assert strategy.run(step, args=(batch,)) is batch
        else:
            with pytest.raises((KeyError, RuntimeError)):
                strategy.run(step, args=(batch,))
        del batch
        # A thread that was not awake in time drops its part when it is.
        wait_until(lambda: freed() is None, 5, "the batch to be freed")
    finally:
        gc.enable()


def test_results_may_be_kept_beyond_the_strategy(
    replicas: Replicas, wait_until: Callable[..., None]
) -> None:
    strategy = replicas(2)
    kept = strategy.run(lambda: np.full(2, replica()))
    gone = weakref.ref(strategy)
    del strategy
    # Steps that a thread was not awake for are dropped when it is.
    wait_until(lambda: gc.collect() >= 0 and gone() is None, 5, "the strategy to be freed")
    np.testing.assert_array_equal(kept.values, [[0, 0], [1, 1]])
