"""Which strategy is current, and on which side of it we are: section 1 of tf.distribute."""

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.local_strategies import where
from helpers.replicas import context
from ropewalk.distribute import (
    CentralStorageStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    ReplicaContext,
    Strategy,
)
from ropewalk.distribute.strategies.default import the_default_strategy

Where = tuple[Strategy, int | None, bool]
"""(strategy, replica id or None, in cross-replica context)."""


@pytest.fixture(
    params=[
        Strategy,
        partial(OneDeviceStrategy, "/cpu:0"),
        MirroredStrategy,
        CentralStorageStrategy,
        ParameterServerStrategy,
    ],
    ids=["Strategy", "OneDevice", "Mirrored", "CentralStorage", "ParameterServer"],
)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    made: Strategy = request.param()
    return made


def test_outside_everything_the_default_strategy_is_current_in_replica_0() -> None:
    assert where() == (the_default_strategy(), 0, False)
    assert not rw.distribute.has_strategy()


def test_in_a_scope_its_strategy_is_current_in_cross_replica_context(strategy: Strategy) -> None:
    with strategy.scope() as entered:
        assert entered is strategy
        assert where() == (strategy, None, True)
        assert rw.distribute.has_strategy()
    assert where() == (the_default_strategy(), 0, False)


@pytest.mark.parametrize("in_scope", [False, True], ids=["no-scope", "in-scope"])
def test_in_run_the_replica_is_current_with_or_without_a_scope(
    strategy: Strategy, in_scope: bool
) -> None:
    if in_scope:
        with strategy.scope():
            assert strategy.run(where) == (strategy, 0, False)
            assert where() == (strategy, None, True)
    else:
        assert strategy.run(where) == (strategy, 0, False)
        assert where() == (the_default_strategy(), 0, False)


def test_in_merge_call_it_is_cross_replica_and_afterwards_the_replica_again(
    strategy: Strategy,
) -> None:
    def step() -> tuple[Where, Where]:
        inside = context().merge_call(lambda given: (given is strategy, where()))
        assert inside[0], "merge functions are given the strategy"
        return inside[1], where()

    assert strategy.run(step) == ((strategy, None, True), (strategy, 0, False))


def test_the_scope_of_the_default_strategy_changes_nothing() -> None:
    with the_default_strategy().scope() as entered:
        assert entered is the_default_strategy()
        assert where() == (the_default_strategy(), 0, False)


def test_the_default_strategy_runs_and_merges_too() -> None:
    default = the_default_strategy()
    assert default.run(where) == (default, 0, False)
    merged = context().merge_call(lambda given, x: (given, x, where()), (3,))
    assert merged == (default, 3, (default, None, True))


def test_one_scope_object_may_be_entered_again(strategy: Strategy) -> None:
    scope = strategy.scope()
    for _ in range(2):
        with scope, scope:
            assert where() == (strategy, None, True)
    assert where() == (the_default_strategy(), 0, False)


def test_another_strategys_scope_inside_a_scope_is_mixing(strategy: Strategy) -> None:
    with strategy.scope():
        with pytest.raises(RuntimeError, match="Mixing different"):
            Strategy().scope().__enter__()
        assert where() == (strategy, None, True)


def test_what_a_strategy_does_is_mixing_in_the_scope_of_another(strategy: Strategy) -> None:
    with strategy.scope():
        variable = rw.Variable(np.zeros(2, np.float32), name="w")
    data = rw.data.from_arrays(np.arange(4), batch_size=2)
    iterator = iter(strategy.experimental_distribute_dataset(data))
    calls: dict[str, Callable[[], Any]] = {
        "run": lambda: strategy.run(lambda: None),
        "next": lambda: next(iterator),
        "update": lambda: strategy.extended.update(variable, lambda component: component),
    }
    with Strategy().scope():
        for call in calls.values():
            with pytest.raises(RuntimeError, match="Mixing different"):
                call()
        assert iterator.get_next_as_optional().has_value()
    for call in calls.values():
        call()


def test_a_scope_that_was_not_entered_is_not_left(strategy: Strategy) -> None:
    with pytest.raises(RuntimeError, match="left that was not entered"):
        strategy.scope().__exit__(None, None, None)


def test_the_default_strategys_scope_inside_another_is_nesting(strategy: Strategy) -> None:
    with strategy.scope(), pytest.raises(RuntimeError, match="Must not nest"):
        the_default_strategy().scope().__enter__()


def test_own_scope_inside_run_is_refused(strategy: Strategy) -> None:
    def step() -> None:
        with pytest.raises(RuntimeError, match="cross-replica context"):
            strategy.scope().__enter__()
        with pytest.raises(RuntimeError, match="Mixing"):
            Strategy().scope().__enter__()

    strategy.run(step)


def test_run_inside_run_is_refused(strategy: Strategy) -> None:
    def step() -> None:
        for other in (strategy, Strategy()):
            with pytest.raises(RuntimeError, match=r"strategy\.run inside strategy\.run"):
                other.run(where)
        with pytest.raises(RuntimeError, match="cross-replica context"):
            strategy.extended.call_for_each_replica(where)

    strategy.run(step)


