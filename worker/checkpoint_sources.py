"""What a job's checkpoints are made of: shards that ps write, or variables of a synchronous program
that the chief writes.
"""

import datetime
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from ..client.ps.control import PsControl
from ..core.checkpoint import Manifest, VariableRecord
from ..core.checkpoint.manifest import BlockRecord
from ..core.checkpoint.saved_part import SavedPart
from ..core.versions import own_versions
from ..distribute.job_snapshots import JobSnapshots, Snapshot
from ..distribute.saved_variables import write_values

_SAVE_TIMEOUT_S = 3600.0  # 100 GB to a slow disk; a lost ps ends the save sooner


class CheckpointSource(Protocol):
    """Used by one thread: :meth:`take`, then :meth:`write` of what was taken."""

    def take(self, global_step: int) -> int | None:
        """Get ready to write, about step ``global_step``; the step it became, None: nothing."""

    def write(self, path: str, global_step: int, *, final: bool) -> Manifest | None:
        """Write the values; the manifest that makes them a checkpoint, None: there are none.

        Raises:
            OSError: The file system refused.
            WindlassError: A ps is gone or cannot write.
        """


class PsShards:
    """Every ps writes its shards, while training goes on.

    Args:
        controls: One per ps.
    """

    def __init__(self, controls: Sequence[PsControl]) -> None:
        self._controls = list(controls)

    def take(self, global_step: int) -> int | None:
        """Nothing to do: the ps copy what they write."""
        return global_step

    def write(self, path: str, global_step: int, *, final: bool) -> Manifest | None:
        """Have every ps write; see :class:`CheckpointSource`."""
        with ThreadPoolExecutor(len(self._controls), thread_name_prefix="save") as pool:
            parts = list(
                pool.map(lambda ps: ps.save_shards(path, timeout_s=_SAVE_TIMEOUT_S), self._controls)
            )
        if not any(part.shards for part in parts):
            return None
        return _manifest(parts, global_step, final=final)


class ProgramVariables:
    """The chief writes a copy of its program's variables, which are equal on all workers.

    Args:
        snapshots: Of its task.
    """

    def __init__(self, snapshots: JobSnapshots) -> None:
        self._snapshots = snapshots
        self._taken: Snapshot | None = None

    def take(self, global_step: int) -> int | None:  # noqa: ARG002 - it is the program's
        """Wait for the end of the program's step."""
        self._taken = self._snapshots.take()
        return self._taken.global_step if self._taken is not None else None

    def write(self, path: str, global_step: int, *, final: bool) -> Manifest | None:
        """Write what was taken; see :class:`CheckpointSource`."""
        taken, self._taken = self._taken, None  # memory for a copy of the model
        if taken is None or not taken.variables:
            return None
        return write_values(path, taken.variables, global_step, final=final)


class AloneSource:
    """Of a process that is the whole cluster: its program may have a strategy of either kind. If it
    has both, what is on servers is saved.

    Args:
        snapshots: Of its task.
        servers: Its parameter servers.
        is_in_use: Whether there are variables on them.
    """

    def __init__(
        self, snapshots: JobSnapshots, servers: PsShards, is_in_use: Callable[[], bool]
    ) -> None:
        self._snapshots = snapshots
        self._servers = servers
        self._program = ProgramVariables(snapshots)
        self._is_in_use = is_in_use

    @property
    def _source(self) -> CheckpointSource:
        adopted = self._snapshots.is_adopted and not self._is_in_use()
        return self._program if adopted else self._servers

    def take(self, global_step: int) -> int | None:
        """See :class:`CheckpointSource`."""
        return self._source.take(global_step)

    def write(self, path: str, global_step: int, *, final: bool) -> Manifest | None:
        """See :class:`CheckpointSource`."""
        return self._source.write(path, global_step, final=final)


def _manifest(parts: Sequence[SavedPart], global_step: int, *, final: bool) -> Manifest:
    variables: dict[str, VariableRecord] = {}
    blocks: list[BlockRecord] = []
    for ps, part in enumerate(parts):
        labels: dict[int, list[str]] = {}
        for saved in part.shards:
            labels.setdefault(saved.block, []).append(saved.shard.label)
            variable, rule = saved.shard.variable, saved.shard.rule
            known = variables.get(variable.name)
            variables[variable.name] = VariableRecord(
                shape=variable.shape,
                dtype=variable.dtype.name,
                trainable=variable.trainable,
                updates=max(saved.updates, known.updates if known is not None else 0),
                rule=rule.model_dump(mode="json") if rule is not None else None,
            )
        for block, names in labels.items():
            applied = {str(task): mark for task, mark in part.applied.get(block, {}).items()}
            blocks.append(BlockRecord(ps=ps, shards=tuple(names), applied=applied))
    return Manifest(
        global_step=global_step,
        final=final,
        saved_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        windlass=own_versions().windlass,
        variables=variables,
        tensors=tuple(record for part in parts for record in part.tensors),
        blocks=tuple(blocks),
    )
