"""The unit that a push changes at once: some shards, under one lock, and the marks of pushes in
them.

A push that is repeated after a broken connection finds its mark in ``applied`` and is skipped;
readers see all of a push to such shards or nothing of it. ``block.py`` has arrays, one after the
other in one memory; rows that are found by key are of an annex (``annexes/embedding/keyed``).
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..core.arrays.dtypes import Array, DType
from ..core.report import TableCounters
from ..core.rules.definitions import ShardDefinition
from ..core.rules.update_rules import UpdateRule
from ..core.task import Incarnation, TaskId
from ..core.wire.closure_pushes import ClosureMarks, ClosureRun
from ..core.wire.steps import MemoryLocation, Operation
from .row_changes import ChangeMark, RowChanges

if TYPE_CHECKING:
    from ..core.checkpoint import CheckpointReader

FREE = 2**32 - 1
"""Step of a place that has no row, in the column ``last`` of rows by key."""

SLOT = "slot/"
"""Prefix of a slot's name, where it is a column."""


@dataclass(frozen=True, slots=True)
class Range:
    """Neighbouring entries ``[first, last)`` of a block: elements ``[start, stop)``."""

    first: int
    last: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient that a push brings for a range.

    Attributes:
        values: 1-D, in the block's dtype.
        rows: int64: ascending numbers of rows of the one shard in the range, or keys of a table's
            rows, each once; None: dense.
    """

    values: Array
    rows: Array | None = None


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The facts that an update needs to know about its step.

    Attributes:
        sequence: Sequence number of the worker's push, or its number in the closure.
        closure: Closure in which the push is made; None: it is made outside closures.
    """

    who: Incarnation
    sequence: int
    global_step: int
    gradient_scale: float = 1.0
    closure: ClosureRun | None = None

    def at_least(self, global_step: int) -> "StepInfo":
        """Return these facts with the global step raised to this one, if it is later."""
        if global_step <= self.global_step:
            return self
        return StepInfo(self.who, self.sequence, global_step, self.gradient_scale, self.closure)


@dataclass(frozen=True, slots=True)
class UpdatePart:
    """The part of a push that changes neighbouring shards of a block.

    Attributes:
        where: Range of their elements.
        operation: Operation of the push.
        rule: Rule to run, for APPLY.
        gradient: The push's values for them.
        decay: Decay of an ASSIGN_ADD; see :meth:`~ropewalk.engine.block.Block.combine`.
    """

    where: Range
    operation: Operation
    rule: UpdateRule | None
    gradient: Gradient
    decay: float = 0.0


