"""The manifest of a checkpoint that parameter servers have written, each its own part."""

import datetime
from collections.abc import Sequence

from ..rules.definitions import ShardDefinition
from ..rules.tables import TableOptions
from ..versions import own_versions
from .manifest import BaseRecord, BlockRecord, CutRecord, Manifest, TableRecord, VariableRecord
from .saved_part import SavedPart


def manifest_of_parts(
    parts: Sequence[SavedPart],
    global_step: int,
    *,
    final: bool,
    cut: CutRecord | None = None,
    base: tuple[str, str] | None = None,
) -> Manifest:
    """Make the manifest of a checkpoint whose values are written.

    Args:
        parts: Part of the checkpoint that each ps has saved, by its index.
        global_step: Global step of the checkpoint.
        final: Whether the job is complete.
        cut: Moment of all ps that it is of; None: ranges of rows are of different moments.
        base: Name of the whole checkpoint that a delta was asked for, and the digest of its
            manifest. Where no ps has left out what did not change, the checkpoint is whole.
    """
    variables: dict[str, VariableRecord] = {}
    tables: dict[str, TableRecord] = {}
    blocks: list[BlockRecord] = []
    for ps, part in enumerate(parts):
        labels: dict[int, list[str]] = {}
        for saved in part.shards:
            labels.setdefault(saved.block, []).append(saved.shard.label)
            variable, rule = saved.shard.variable, saved.shard.rule
            if variable.table is not None:
                tables[variable.name] = _table_record(saved.shard, variable.table)
                continue
            other = variables.get(variable.name)
            variables[variable.name] = VariableRecord(
                shape=variable.shape,
                dtype=variable.dtype.name,
                trainable=variable.trainable,
                updates=max(saved.updates, other.updates if other is not None else 0),
                rule=rule.model_dump(mode="json") if rule is not None else None,
            )
        for block, names in labels.items():
            applied = {str(task): mark for task, mark in part.applied.get(block, {}).items()}
            blocks.append(BlockRecord(ps=ps, shards=tuple(names), applied=applied))
    whole = Manifest(
        global_step=global_step,
        final=final,
        saved_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        ropewalk=own_versions().ropewalk,
        variables=variables,
        tensors=tuple(record for part in parts for record in part.tensors),
        files={name: record for part in parts for name, record in part.files.items()},
        blocks=tuple(blocks),
        cut=cut,
        tables=tables,
    )
    record = _base_record(parts, *base) if base is not None else None
    if record is None or not (record.parts or record.rows):
        return whole
    return whole.model_copy(update={"base": record, "version": 3})


def _base_record(parts: Sequence[SavedPart], checkpoint: str, digest: str) -> BaseRecord:
    tables: dict[str, list[int]] = {}
    rows: dict[str, list[tuple[int, int]]] = {}
    for saved in (saved for part in parts for saved in part.shards if saved.since_base):
        shard, name = saved.shard, saved.shard.variable.name
        if shard.variable.table is not None:
            tables.setdefault(name, []).append(shard.part)
        else:
            rows.setdefault(name, []).append((shard.row_offset, shard.row_offset + shard.rows))
    return BaseRecord(
        checkpoint=checkpoint,
        digest=digest,
        parts={name: tuple(sorted(parts)) for name, parts in tables.items()},
        rows={name: tuple(sorted(ranges)) for name, ranges in rows.items()},
    )


def _table_record(shard: ShardDefinition, options: TableOptions) -> TableRecord:
    max_rows, dim = shard.variable.shape
    return TableRecord(
        max_rows=max_rows,
        dim=dim,
        dtype=shard.variable.dtype.name,
        parts=shard.num_parts,
        rule=options.rule.model_dump(mode="json"),
    )
