"""Writing checkpoints: every ps writes its part, the chief writes the manifest last."""

import datetime
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ..client.ps.control import PsControl
from ..core.checkpoint import (
    CheckpointInfo,
    Manifest,
    VariableRecord,
    checkpoint_path,
    latest_checkpoint,
    prune,
    remove_incomplete,
)
from ..core.checkpoint.directory import MANIFEST, open_fs
from ..core.checkpoint.manifest import BlockRecord
from ..core.checkpoint.saved_part import SavedPart
from ..core.checkpoint.storage import check_writable, storage_error
from ..core.errors import WindlassError
from ..core.versions import own_versions

log = logging.getLogger(__name__)

_SAVE_TIMEOUT_S = 3600.0  # 100 GB to a slow disk; a lost ps ends the save sooner
_TRY_TIMEOUT_S = 60.0  # an object store, or a file server that wakes up


class Checkpointer:
    """Checkpoints of one job. Used by one thread.

    Args:
        model_dir: Path or fsspec URL.
        controls: One per ps.
        keep: Complete checkpoints kept.
        writer: Who writes the manifests, for messages.
    """

    def __init__(
        self, model_dir: str, controls: Sequence[PsControl], keep: int, writer: str = "the chief"
    ) -> None:
        self._writer = writer
        self._model_dir = model_dir
        self._controls = list(controls)
        self._keep = keep
        self.last: CheckpointInfo | None = None

    def prepare(self) -> CheckpointInfo | None:
        """Remove unfinished checkpoints of a killed job; return the one to resume from, if any.

        Raises:
            StorageError: The model directory cannot be written.
        """
        check_writable(self._model_dir, self._writer)
        for path in remove_incomplete(self._model_dir):
            log.warning("removed %s: an incomplete checkpoint", path)
        self.last = latest_checkpoint(self._model_dir)
        return self.last

    def try_servers(self) -> None:
        """Have every ps try whether it can write to the model directory.

        Raises:
            StorageError: One cannot.
        """
        for control in self._controls:
            control.try_directory(self._model_dir, timeout_s=_TRY_TIMEOUT_S)

    def save(
        self, global_step: int, *, final: bool = False, timeout_s: float = _SAVE_TIMEOUT_S
    ) -> str:
        """Save while training goes on; returns the checkpoint's path. A failed save is removed.

        Raises:
            WindlassError: A ps is gone or cannot write.
            StorageError: The manifest cannot be written, and that will not pass.
        """
        repeated = self.last is not None and self.last.global_step == global_step
        if self.last is not None and repeated and (not final or self.last.path.endswith("-again")):
            # A final one exists already; writing over it could lose it.
            return self.last.path
        path = checkpoint_path(self._model_dir, global_step, again=repeated)
        try:
            with ThreadPoolExecutor(len(self._controls), thread_name_prefix="save") as pool:
                parts = list(
                    pool.map(lambda ps: ps.save_shards(path, timeout_s=timeout_s), self._controls)
                )
            if not any(part.shards for part in parts):
                self._discard(path)
                return ""
            manifest = _manifest(parts, global_step, final=final)
            fs, root = open_fs(path)
            # Atomic: local files are renamed into place, object stores put whole objects.
            with fs.transaction:
                fs.pipe_file(f"{root}/{MANIFEST}", manifest.model_dump_json(indent=1).encode())
        except OSError as error:
            self._discard(path)
            raise storage_error(error, path, self._writer) from error
        except WindlassError:
            self._discard(path)
            raise
        self.last = CheckpointInfo(global_step, path)
        try:
            prune(self._model_dir, self._keep)
        except OSError as error:
            log.warning("an old checkpoint could not be removed: %s", error)
        return path

    @staticmethod
    def _discard(path: str) -> None:
        fs, root = open_fs(path)
        try:
            fs.rm(root, recursive=True)
        except OSError as error:
            log.debug("nothing to remove at %s: %s", path, error)


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