class PushTarget(ABC):
    """The unit that a push changes at once: shards under one lock. Hold ``lock`` around everything
    but the constructor.

    Args:
        shards: Shards in order, all of one dtype.
        number: Number of the target among those of its store.

    Attributes:
        versions: int64, per shard: how often it was changed.
        updates: int64, per shard: how often its update rule was applied.
        entry_bytes: int64, per shard: size of its values; 0 of a growing table.
        applied: Task → (generation, sequence) of the last push whose effect is in the values.
        closures: Marks as in ``applied``, for pushes of closures.
        changes: Changed rows of each entry, as long as they are followed.
        is_pushed_whole: Whether pushes bring gradients for all elements of a shard.
    """

    def __init__(self, shards: Sequence[ShardDefinition], number: int = 0) -> None:
        self.lock = threading.Lock()
        self.number = number
        self.shards = list(shards)
        self.dtype: DType = shards[0].variable.dtype
        self.rules: list[UpdateRule | None] = [None] * len(shards)
        self.versions = np.zeros(len(shards), np.int64)
        self.updates = np.zeros(len(shards), np.int64)
        sizes = [0 if shard.variable.table is not None else shard.size for shard in shards]
        self.entry_bytes = np.array(sizes, np.int64) * self.dtype.itemsize
        self.initialized = np.zeros(len(shards), np.bool_)
        self.applied: dict[TaskId, tuple[int, int]] = {}
        self.closures = ClosureMarks()
        self.changes: dict[int, RowChanges] = {}
        self.is_pushed_whole = False

    def most_changed(self, most: int) -> list[int]:
        """List the entries whose changes had the most bytes, so many at most, in no order.

        Needs no lock: a count may be that before a push which goes on.
        """
        if len(self.shards) <= most:
            return list(range(len(self.shards)))
        moved = self.versions * self.entry_bytes
        entries: list[int] = np.argpartition(moved, -most)[-most:].tolist()
        return entries

    @property
    @abstractmethod
    def value_bytes(self) -> int:
        """Bytes of all values."""

    @property
    @abstractmethod
    def slot_bytes(self) -> int:
        """Bytes of all slots."""

    @property
    def most_bytes(self) -> int:
        """Bytes that values and slots may come to have, as they are defined now, and bytes of what
        is noted about changes.
        """
        return self.value_bytes + self.slot_bytes + self.followed_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of values and slots that are on disk alone."""
        return 0

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the disk that are reserved for values and slots."""
        return 0

    @property
    def followed_bytes(self) -> int:
        """Most bytes of what is noted about changes of rows."""
        return sum(changes.num_bytes for changes in list(self.changes.values()))

    def follow(self, entry: int, holder: Hashable) -> RowChanges:
        """Note which rows of an entry change, at least until this holder needs it no more."""
        if entry not in self.changes or self.changes[entry].is_full:
            self.changes[entry] = self.make_changes(entry)
        self.changes[entry].holders.add(holder)
        return self.changes[entry]

    def mark(self, entry: int, holder: Hashable) -> ChangeMark:
        """Mark the moment of now in the changes of an entry, which are noted for this holder."""
        changes = self.follow(entry, holder)
        return ChangeMark(changes, changes.advance())

    def knows(self, mark: ChangeMark, entry: int = 0) -> bool:
        """Return whether all changes of an entry since a mark are known."""
        return self.changes.get(entry) is mark.changes and mark.changes.knows(mark.position)

    def make_changes(self, entry: int) -> RowChanges:
        """Make what notes the changes of an entry's rows from now on."""
        version = int(self.versions[entry])
        return RowChanges(self.shards[entry].rows, removes=False, version=version)

    def unfollow(self, holder: Hashable) -> None:
        """Forget the changes that only this holder needed."""
        for changes in self.changes.values():
            changes.holders.discard(holder)
        self.changes = {
            entry: changes for entry, changes in self.changes.items() if changes.holders
        }

    def forget_changes(self) -> None:
        """Note no changes any more, whoever needs them: they hear that none are known."""
        with self.lock:
            for holder in {
                holder for changes in self.changes.values() for holder in changes.holders
            }:
                self.unfollow(holder)

    @abstractmethod
    def places(self, entry: int) -> int:
        """Count the places of rows, for :meth:`changed_keys`."""

    @abstractmethod
    def changed_keys(self, entry: int, since: int, start: int, stop: int) -> Array:
        """Find the keys of rows that changed, of rows that are there; of an array, their numbers.

        Args:
            entry: The entry, which is followed.
            since: Position from which on; 0: all rows.
            start: First place that is looked at.
            stop: Place after the last one that is looked at.

        Returns:
            int64, each once.
        """

    @abstractmethod
    def location(self, entry: int) -> MemoryLocation | None:
        """Find an entry's values in shared memory; None: they are not there."""

    @abstractmethod
    def range_of(self, entry: int) -> Range:
        """Return the range of an entry's elements."""

    def reading(self, rows: Array | None) -> AbstractContextManager[object]:  # noqa: ARG002 - for those on disk
        """Hold the lock, after rows that are on disk have been asked for.

        Args:
            rows: Numbers or keys of the rows that will be read; None: all.
        """
        return self.lock

    @abstractmethod
    def writing(self, parts: Sequence[UpdatePart] = ()) -> AbstractContextManager[None]:
        """Hold the lock, and show readers of shared memory that the values are changing.

        Args:
            parts: Parts of the push: rows that are on disk are asked for before.
        """

    @abstractmethod
    def run(self, parts: Sequence[UpdatePart], info: StepInfo) -> None:
        """Do what a push does to this block, and remember it. The same on every replica."""

    def has_applied(self, info: StepInfo) -> bool:
        """Return whether this push is in the values already.

        Raises:
            FencedError: A newer process of the task, or attempt at the closure, has pushed here.
        """
        if info.closure is not None:
            return self.closures.applied(info.closure) >= info.sequence
        generation, sequence = self.applied.get(info.who.task, (0, 0))
        info.who.check_not_superseded(generation)
        return generation == info.who.generation and sequence >= info.sequence

    def mark_applied(self, info: StepInfo) -> None:
        """Remember that this push is in the values."""
        if info.closure is not None:
            self.closures.mark(info.closure, info.sequence)
            return
        self.applied[info.who.task] = (info.who.generation, info.sequence)


