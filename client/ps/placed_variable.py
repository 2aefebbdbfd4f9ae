"""A variable and where its shards are."""

from dataclasses import dataclass

from ...core.rules.definitions import ShardDefinition, VariableDefinition


@dataclass(frozen=True, slots=True)
class PlacedVariable:
    """A variable and its shards: (index of the ps, shard), by part."""

    definition: VariableDefinition
    shards: tuple[tuple[int, ShardDefinition], ...]
