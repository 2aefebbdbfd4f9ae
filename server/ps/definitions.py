"""Definitions of shards: which tasks work on them, and whether all describe them alike."""

import threading
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager

from ...core.arrays.dtypes import is_float
from ...core.errors import DefinitionMismatchError, PeerLostError, RefusedError, ShapeMismatchError
from ...core.rules.definitions import ShardDefinition, VariableDefinition
from ...core.rules.update_rules import UpdateRule
from ...core.task import Incarnation, TaskId
from .new_blocks import Held

# -- Variables that a thread works on without holding the lock that guards them all ------------
# Reading values from a file server may take long, or never end. Whoever reads claims the variables
# first and lets go of the lock: definitions of others go on, and one of the same variables waits.

_WAIT_S = 3600.0  # restoring a large table takes as long as it takes; a hung disk does not end


class Claims:
    """Claimed names of variables.

    Args:
        lock: Guards them.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._released = threading.Condition(lock)
        self._names: set[str] = set()

    def wait(self, names: Set[str]) -> None:
        """Wait until no thread works on any of these. The caller holds the lock, once.

        Raises:
            PeerLostError: A thread has for an hour.
        """
        deadline = time.monotonic() + _WAIT_S
        while taken := self._names & names:
            if not self._released.wait(deadline - time.monotonic()):
                raise PeerLostError(
                    f"{min(taken)!r} is being defined for {_WAIT_S:.0f} s by another call; does "
                    "the file system of the model directory hang?",
                    variable=min(taken),
                )

    @contextmanager
    def taken(self, names: Set[str]) -> Iterator[None]:
        """Claim names; begun under the lock, and let go of within: see :class:`ShardTable`."""
        self._names |= names
        lock = self._released
        lock.release()
        try:
            yield
        finally:
            lock.acquire()
            self._names -= names
            lock.notify_all()


# -- Whether tasks describe shards alike. Pure: errors name the two and what differs ------------


def check_rule(ps: TaskId, rule: UpdateRule) -> None:
    """Check that a rule can be bound to arrays.

    Raises:
        RefusedError: It looks at whole rows, which growing tables have.
    """
    if rule.needs_rows:
        raise RefusedError(
            f"{ps}: {rule.name} looks at whole rows, and runs on growing tables alone: "
            "give it to a TableConfig of rw.embedding, or bind another rule",
            task=ps,
        )


def is_bound(ps: TaskId, held: Held, rule: UpdateRule, who: Incarnation) -> bool:
    """Return whether a shard has this update rule; not, if it has none.

    Raises:
        DefinitionMismatchError: It has another one.
        ShapeMismatchError: It is not of a float dtype.
    """
    shard, bound = held.block.shards[held.entry], held.block.rules[held.entry]
    if bound == rule:
        return True
    if bound is not None:
        first = held.bound_by.task if held.bound_by else None
        advice = (
            "a variable keeps its first optimizer: assign that one's hyperparameters instead"
            if first == who.task
            else "all tasks must run the same program"
        )
        raise DefinitionMismatchError(
            f"{ps}: {who.task} wants to update {shard.label!r} by {rule!r}, but "
            f"{first or 'another task'} bound it to {bound!r}; {advice}",
            variable=shard.variable.name,
            task=who.task,
        )
    if not is_float(held.block.dtype):
        raise ShapeMismatchError(
            f"{ps}: {shard.label!r} is {held.block.dtype.name}; update rules need a "
            "float dtype. Use assign or assign_add, or trainable=False",
            variable=shard.variable.name,
        )
    return False


def check_same(ps: TaskId, shard: ShardDefinition, held: Held, who: Incarnation) -> None:
    """Check that a task defines a shard as it is held, or another part of the same variable.

    Raises:
        DefinitionMismatchError: Its shape, dtype, table or cut is another one.
    """
    check_same_variable(ps, shard, held, who)
    mine = held.block.shards[held.entry]
    same_part = shard.part != mine.part or (shard.row_offset, shard.rows) == (
        mine.row_offset,
        mine.rows,
    )
    if shard.num_parts != mine.num_parts or not same_part:
        raise DefinitionMismatchError(
            f"{ps}: {who.task} cuts {shard.variable.name!r} in {shard.num_parts} parts, "
            f"{held.defined_by.task} cut it in {mine.num_parts}; all tasks must use the same "
            "variable_partitioner",
            variable=shard.variable.name,
            task=who.task,
        )


def check_same_variable(ps: TaskId, shard: ShardDefinition, held: Held, who: Incarnation) -> None:
    """Check that a task defines a variable as it is held, however it is cut.

    Raises:
        DefinitionMismatchError: Its shape, dtype or table is another one.
    """
    mine, theirs = held.block.shards[held.entry].variable, shard.variable
    if mine.shape == theirs.shape and mine.dtype == theirs.dtype:
        if mine.table != theirs.table:
            raise _other_table(ps, mine, theirs, held, who)
        return
    raise DefinitionMismatchError(
        f"{ps}: {who.task} defines {mine.name!r} as {theirs.dtype.name}"
        f"{list(theirs.shape)}, {held.defined_by.task} defined it as {mine.dtype.name}"
        f"{list(mine.shape)}; all tasks must run the same program",
        variable=mine.name,
        task=who.task,
        other=held.defined_by.task,
    )


def _other_table(
    ps: TaskId,
    mine: VariableDefinition,
    theirs: VariableDefinition,
    held: Held,
    who: Incarnation,
) -> DefinitionMismatchError:
    return DefinitionMismatchError(
        f"{ps}: {who.task} defines {mine.name!r} as {theirs.table or 'an array'}, "
        f"{held.defined_by.task} defined it as {mine.table or 'an array'}; all tasks must run "
        "the same program",
        variable=mine.name,
        task=who.task,
        other=held.defined_by.task,
    )
