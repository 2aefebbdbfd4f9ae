"""Layouts, compiled from what a client names: what of a ps a payload belongs to, in order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ...core.arrays.dtypes import Array, DType, is_float, row_shape, size_of
from ...core.arrays.scaled_rows import INT8, SCALE_BYTES
from ...core.errors import RefusedError, ShapeMismatchError
from ...core.rules.definitions import ShardDefinition
from ...core.rules.update_rules import UpdateRule
from ...core.task import TaskId
from ...core.wire.bounds import check_number
from ...core.wire.steps import ROW_OPERATIONS, Advanced, Encoding, LayoutEntry, Operation
from ...engine.block import Block
from ...engine.push_target import PushTarget, Range, RowsByKey

if TYPE_CHECKING:
    from .shard_table import ShardTable

# -- Compiled layouts --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LayoutRange:
    """Shards that are adjacent in the payload and in memory, with one operation.

    Attributes:
        block: Block that holds them.
        where: Range of their elements in the block; of a table all of its part.
        operation: Operation of the step on them.
        rule: Applies gradients; None for other operations.
        encoding: Encoding of the values in the payload.
        dtype: Dtype of the values in the payload.
        width: Elements per row.
        decay: Fraction of the old values that is taken away before others are added.
    """

    block: PushTarget
    where: Range
    operation: Operation
    rule: UpdateRule | None
    encoding: Encoding
    dtype: DType
    width: int
    decay: float = 0.0

    @property
    def array(self) -> Block:
        """The block, which holds arrays.

        Raises:
            TypeError: It is a part of a table.
        """
        if not isinstance(self.block, Block):
            raise TypeError(f"{self.block.shards[0].label!r} is a table")
        return self.block

    @property
    def num_bytes(self) -> int:
        """Bytes in the payload, for dense values."""
        return (self.where.stop - self.where.start) * self.dtype.itemsize

    @property
    def numbered(self) -> int:
        """Number of rows or elements that indices may refer to."""
        size = self.where.stop - self.where.start
        return self.block.shards[self.where.first].rows if self.encoding is Encoding.ROWS else size

    @property
    def has_numbers(self) -> bool:
        """Whether the payload has row or element numbers, or keys, for its values."""
        return self.encoding is not Encoding.DENSE and self.operation is not Operation.ADVANCE

    @property
    def is_scaled(self) -> bool:
        """Whether rows travel as int8, each with its scale."""
        return self.dtype == INT8 and self.block.dtype != INT8

    @property
    def changes_all(self) -> bool:
        """Whether each push changes all elements; an assignment is made once."""
        is_whole = self.encoding in (Encoding.DENSE, Encoding.ELEMENTS)
        return is_whole and self.operation not in (Operation.PULL, Operation.ASSIGN)

    def numbered_bytes(self, count: int) -> int:
        """Count the bytes in the payload for ``count`` rows or elements."""
        width = 1 if self.encoding is Encoding.ELEMENTS else self.width
        if self.is_scaled:
            return count * (SCALE_BYTES + width)
        return count * self.dtype.itemsize * width

    def part(self, first: int, last: int) -> "LayoutRange":
        """Cut out a part of its entries, counted from its first one."""
        first, last = self.where.first + first, self.where.first + last
        start, stop = self.block.range_of(first).start, self.block.range_of(last - 1).stop
        return replace(self, where=Range(first, last, start, stop))


@dataclass(frozen=True, slots=True)
class Layout:
    """The compiled layout of a step's payload.

    Attributes:
        ranges: Ranges in payload order.
        pending: Number of ranges of its block that follow each range. A block is changed once per
            push, when its last range has arrived.
        dense_bytes: Bytes of the dense ranges.
        numbered: The other ranges, whose payload has row or element numbers, or keys.
        num_entries: Number of shards.
        gate: Range with the row that the push advances, the last one, which has nothing in the
            payload; None: it advances none.
    """

    ranges: tuple[LayoutRange, ...] = ()
    pending: tuple[int, ...] = ()
    dense_bytes: int = field(init=False)
    numbered: tuple[LayoutRange, ...] = field(init=False)
    num_entries: int = field(init=False)
    gate: LayoutRange | None = field(init=False)

    def __post_init__(self) -> None:
        dense = [s for s in self.ranges if s.encoding is Encoding.DENSE]
        numbered = tuple(s for s in self.ranges if s.has_numbers)
        object.__setattr__(self, "dense_bytes", sum(s.num_bytes for s in dense))
        object.__setattr__(self, "numbered", numbered)
        entries = sum(s.where.last - s.where.first for s in self.ranges)
        object.__setattr__(self, "num_entries", entries)
        last = self.ranges[-1] if self.ranges else None
        is_gated = last is not None and last.operation is Operation.ADVANCE
        object.__setattr__(self, "gate", last if is_gated else None)

    def num_bytes(self, counts: Sequence[int]) -> int:
        """Count the bytes of the values, given the number of rows or elements of each numbered
        range.
        """
        return self.dense_bytes + sum(
            part.numbered_bytes(count) for part, count in zip(self.numbered, counts, strict=True)
        )

    def check_rows(self, rows: Sequence[Array], task: TaskId) -> None:
        """Check row and element numbers before anything is applied. Keys may be any.

        Args:
            rows: Rows or elements, or keys, of each numbered range.
            task: The ps, for messages.

        Raises:
            ShapeMismatchError: One is out of range, or they do not ascend.
        """
        for part, indices in zip(self.numbered, rows, strict=True):
            if indices.size == 0 or part.encoding.is_by_key:  # any int64 is a key
                continue
            what = part.encoding.removesuffix("s")
            label = part.block.shards[part.where.first].label
            low, high = int(indices.min()), int(indices.max())
            if low < 0 or high >= part.numbered:
                raise ShapeMismatchError(
                    f"{task}: {what} {low if low < 0 else high} of {label!r} is out of range: "
                    f"the shard has {part.numbered} {part.encoding}",
                    task=task,
                    variable=label,
                )
            writes = part.operation is not Operation.PULL
            if writes and indices.size > 1 and not bool((indices[1:] > indices[:-1]).all()):
                raise ShapeMismatchError(
                    f"{task}: {what} numbers pushed to {label!r} must ascend without "
                    "repeating; combine repeated rows first (IndexedSlices.combined)",
                    task=task,
                    variable=label,
                )

    def check_advance(self, advance: Advanced | None, who: TaskId) -> None:
        """Check that a push with this layout advances rows if, and only if, the layout says so.

        Raises:
            RefusedError: It is not so, or there is no such row.
        """
        if self.gate is None and advance is None:
            return
        if self.gate is None or advance is None:
            raise RefusedError(f"{who} advances {advance}, and its layout says otherwise", task=who)
        row = max(advance.row, advance.settled_row)
        if row >= self.gate.numbered:
            label = self.gate.block.shards[self.gate.where.first].label
            raise RefusedError(
                f"{who} advances row {row} of {label!r}, which has {self.gate.numbered} here",
                task=who,
                value=row,
            )

    def versions(self) -> Array:
        """Collect the current version of every entry, int64."""
        parts = [s.block.versions[s.where.first : s.where.last] for s in self.ranges]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def only(self, wanted: Array) -> "Layout":
        """Make a layout for a pull of the ``wanted`` entries (bool, per entry)."""
        kept: list[LayoutRange] = []
        start = 0
        for part in self.ranges:
            stop = start + part.where.last - part.where.first
            own = wanted[start:stop]
            if own.all():
                kept.append(part)
            elif own.any():
                turns = np.flatnonzero(np.diff(np.concatenate(([False], own, [False])))).tolist()
                runs = zip(turns[::2], turns[1::2], strict=True)
                kept += [part.part(first, last) for first, last in runs]
            start = stop
        return Layout(tuple(kept), (0,) * len(kept))


NOTHING = Layout()
"""The layout of what is not pushed, or not pulled."""


def join_ranges(ranges: Iterable[LayoutRange]) -> Layout:
    """Make a layout of these ranges, in order; adjacent ones are joined."""
    joined: list[LayoutRange] = []
    for part in ranges:
        both = _join(joined[-1], part) if joined else None
        if both is None:
            joined.append(part)
        else:
            joined[-1] = both
    left: dict[int, int] = {}
    pending = []
    for part in reversed(joined):
        count = left.get(id(part.block), 0)
        pending.append(count)
        left[id(part.block)] = count + 1
    return Layout(tuple(joined), tuple(reversed(pending)))


def _join(left: LayoutRange, right: LayoutRange) -> LayoutRange | None:
    """Join two adjacent ranges; None if they cannot be joined."""
    if (
        left.block is right.block
        and left.where.last == right.where.first
        and left.operation is right.operation
        and left.rule == right.rule
        and left.dtype == right.dtype
        and left.decay == right.decay
        and left.encoding is right.encoding is Encoding.DENSE
    ):
        where = Range(left.where.first, right.where.last, left.where.start, right.where.stop)
        return replace(left, where=where)
    return None


# -- Compiling what a client names, and refusing what cannot be ---------------------------------

_TABLE_OPERATIONS = (Operation.PULL, Operation.APPLY)


def compile_layout(table: "ShardTable", entries: Sequence[LayoutEntry]) -> Layout:
    """Turn a layout into ranges of memory; adjacent ones are joined.

    Definitions may go on meanwhile: nothing is locked for longer than it takes to find a shard.

    Raises:
        UnknownVariableError: A shard is not held here.
        RefusedError: An APPLY to a variable without an update rule, or another operation, encoding
            or dtype that the variable cannot have.
    """
    for item in entries[:-1]:
        if item.operation is Operation.ADVANCE:
            raise _refused(table.task, item, "is advanced by an entry that is not the last one")
    return join_ranges(_range(item, table) for item in entries)


def _range(item: LayoutEntry, table: "ShardTable") -> LayoutRange:
    block, entry = table.target_of((item.variable, item.part))
    rule = block.rules[entry]
    if item.operation is Operation.APPLY and rule is None:
        raise _refused(
            table.task,
            item,
            "has no update rule; apply gradients through an optimizer, or use assign_add",
        )
    dtype = item.dtype or block.dtype
    _check_dtype(item, block.dtype, dtype, table.task)
    _check_encoding(item, isinstance(block, RowsByKey), table.task)
    _check_states(item, block.dtype, dtype, table.task)
    _check_decay(item, block.dtype, table.task)
    applied = rule if item.operation is Operation.APPLY else None
    width = _width(block, block.shards[entry], item.encoding)
    if item.operation is Operation.ADVANCE and (block.dtype != np.int64 or width != 1):
        raise _refused(table.task, item, "has no rows of one int64, which ADVANCE is for")
    where = block.range_of(entry)
    return LayoutRange(
        block, where, item.operation, applied, item.encoding, dtype, width, item.decay
    )


def _check_dtype(item: LayoutEntry, held: DType, wire: DType, task: TaskId) -> None:
    narrows = is_float(held) and (is_float(wire) or _is_scaled(item))
    if wire != held and not narrows:
        raise _refused(task, item, f"is {held.name} and cannot travel as {wire.name}")


def _check_encoding(item: LayoutEntry, is_table: bool, task: TaskId) -> None:
    by_key = item.encoding.is_by_key
    if item.encoding is Encoding.ELEMENTS and item.operation is not Operation.APPLY:
        raise RefusedError(f"{task}: single elements are for gradients", task=task)
    if item.operation in ROW_OPERATIONS and item.encoding is not Encoding.ROWS:
        raise RefusedError(f"{task}: {item.operation} is for rows", task=task)
    if by_key != is_table:
        what = "no table" if by_key else "a table: it has keys"
        raise _refused(task, item, f"is {what}, and a layout asks for {item.encoding}")
    if by_key and item.operation not in _TABLE_OPERATIONS:
        raise _refused(
            task,
            item,
            f"is a table, whose rows are read, and updated by its rule: {item.operation} is for "
            "arrays",
        )


def _check_states(item: LayoutEntry, held: DType, wire: DType, task: TaskId) -> None:
    pulls = item.operation is Operation.PULL and wire == held
    if item.encoding is Encoding.STATES and not pulls:
        raise RefusedError(
            f"{task}: rows of {item.variable!r} with their slots are pulled, and travel as "
            f"{held.name}",
            task=task,
            variable=item.variable,
        )


def _width(block: PushTarget, shard: ShardDefinition, encoding: Encoding) -> int:
    """Count the elements of a row in the payload."""
    if encoding is Encoding.STATES and isinstance(block, RowsByKey):
        return block.state_elements
    return size_of(row_shape(shard.shape))


def _check_decay(item: LayoutEntry, dtype: DType, task: TaskId) -> None:
    if not item.decay:
        return
    check_number(item.decay, 1, f"the decay of {item.variable!r}", task)
    added = item.operation is Operation.ASSIGN_ADD and item.encoding is Encoding.DENSE
    if not (added and is_float(dtype)):
        raise _refused(
            task,
            item,
            f"({dtype.name}) has a decay for {item.operation}, which is for what is added to whole "
            "floating-point variables",
        )


def _is_scaled(item: LayoutEntry) -> bool:
    """Return whether an entry has rows that may travel as int8 with a scale each."""
    rows = item.encoding in (Encoding.ROWS, Encoding.KEYS)
    return rows and item.dtype == INT8 and item.operation in _TABLE_OPERATIONS


def _refused(task: TaskId, item: LayoutEntry, why: str) -> RefusedError:
    return RefusedError(f"{task}: {item.variable!r} {why}", task=task, variable=item.variable)