def test_run_in_a_merge_of_run_is_refused_and_does_not_wait_for_itself(strategy: Strategy) -> None:
    def merge(given: Strategy) -> None:
        with pytest.raises(RuntimeError, match=r"strategy\.run inside merge_call"):
            given.run(where)
        assert where() == (strategy, None, True)

    strategy.run(lambda: context().merge_call(merge))
    assert strategy.run(where) == (strategy, 0, False)


def test_a_scope_that_a_merge_leaves_open_is_an_error(strategy: Strategy) -> None:
    def merge(given: Strategy) -> None:
        given.scope().__enter__()

    with pytest.raises(RuntimeError, match="another order"):
        strategy.run(lambda: context().merge_call(merge))
    assert where() == (the_default_strategy(), 0, False)
    assert strategy.run(where) == (strategy, 0, False)


def test_inside_the_default_strategys_run_a_strategy_is_used_as_outside(strategy: Strategy) -> None:
    def program() -> tuple[bool, bool]:
        with strategy.scope():
            inside = rw.distribute.get_strategy() is strategy
        return inside, strategy.run(lambda: rw.distribute.get_strategy() is strategy)

    default = the_default_strategy()
    assert default.run(program) == (True, True)
    with pytest.raises(RuntimeError, match=r"run inside strategy\.run"):
        default.run(lambda: default.run(lambda: None))


def test_scopes_left_in_another_order_are_an_error(strategy: Strategy) -> None:
    def leave_wrong() -> None:
        outer, inner = strategy.scope(), strategy.scope()
        outer.__enter__()
        inner.__enter__()
        with pytest.raises(RuntimeError, match="another order"):
            outer.__exit__(None, None, None)
        assert where() == (the_default_strategy(), 0, False), "the inner one was left with it"
        with pytest.raises(RuntimeError, match="another order"):
            inner.__exit__(None, None, None)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(leave_wrong).result(5)


def test_a_scope_left_by_an_error_is_left(strategy: Strategy) -> None:
    with pytest.raises(KeyError), strategy.scope():
        raise KeyError("mine")
    assert where() == (the_default_strategy(), 0, False)


def test_a_run_left_by_an_error_is_left(strategy: Strategy) -> None:
    def step() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        strategy.run(step)
    assert where() == (the_default_strategy(), 0, False)
    assert strategy.run(where) == (strategy, 0, False)


def test_contexts_belong_to_their_thread(strategy: Strategy) -> None:
    with strategy.scope(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(where).result(5) == (the_default_strategy(), 0, False)


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_a_strategy_cannot_be_copied(strategy: Strategy, copier: Callable[[Any], Any]) -> None:
    with pytest.raises(RuntimeError, match="copy"):
        copier(strategy)


def test_the_default_strategy_may_be_deep_copied_and_stays_the_one() -> None:
    assert copy.deepcopy({"s": the_default_strategy()})["s"] is the_default_strategy()


def test_a_strategy_may_be_set_for_good_and_cleared(strategy: Strategy) -> None:
    rw.distribute.experimental_set_strategy(strategy)
    assert where() == (strategy, None, True)
    assert rw.distribute.has_strategy()
    assert rw.Variable([1.0], name="w").strategy is strategy
    with strategy.scope():
        assert where() == (strategy, None, True)
    rw.distribute.experimental_set_strategy(None)
    assert where() == (the_default_strategy(), 0, False)


def test_another_scope_while_a_strategy_is_set_is_mixing(strategy: Strategy) -> None:
    rw.distribute.experimental_set_strategy(strategy)
    with pytest.raises(RuntimeError, match="Mixing"):
        Strategy().scope().__enter__()


def test_setting_the_default_strategy_clears(strategy: Strategy) -> None:
    rw.distribute.experimental_set_strategy(strategy)
    rw.distribute.experimental_set_strategy(the_default_strategy())
    assert not rw.distribute.has_strategy()


def test_a_strategy_is_not_set_inside_a_scope_or_run(strategy: Strategy) -> None:
    def attempt() -> None:
        with pytest.raises(RuntimeError, match="Must not be called inside"):
            rw.distribute.experimental_set_strategy(None)

    with strategy.scope():
        attempt()
    strategy.run(attempt)


@pytest.mark.parametrize("count", [1, 2], ids=["one-replica", "two-replicas"])
@pytest.mark.timeout(20)
def test_a_context_kept_beyond_its_run_is_stale(count: int) -> None:
    """Neither an answer from a step that is over, nor a wait for replicas that have left."""
    rw.config.set_logical_cpu_devices(count)
    strategy = ParameterServerStrategy()
    kept: list[ReplicaContext] = []
    strategy.run(lambda: kept.append(context()))
    outcomes: list[BaseException | str] = []

    def use() -> None:
        try:
            kept[0].merge_call(lambda _: None)
        except RuntimeError as error:
            outcomes.append(error)
        else:
            outcomes.append("answered")

    # A daemon: should it wait for ever, only this test fails.
    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(3)
    assert not thread.is_alive(), "it waits for replicas that have left"
    assert isinstance(outcomes[0], RuntimeError)


def test_all_reduce_of_a_context_that_is_not_current_is_refused(strategy: Strategy) -> None:
    kept = strategy.run(context)
    with pytest.raises(RuntimeError, match="not current"):
        kept.all_reduce("SUM", 1.0)
    with strategy.scope(), pytest.raises(RuntimeError, match="not current"):
        kept.merge_call(lambda _: None)
