"""First values of new shards: those of their initializer, or those of a checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass

from ...core.arrays.dtypes import Array
from ...core.checkpoint import CheckpointReader
from ...core.checkpoint.directory import MANIFEST
from ...core.errors import CheckpointError
from ...core.rules.known_rules import rule_from_dict
from ...core.rules.update_rules import UpdateRule
from ...core.task import Incarnation
from ...engine.block import Block
from ...engine.push_target import PushTarget

_FILL_BYTES = 16 * 1024 * 1024  # initialized between two looks whether a call waits for it


@dataclass(slots=True)
class Held:
    """A shard that a ps holds.

    Attributes:
        block: Block that the shard is in: an array's memory, or a part of a table.
        entry: Number of the shard there.
        defined_by: The first task that defined it.
        restored_from: The checkpoint that its value came from.
        bound_by: The task that gave it its update rule.
    """

    block: PushTarget
    entry: int
    defined_by: Incarnation
    restored_from: CheckpointReader | None = None
    bound_by: Incarnation | None = None


def initialize(
    block: Block,
    entry: int,
    reader: CheckpointReader | None,
    check: Callable[[], None],
) -> CheckpointReader | None:
    """Give a shard its first value; the checkpoint, if that came from one."""
    shard = block.shards[entry]
    variable = shard.variable
    start, stop = shard.row_offset, shard.row_offset + shard.rows
    record = reader.variable(variable.name) if reader is not None else None
    if reader is not None and reader.table(variable.name) is not None:
        raise another_kind(reader, variable.name, "a growing table", "an array")
    if reader is not None and record is not None:
        if tuple(record.shape) != variable.shape or record.dtype != variable.dtype.name:
            raise CheckpointError(
                f"{reader.path} has {variable.name!r} as {record.dtype}{list(record.shape)}, "
                f"the program defines {variable.dtype.name}{list(variable.shape)}; it was "
                "saved by another model. Restore it with that program, or name another "
                "model_dir",
                variable=variable.name,
                path=reader.path,
            )
        block.view(entry)[...] = reader.read_rows(variable.name, start, stop)
    elif variable.initializer is not None:
        values = block.view(entry)
        row_bytes = max(1, values.nbytes // max(1, shard.rows))
        step = max(1, _FILL_BYTES // row_bytes)
        for first in range(0, shard.rows, step):
            check()
            part = values[first : first + step] if values.shape else values
            variable.initializer.fill(part, variable.shape, start + first)
    else:
        return None  # the creating task assigns the value
    block.initialized[entry] = True
    return reader if record is not None else None


def another_kind(reader: CheckpointReader, name: str, saved: str, defined: str) -> CheckpointError:
    """Make the error about a checkpoint that has an array where the program has a table, or so."""
    return CheckpointError(
        f"{reader.path} has {name!r} as {saved}, the program defines {defined}; it was saved by "
        "another model. Restore it with that program, or name another model_dir",
        variable=name,
        path=reader.path,
    )


def restored_slots(held: Held, rule: UpdateRule) -> tuple[dict[str, Array], int]:
    """Read slots and update count from the checkpoint that the shard came from."""
    reader, shard = held.restored_from, held.block.shards[held.entry]
    record = reader.variable(shard.variable.name) if reader is not None else None
    if reader is None or record is None or record.rule is None:
        return {}, 0
    if record.rule.get("name") != rule.name:
        return {}, 0  # saved with another optimizer, whose slots do not apply
    saved = reader.slots(shard.variable.name)
    start, stop = shard.row_offset, shard.row_offset + shard.rows
    try:
        had = rule_from_dict(record.rule).active_slots()
    except ValueError as error:
        raise CheckpointError(
            f"{reader.path}/{MANIFEST}: the rule of {shard.variable.name!r} is none: {error}",
            path=reader.path,
            variable=shard.variable.name,
        ) from error
    wanted = [slot for slot in rule.active_slots() if slot in had]
    lost = [slot for slot in wanted if slot not in saved]
    if lost:
        raise CheckpointError(
            f"{reader.path} lacks the slot {lost[0]!r} of {shard.variable.name!r}, which its "
            f"rule {rule.name} had; the checkpoint is damaged",
            path=reader.path,
            variable=shard.variable.name,
        )
    rows = {slot: reader.read_rows(shard.variable.name, start, stop, slot) for slot in wanted}
    return rows, record.updates
