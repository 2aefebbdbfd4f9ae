"""Whatever the network does, every block gets every push once.

A state machine drives one store as several workers would over bad connections, and compares it with
sums of small integers, exact in every dtype. In this store the block of a variable is told by its
dtype: small shards of one dtype share one.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers.pushes import push_of
from ropewalk.core.errors import FencedError, SequenceError
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import Encoding, LayoutEntry, Operation, PushResult
from ropewalk.engine.push_target import StepInfo
from ropewalk.server.ps.layout import compile_layout
from ropewalk.server.ps.store import Store

DTYPES = {"a": "f4", "b": "f4", "table": "f4", "x": "f8", "y": "f8", "h": "f2", "i": "i4"}
FLOATS = [name for name, dtype in DTYPES.items() if dtype != "i4"]
SHAPES = {name: (4, 2) if name == "table" else (3,) for name in DTYPES}
ROWS = np.array([1, 3])  # of the table; the others stay zero

Item = tuple[str, int, bool]
"""Variable, amount, and whether SGD subtracts it or assign_add adds it."""


class BrokenConnectionError(Exception):
    """The stream ended."""


def make_store() -> Store:
    store = Store(TaskId("ps", 0), Settings())
    who = Incarnation(TaskId("chief", 0), 1)
    definitions = [VariableDefinition(n, SHAPES[n], np.dtype(d)) for n, d in DTYPES.items()]
    store.table.define([ShardDefinition(definition) for definition in definitions], who)
    store.table.bind(FLOATS, SGD(learning_rate=1.0), who)
    return store


class Sender:
    """One push, and how it can be sent."""

    def __init__(self, store: Store, items: list[Item]) -> None:
        self.store = store
        self.items = [(n, amount, apply and n in FLOATS) for n, amount, apply in items]
        entries, pieces = [], []
        for name, amount, apply in self.items:
            operation = Operation.APPLY if apply else Operation.ASSIGN_ADD
            entries.append(
                LayoutEntry(
                    name,
                    0,
                    operation,
                    encoding=Encoding.ROWS if name == "table" else Encoding.DENSE,
                )
            )
            size = 4 if name == "table" else 3
            pieces.append(np.full(size, amount, DTYPES[name]).tobytes())
        self.layout = compile_layout(store.table, entries)
        self.payload = b"".join(pieces)
        self.rows = (ROWS,) * len(self.layout.numbered)

    def send(
        self, who: Incarnation, sequence: int, at_fetch: Callable[[int], None] = lambda _: None
    ) -> PushResult:
        """Push; ``at_fetch(n)`` is called before the n-th piece arrives, from 0."""
        position = count = 0

        def fetch(size: int) -> memoryview:
            nonlocal position, count
            at_fetch(count)
            count += 1
            position += size
            return memoryview(self.payload)[position - size : position]

        info = StepInfo(who, sequence, 0)
        return self.store.push(push_of(self.layout, self.rows, info, 1), fetch)

    def blocks_after(self, pieces: int) -> set[str]:
        """Dtypes of the blocks that are complete once so many pieces have arrived."""
        dtypes = [part.block.dtype.str[1:] for part in self.layout.ranges]
        return set(dtypes[:pieces]) - set(dtypes[pieces:])


def read(store: Store) -> dict[str, list[float]]:
    names = list(DTYPES)
    layouts = [
        compile_layout(store.table, [LayoutEntry(name, 0, Operation.PULL)]) for name in names
    ]
    copies = [store.read(layout, ())[0] for layout in layouts]
    return {n: copy.astype(float).tolist() for n, copy in zip(names, copies, strict=True)}


class Expected:
    """Sums of the pushes, block by block."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(DTYPES, 0.0)

    def add(self, push: Sender, blocks: set[str]) -> None:
        for name, amount, apply in push.items:
            if DTYPES[name] in blocks:
                self.totals[name] += -amount if apply else amount

    def check(self, store: Store) -> None:
        expected = {name: [total] * 3 for name, total in self.totals.items()}
        total = self.totals["table"]
        expected["table"] = [0, 0, total, total, 0, 0, total, total]
        assert read(store) == expected


@dataclass
class Worker:
    task: TaskId
    generation: int = 1
    done: list[Sender] = field(default_factory=list)
    pending: Sender | None = None
    arrived: set[str] = field(default_factory=set)

    @property
    def who(self) -> Incarnation:
        return Incarnation(self.task, self.generation)


ALL = set(DTYPES.values())
items = st.lists(
    st.tuples(st.sampled_from(list(DTYPES)), st.integers(1, 3), st.booleans()),
    min_size=1,
    max_size=8,
)
workers = st.integers(0, 2)


