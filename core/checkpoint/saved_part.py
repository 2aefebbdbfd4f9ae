"""The part of a checkpoint that one ps saved: made by the ps, sent to the chief, who writes the
manifest.
"""

from dataclasses import dataclass, field

from ..rules.definitions import ShardDefinition
from ..task import TaskId
from .manifest import FileRecord, TensorRecord


@dataclass(frozen=True, slots=True)
class SavedShard:
    """A shard as it was saved. Small shards with the same ``block`` were copied at one moment.

    Attributes:
        since_base: Only its rows that changed since a whole checkpoint were saved.
    """

    shard: ShardDefinition
    version: int
    updates: int
    block: int
    since_base: bool = False


@dataclass(frozen=True, slots=True)
class SavedPart:
    """The part of a checkpoint that one ps saved.

    Attributes:
        tensors: Records of the tensors, in the order of the part's file.
        files: Digests of the files that the ps wrote, by name.
        shards: Every shard in it.
        applied: Last push, (generation, sequence), that is in all of a block's values, by block and
            task.
        global_step: Worker steps applied, as far as the ps knows.
        pushes: Applied before it began; later ones may be in the values or not.
    """

    tensors: tuple[TensorRecord, ...] = ()
    shards: tuple[SavedShard, ...] = ()
    applied: dict[int, dict[TaskId, tuple[int, int]]] = field(default_factory=dict)
    global_step: int = 0
    files: dict[str, FileRecord] = field(default_factory=dict)
    pushes: int = 0
