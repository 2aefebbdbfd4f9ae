"""How replicas are run: together when they need each other, without deadlock, leaving nothing."""

import contextvars
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.local_strategies import CPUS
from helpers.replicas import barrier_of, context, mirrored, replica
from ropewalk.distribute import (
    PerReplica,
    Strategy,
)

pytestmark = pytest.mark.timeout(30)


def nothing(*_: Any) -> None:
    """A merge that does nothing."""


# -- who runs what ---------------------------------------------------------------------------


def test_a_programs_own_barrier_between_replicas_works_again_and_again() -> None:
    """All replicas run at the same time, in every one of many steps, several times in each."""
    strategy = mirrored(3)
    barrier = threading.Barrier(3)

    def step(number: int) -> int:
        for _ in range(3):
            barrier.wait(5)
        return number + replica()

    for number in range(100):
        assert strategy.run(step, args=(number,)).values == (number, number + 1, number + 2)


def test_a_barrier_of_all_but_the_first_replica_works() -> None:
    """The caller is through at once, takes on another replica, and that waits for the third."""
    strategy = mirrored(3)
    barrier = threading.Barrier(2)

    def step() -> int:
        if replica():
            barrier.wait(5)
        return replica()

    for _ in range(100):
        assert strategy.run(step).values == (0, 1, 2)


def test_the_first_replica_runs_in_the_callers_thread() -> None:
    strategy = mirrored(3)
    together = threading.Barrier(3)

    def step() -> int:
        together.wait(5)
        return threading.get_ident()

    threads = strategy.run(step).values
    assert threads[0] == threading.get_ident()
    assert len(set(threads)) == 3


def test_a_step_shorter_than_waking_a_thread_is_done_by_the_caller(asleep: None) -> None:
    strategy = mirrored(3)
    order: list[int] = []

    def step(x: int) -> tuple[int, int, str]:
        order.append(replica())
        return x * 10, threading.get_ident(), context().devices[0]

    tens, thread, devices = strategy.run(step, args=(PerReplica([1, 2, 3]),))
    assert tens.values == (10, 20, 30)
    assert set(strategy.experimental_local_results(thread)) == {threading.get_ident()}
    assert devices.values == CPUS[:3]
    assert order == [0, 1, 2]


def test_two_threads_may_run_steps_of_one_strategy_in_turn() -> None:
    strategy = mirrored(2)
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
    by: str, request: pytest.FixtureRequest
) -> None:
    strategy = mirrored(3)
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


def test_numpys_error_state_holds_in_the_replicas() -> None:
    strategy = mirrored(2)
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
    failing: int, others: str, wait_until: Callable[..., None]
) -> None:
    strategy = mirrored(3)
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


def test_of_several_failures_one_is_raised_and_the_next_step_works() -> None:
    strategy = mirrored(3)
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
def test_what_ends_a_program_is_raised_as_it_is(failing: int, error: type[BaseException]) -> None:
    strategy = mirrored(2)
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
def test_a_failing_merge_unwinds_all_replicas(error: type[BaseException]) -> None:
    strategy = mirrored(3)
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


def test_replicas_results_of_different_structure_are_an_error_and_the_next_step_works() -> None:
    strategy = mirrored(2)
    with pytest.raises(ValueError, match=r"(?i)expected|mismatch"):
        strategy.run(lambda: (1,) * (1 + replica()))
    assert strategy.run(replica).values == (0, 1)


@pytest.mark.parametrize("merges", [0, 1, 3])
def test_replicas_that_take_turns_run_one_at_a_time_from_merge_to_merge(merges: int) -> None:
    strategy = mirrored(3)
    strategy.extended.run_in_turns()
    running: list[int] = []
    most: list[int] = []

    def work() -> None:
        running.append(1)
        time.sleep(0.002)
        most.append(len(running))
        running.pop()

    def step() -> int:
        work()
        for _ in range(merges):
            context().merge_call(nothing)
            work()
        return replica()

    for _ in range(20):
        assert strategy.run(step).values == (0, 1, 2)
    assert set(most) == {1}


def test_a_failing_replica_that_has_the_turn_unwinds_the_others() -> None:
    strategy = mirrored(3)
    strategy.extended.run_in_turns()

    def step() -> None:
        if replica() == 1:
            raise ValueError("mine")
        context().merge_call(nothing)

    for _ in range(20):
        with pytest.raises(ValueError, match="mine"):
            strategy.run(step)


# -- under load ------------------------------------------------------------------------------


@pytest.mark.parametrize("switch_s", [0.005, 1e-5], ids=["usual", "threads-switch-all-the-time"])
def test_a_thousand_short_steps_with_merges_all_give_their_result(switch_s: float) -> None:
    strategy = mirrored(4)

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
        for number in range(1000):
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


def test_failures_between_thousands_of_steps_do_not_spoil_the_next() -> None:
    strategy = mirrored(3)

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
    end: str, wait_until: Callable[..., None]
) -> None:
    """Not at the next step, and not when the garbage collector finds the time."""
    strategy = mirrored(3)
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


def test_results_may_be_kept_beyond_the_strategy(wait_until: Callable[..., None]) -> None:
    strategy = mirrored(2)
    kept = strategy.run(lambda: np.full(2, replica()))
    gone = weakref.ref(strategy)
    del strategy
    # Steps that a thread was not awake for are dropped when it is.
    wait_until(lambda: gc.collect() >= 0 and gone() is None, 5, "the strategy to be freed")
    np.testing.assert_array_equal(kept.values, [[0, 0], [1, 1]])
