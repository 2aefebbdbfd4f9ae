"""Turns the layout that a client names into ranges of memory, and refuses what cannot be."""

from collections.abc import Sequence

from ...core.arrays.dtypes import DType, is_float, row_shape, size_of
from ...core.arrays.scaled_rows import INT8
from ...core.errors import RefusedError
from ...core.rules.definitions import ShardDefinition
from ...core.task import TaskId
from ...core.wire.bounds import check_number
from ...core.wire.steps import ROW_OPERATIONS, Encoding, LayoutEntry, Operation
from ...engine.push_target import PushTarget, RowsByKey
from .layout import Layout, LayoutRange, join_ranges
from .shard_table import ShardTable

_TABLE_OPERATIONS = (Operation.PULL, Operation.APPLY)


def compile_layout(table: ShardTable, entries: Sequence[LayoutEntry]) -> Layout:
    """Turn a layout into ranges of memory; adjacent ones are joined.

    Definitions may go on meanwhile: nothing is locked for longer than it takes to find a shard.

    Raises:
        UnknownVariableError: A shard is not held here.
        RefusedError: An APPLY to a variable without an update rule, or another operation, encoding
            or dtype that the variable cannot have.
    """
    return join_ranges(_range(item, table) for item in entries)


def _range(item: LayoutEntry, table: ShardTable) -> LayoutRange:
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