class BadNetwork(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.store = make_store()
        self.workers = [Worker(TaskId("worker", index)) for index in range(3)]
        self.expected = Expected()
        self.steps = 0

    def _next(self, index: int, plan: list[Item]) -> tuple[Worker, Sender, int]:
        """The worker's next push: the one that broke off before, or a new one."""
        worker = self.workers[index]
        worker.pending = worker.pending or Sender(self.store, plan)
        return worker, worker.pending, len(worker.done) + 1

    def _complete(self, worker: Worker, push: Sender) -> None:
        self.expected.add(push, ALL - worker.arrived)
        worker.done.append(push)
        worker.pending, worker.arrived = None, set()
        self.steps += 1

    @rule(index=workers, plan=items)
    def a_push_arrives(self, index: int, plan: list[Item]) -> None:
        worker, push, sequence = self._next(index, plan)
        assert not push.send(worker.who, sequence).duplicate
        self._complete(worker, push)

    @rule(index=workers, plan=items, at=st.integers(0, 7))
    def a_push_breaks_off(self, index: int, plan: list[Item], at: int) -> None:
        worker, push, sequence = self._next(index, plan)
        at = min(at, len(push.layout.ranges) - 1)

        def break_off(piece: int) -> None:
            if piece == at:
                raise BrokenConnectionError

        with pytest.raises(BrokenConnectionError):
            push.send(worker.who, sequence, break_off)
        arrived = push.blocks_after(at)
        self.expected.add(push, arrived - worker.arrived)
        worker.arrived |= arrived

    @rule(index=workers, plan=items, at=st.integers(0, 7))
    def a_push_is_overtaken_by_its_retry(self, index: int, plan: list[Item], at: int) -> None:
        worker, push, sequence = self._next(index, plan)
        at = min(at, len(push.layout.ranges) - 1)
        retries: list[PushResult] = []

        def overtake(piece: int) -> None:
            if piece == at:
                retries.append(push.send(worker.who, sequence))

        late = push.send(worker.who, sequence, overtake)
        assert [late.duplicate, retries[0].duplicate] == [True, False]
        self._complete(worker, push)

    @rule(index=workers, back=st.integers(1, 5))
    def an_old_push_comes_again(self, index: int, back: int) -> None:
        worker = self.workers[index]
        sequence = len(worker.done) + 1 - back
        if sequence >= 1:
            assert worker.done[sequence - 1].send(worker.who, sequence).duplicate

    @rule(index=workers, plan=items, ahead=st.integers(2, 4))
    def a_push_comes_too_early(self, index: int, plan: list[Item], ahead: int) -> None:
        worker = self.workers[index]
        with pytest.raises(SequenceError):
            Sender(self.store, plan).send(worker.who, len(worker.done) + ahead)

    @rule(index=workers)
    def a_worker_restarts(self, index: int) -> None:
        worker = self.workers[index]
        worker.generation += 1
        worker.done, worker.pending, worker.arrived = [], None, set()
        self.store.register_incarnation(worker.who)

    @rule(index=workers, plan=items, sequence=st.integers(1, 6))
    def an_earlier_life_still_pushes(self, index: int, plan: list[Item], sequence: int) -> None:
        worker = self.workers[index]
        if worker.generation > 1:
            with pytest.raises(FencedError):
                Sender(self.store, plan).send(Incarnation(worker.task, 1), sequence)

    @invariant()
    def every_block_has_every_push_once(self) -> None:
        self.expected.check(self.store)
        assert self.store.global_step == self.steps
        assert self.store.counters().pushes == self.steps


TestBadNetwork = BadNetwork.TestCase
TestBadNetwork.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


PLAN: list[Item] = [
    ("a", 1, False),
    ("x", 1, True),
    ("b", 2, True),
    ("h", 1, False),
    ("i", 3, False),
]
OLD, NEW = (Incarnation(TaskId("worker", 0), generation) for generation in (1, 2))
pieces = pytest.mark.parametrize("at", range(5))


@pieces
def test_a_push_overtaken_by_a_new_generation_ends_fenced(at: int) -> None:
    """It was being read when its task came back from a restart."""
    store = make_store()
    push = Sender(store, PLAN)

    def restart(piece: int) -> None:
        if piece == at:
            store.register_incarnation(NEW)

    with pytest.raises(FencedError):
        push.send(OLD, 1, restart)


@pieces
def test_what_a_new_generation_pushed_is_not_overwritten_by_the_rest_of_an_old_push(
    at: int,
) -> None:
    store = make_store()
    push, expected = Sender(store, PLAN), Expected()
    expected.add(push, push.blocks_after(at))
    expected.add(push, ALL)

    def restart(piece: int) -> None:
        if piece == at:
            assert not push.send(NEW, 1).duplicate

    with suppress(FencedError):
        push.send(OLD, 1, restart)
    expected.check(store)


@pieces
def test_a_new_generations_retry_applies_once_though_an_old_push_came_between(at: int) -> None:
    """Old push half read; the new generation's first push breaks off; the old one goes on; then the
    retry.
    """
    store = make_store()
    push, expected = Sender(store, PLAN), Expected()

    def break_off(piece: int) -> None:
        if piece == at:
            raise BrokenConnectionError

    def restart(piece: int) -> None:
        if piece == 0:
            with pytest.raises(BrokenConnectionError):
                push.send(NEW, 1, break_off)

    with suppress(FencedError):
        push.send(OLD, 1, restart)
    assert not push.send(NEW, 1).duplicate
    # Where the new generation had been, the old one must have stayed out; elsewhere it may have
    # been first.
    guarded = push.blocks_after(at)
    expected.add(push, guarded)
    got = {name: values[-1] for name, values in read(store).items() if DTYPES[name] in guarded}
    assert got == {name: expected.totals[name] for name in got}
