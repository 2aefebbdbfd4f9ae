"""A store announces its changes to those who have subscribed, and knows none of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from helpers.calls import Calls
from helpers.pushes import push_of
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import LayoutEntry, Operation
from ropewalk.engine.push_target import PushTarget, StepInfo
from ropewalk.server.ps.change_stream import BlockChange, Push, Subscriber
from ropewalk.server.ps.layout import compile_layout
from ropewalk.server.ps.store import Store

WHO = Incarnation(TaskId("worker", 0), 1)
LARGE = 256 * 1024  # elements: it has a block of its own
SIZES = {"small": 3, "large": LARGE}


class Noted(Subscriber):
    """Notes what it hears, with the first value of the block."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.heard: list[Any] = []
        self.refuses = False

    def arrives(self, who: Incarnation) -> None:
        self.heard.append(who)

    def before(self, change: BlockChange) -> None:
        assert change.block.lock.locked()
        self.heard.append(("before", self._value(change), change.is_last))
        if self.refuses:
            raise ValueError("refused")

    def done(self, change: BlockChange) -> None:
        assert change.block.lock.locked()
        self.heard.append(("done", self._value(change), change.is_last))

    def failed(self, change: BlockChange, error: BaseException) -> None:
        self.heard.append(("failed", self._value(change), type(error)))

    def complete(self, push: Push) -> None:
        self.heard.append(("complete", push.sequence, push.step_increment))

    def has_all(self, blocks: Sequence[PushTarget]) -> bool:
        return len(self.heard) > 1

    def defined(self, blocks: Sequence[PushTarget], held: Sequence[Any]) -> None:
        self.heard.append(("defined", len(blocks), len(held)))

    def interrupted(self, why: str) -> None:
        self.heard.append(why)

    @staticmethod
    def _value(change: BlockChange) -> float:
        return float(change.block.value[0])  # type: ignore[attr-defined]


class Counting(Noted):
    """Counts the push with its last block."""

    def done(self, change: BlockChange) -> None:
        if change.is_last:
            with self.store.completing(change):
                super().done(change)


def shard(name: str) -> ShardDefinition:
    variable = VariableDefinition(name, (SIZES[name],), np.dtype(np.float32), Initializer("zeros"))
    return ShardDefinition(variable)


def push(store: Store, sequence: int, bad: bool = False) -> int:
    """Add one to both variables; the global step after it."""
    entries = [LayoutEntry(name, 0, Operation.ASSIGN_ADD) for name in SIZES]
    layout = compile_layout(store.table, entries)
    request = push_of(layout, (), StepInfo(WHO, sequence, 0), 1)

    def ones(num_bytes: int) -> memoryview:
        return memoryview(np.ones(num_bytes // 4, np.float32).tobytes())

    return store.push(request, ones).global_step


def subscribed(kind: type[Noted] = Noted) -> tuple[Store, Noted]:
    store = Store(TaskId("ps", 0), Settings())
    store.table.define([shard(name) for name in SIZES], WHO)
    noted = store.part(kind)
    store.stream.keep(noted, lambda: True)
    return store, noted


def test_a_subscriber_hears_of_each_block_before_and_after_it_changes() -> None:
    store, noted = subscribed()
    assert push(store, 1) == 1
    blocks = [("before", 0.0, False), ("done", 1.0, False), ("before", 0.0, True)]
    assert noted.heard == [WHO, *blocks, ("done", 1.0, True), ("complete", 1, 1)]


def test_a_repeated_push_changes_nothing_that_would_be_announced() -> None:
    store, noted = subscribed()
    push(store, 1)
    noted.heard.clear()
    assert push(store, 1) == 1
    assert noted.heard == [WHO]


def test_a_push_that_a_subscriber_counts_is_counted_once() -> None:
    store, noted = subscribed(Counting)
    assert push(store, 1) == 1
    assert ("complete", 1, 1) not in noted.heard
    assert (store.global_step, store.pushes) == (1, 1)


def test_what_a_subscriber_refuses_does_not_happen_and_may_be_repeated() -> None:
    store, noted = subscribed()
    noted.refuses = True
    with pytest.raises(ValueError, match="refused"):
        push(store, 1)
    assert store.global_step == 0
    noted.refuses = False
    noted.heard.clear()
    assert push(store, 1) == 1
    assert noted.heard[1] == ("before", 0.0, False)


def test_a_change_that_fails_is_announced_as_one_that_has_failed(calls: Calls) -> None:
    store, noted = subscribed()
    calls.fail(store.table.blocks()[0], "run", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        push(store, 1)
    assert noted.heard[-1] == ("failed", 0.0, ZeroDivisionError)


def test_new_blocks_are_shown_once_all_subscribers_have_them() -> None:
    store = Store(TaskId("ps", 0), Settings())
    noted = store.part(Noted)
    store.stream.keep(noted, lambda: True)
    store.table.define([shard("small")], WHO)
    assert noted.heard == [("defined", 1, 1), ("defined", 1, 1)]
    assert len(store.table.blocks()) == 1


def test_who_has_unsubscribed_hears_only_of_interruptions() -> None:
    store, noted = subscribed()
    store.stream.keep(noted, lambda: False)
    push(store, 1)
    store.interrupt("another ps leads")
    assert noted.heard == ["another ps leads"]
    assert store.stream.subscribers == ()


def test_a_part_of_a_store_is_made_once() -> None:
    store, other = (Store(TaskId("ps", index), Settings()) for index in range(2))
    assert store.part(Noted) is store.part(Noted)
    assert store.part(Noted).store is store
    assert store.part(Noted) is not other.part(Noted)