class RowsByKey(PushTarget):
    """A part of a table whose rows are found by key.

    A row has a place, which it keeps while it lives, and at it an element of each column: its key
    (``keys``), values (``values``), slots, number of pushes (``counts``) and the step of the last
    one (``last``; ``FREE``: there is no row).
    """

    @abstractmethod
    def read(self, keys: Array, room: Array | None = None) -> Array:
        """Read the rows of keys; makes none.

        Args:
            keys: int64, shape ``(n,)``. May repeat.
            room: uint8, as many bytes as the rows have: memory for them, used if it is aligned.

        Returns:
            Shape ``(n, elements of a row)``.
        """

    @property
    @abstractmethod
    def state_elements(self) -> int:
        """Elements of a row, its slots and its count."""

    @abstractmethod
    def read_states(self, keys: Array) -> Array:
        """Read the rows of keys with their slots and counts; makes none.

        Args:
            keys: int64, shape ``(n,)``. May repeat.

        Returns:
            Shape ``(n, state_elements)``: values, slots in their order, and the count's bits.
        """

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, Array]:
        """Columns by name: memory of all places that were ever used, no copy."""

    @abstractmethod
    def copied_rows(self, places: Array) -> Mapping[str, Array]:
        """Copy the rows at these places, of those that have one, by column.

        Args:
            places: int64, shape ``(n,)``, each below :meth:`places` and once.
        """

    @abstractmethod
    def state(self) -> Mapping[str, Array]:
        """Return what decides beside the rows, by name."""

    @abstractmethod
    def note_copied(self, places: Array) -> None:
        """Note that the rows of these places are copied now: they may be on disk."""

    def fetch_copied(self, places: Array | range) -> None:
        """Have rows come from disk that will be copied: here none are there. Without the lock.

        Args:
            places: Places of the rows: int64, shape ``(n,)``, or neighbouring ones.
        """

    @abstractmethod
    def restore(self, reader: "CheckpointReader", check: Callable[[], None]) -> bool:
        """Load the rows of a checkpoint, if it has the table; returns whether it does.

        Args:
            reader: The checkpoint.
            check: Called for each piece; raises to give up.

        Raises:
            CheckpointError: The checkpoint has another table of this name, or is damaged.
            LimitExceededError: There is no room for its rows.
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget all rows, and what is remembered beside them."""

    @abstractmethod
    def take_rows(self, columns: Mapping[str, Array], removed: Array) -> None:
        """Remove rows, and write others as they were copied from another replica.

        Args:
            columns: Columns by name as in :attr:`columns`.
            removed: int64: keys whose rows are removed first.

        Raises:
            ShapeMismatchError: The rows do not fit.
            LimitExceededError: There is no room for them.
        """

    @abstractmethod
    def take_state(self, state: Mapping[str, Array]) -> None:
        """Go on as the replica whose state this is; its rows are here already.

        Args:
            state: State of the replica beside its rows, by name.
        """

    @property
    @abstractmethod
    def counters(self) -> TableCounters:
        """Counters of what the table holds, and what happened to it. Also without the lock."""
