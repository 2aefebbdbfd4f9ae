"""Whatever runs of a closure do, every push of it is applied once, and none when it is over.

A state machine drives one store as workers would that run closures, lose them and repeat them over
bad connections. A closure pushes the same in each attempt, as one does that is run again.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from helpers.pushes import push_of
from ropewalk.core.arrays.dtypes import as_bytes
from ropewalk.core.errors import FencedError, LimitExceededError, SequenceError
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.closure_pushes import ClosureRun
from ropewalk.core.wire.steps import LayoutEntry, Operation, PushResult
from ropewalk.engine.push_target import StepInfo
from ropewalk.server.ps.layout import compile_layout
from ropewalk.server.ps.store import Store

BLOCKS = {"a": "f4", "b": "f8", "c": "i4"}  # one each: small shards of a dtype share one
PUSHES = 3  # of a closure
LANES = 2


class BrokenConnectionError(Exception):
    """The stream ended."""


def make_store() -> Store:
    store = Store(TaskId("ps", 0), Settings())
    definitions = [VariableDefinition(n, (2,), np.dtype(d)) for n, d in BLOCKS.items()]
    who = Incarnation(TaskId("chief", 0), 1)
    store.table.define([ShardDefinition(each) for each in definitions], who)
    push(store, who, 1, operation=Operation.ASSIGN, amount=0)
    return store


def push(
    store: Store,
    who: Incarnation,
    sequence: int,
    closure: ClosureRun | None = None,
    *,
    operation: Operation = Operation.ASSIGN_ADD,
    amount: int = 1,
    breaks_at: int = -1,
) -> PushResult:
    """Add 1 to every block; the stream may end before the block with number ``breaks_at``."""
    entries = [LayoutEntry(name, 0, operation) for name in BLOCKS]
    layout = compile_layout(store.table, entries)
    given = iter(range(len(BLOCKS)))

    def fetch(size: int) -> memoryview:
        number = next(given)
        if number == breaks_at:
            raise BrokenConnectionError
        dtype = layout.ranges[number].dtype
        return as_bytes(np.full(size // dtype.itemsize, amount, dtype))

    info = StepInfo(who, sequence, 0, closure=closure)
    return store.push(push_of(layout, (), info, 1), fetch)


def values(store: Store) -> list[float]:
    layout = compile_layout(store.table, [LayoutEntry(name, 0, Operation.PULL) for name in BLOCKS])
    return [float(part[0]) for part in store.read(layout, ())]


@dataclass
class Attempt:
    run: ClosureRun
    worker: int
    pushed: int = 0  # as far as it knows


@dataclass
class Closure:
    attempts: list[Attempt] = field(default_factory=list)
    applied: list[int] = field(default_factory=lambda: [0] * len(BLOCKS))  # per block


lanes = st.integers(0, LANES - 1)


class Reruns(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.store = make_store()
        self.turn = 0
        self.coordinator = 7
        self.open: dict[int, Closure] = {}
        self.over: list[Attempt] = []
        self.totals = [0] * len(BLOCKS)
        self.steps = self.store.global_step
        self.counted: dict[int, int] = {}
        self.ordinary = 0

    def worker(self, number: int) -> Incarnation:
        return Incarnation(TaskId("worker", number), 1)

    @rule(lane=lanes, worker=st.integers(0, 2))
    def a_closure_is_begun(self, lane: int, worker: int) -> None:
        if lane in self.open:
            return
        self.turn += 1
        run = ClosureRun(self.coordinator, lane, self.turn)
        self.open[lane] = Closure([Attempt(run, worker)])
        self.counted[lane] = 0

    @rule(lane=lanes, worker=st.integers(0, 2), copy=st.booleans())
    def it_is_run_again(self, lane: int, worker: int, copy: bool) -> None:
        if lane not in self.open:
            return
        last = self.open[lane].attempts[-1].run
        number = last.attempt + 1
        oldest = last.oldest_attempt if copy else number
        again = replace(last, attempt=number, oldest_attempt=oldest)
        self.open[lane].attempts.append(Attempt(again, worker))

    @rule(lane=lanes, data=st.data(), breaks_at=st.integers(-1, len(BLOCKS) - 1))
    def an_attempt_pushes(self, lane: int, data: st.DataObject, breaks_at: int) -> None:
        if lane not in self.open:
            return
        closure = self.open[lane]
        attempt = data.draw(st.sampled_from(closure.attempts))
        if attempt.pushed == PUSHES:
            return
        number = attempt.pushed + 1
        pushed = [each.run.oldest_attempt for each in closure.attempts if each.pushed]
        try:
            result = push(
                self.store, self.worker(attempt.worker), number, attempt.run, breaks_at=breaks_at
            )
        except FencedError:
            assert attempt.run.attempt < max(each.run.oldest_attempt for each in closure.attempts)
            return
        except BrokenConnectionError:
            reached = range(breaks_at)
        else:
            assert attempt.run.attempt >= max(pushed, default=0), "it was given up, and has pushed"
            assert result.duplicate == (number <= self.counted[lane])
            if not result.duplicate:
                self.counted[lane], self.steps = number, self.steps + 1
            attempt.pushed = number
            reached = range(len(BLOCKS))
        for block in reached:
            if closure.applied[block] < number:
                closure.applied[block] = number
                self.totals[block] += 1

    @rule(lane=lanes)
    def it_is_over(self, lane: int) -> None:
        closure = self.open.pop(lane, None)
        if closure is not None:
            self.over += closure.attempts

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def one_that_is_over_still_pushes(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.over))
        closure = self.open.get(attempt.run.lane)
        if closure is None or not any(each.pushed for each in closure.attempts):
            return  # nobody has told the ps yet: its own numbers are duplicates
        with pytest.raises(FencedError):
            push(self.store, self.worker(attempt.worker), attempt.pushed + 1, attempt.run)

    @rule(worker=st.integers(0, 2))
    def the_coordinator_restarts(self, worker: int) -> None:
        self.coordinator += 1
        for closure in self.open.values():
            self.over += closure.attempts
        self.open, self.turn = {}, 0
        self.a_closure_is_begun(0, worker)

    @rule()
    def a_worker_pushes_beside_closures(self) -> None:
        self.ordinary += 1
        assert not push(self.store, self.worker(9), self.ordinary).duplicate
        self.totals = [total + 1 for total in self.totals]
        self.steps += 1

    @invariant()
    def every_push_is_applied_once(self) -> None:
        assert values(self.store) == self.totals
        assert self.store.global_step == self.steps


TestReruns = Reruns.TestCase
TestReruns.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)

WHO = Incarnation(TaskId("worker", 0), 1)


def test_a_gap_is_refused() -> None:
    with pytest.raises(SequenceError, match="send that one first"):
        push(make_store(), WHO, 2, ClosureRun(1, 0, 1))


def test_lanes_are_bounded() -> None:
    store = make_store()
    with pytest.raises(LimitExceededError, match="ROPEWALK_MAX_SESSIONS"):
        push(store, WHO, 1, ClosureRun(1, 4 * store.settings.max_sessions, 1))


def test_an_attempt_that_was_overtaken_in_the_middle_of_a_push_applies_nothing_twice() -> None:
    store = make_store()
    first = ClosureRun(1, 0, 1)
    second = replace(first, attempt=2, oldest_attempt=2)
    with pytest.raises(BrokenConnectionError):
        push(store, WHO, 1, first, breaks_at=1)
    assert values(store) == [1, 0, 0]
    other = Incarnation(TaskId("worker", 1), 1)
    assert not push(store, other, 1, second).duplicate
    assert values(store) == [1, 1, 1]
    with pytest.raises(FencedError, match="runs elsewhere"):
        push(store, WHO, 1, first)
    assert push(store, other, 1, second).duplicate
    assert values(store) == [1, 1, 1]
