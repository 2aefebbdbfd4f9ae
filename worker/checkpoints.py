"""Writing a job's checkpoints: the values first, the manifest last."""

import logging

from ..core.checkpoint import (
    CheckpointInfo,
    checkpoint_path,
    latest_checkpoint,
    prune,
    remove_incomplete,
)
from ..core.checkpoint.directory import open_fs
from ..core.checkpoint.storage import check_writable, storage_error
from ..core.errors import WindlassError
from ..distribute.saved_variables import write_manifest
from .checkpoint_sources import CheckpointSource

log = logging.getLogger(__name__)


class Checkpointer:
    """Checkpoints of one job. Used by one thread.

    Args:
        model_dir: Path or fsspec URL.
        source: What is saved, and who writes it.
        keep: Complete checkpoints kept.
        writer: Who writes the manifests, for messages.
    """

    def __init__(
        self, model_dir: str, source: CheckpointSource, keep: int, writer: str = "the chief"
    ) -> None:
        self._writer = writer
        self._model_dir = model_dir
        self._source = source
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

    def save(self, global_step: int, *, final: bool = False) -> str:
        """Save while training goes on; returns the checkpoint's path. A failed save is removed.

        Args:
            global_step: About the one that is saved.
            final: The job is complete.

        Returns:
            Empty if there is nothing to save.

        Raises:
            WindlassError: A ps is gone or cannot write.
            StorageError: The directory cannot be written, and that will not pass.
        """
        step = self._source.take(global_step)
        if step is None:
            return ""
        repeated = self.last is not None and self.last.global_step == step
        if self.last is not None and repeated and (not final or self.last.path.endswith("-again")):
            # A final one exists already; writing over it could lose it.
            return self.last.path
        path = checkpoint_path(self._model_dir, step, again=repeated)
        try:
            manifest = self._source.write(path, step, final=final)
            if manifest is None:
                self._discard(path)
                return ""
            write_manifest(path, manifest)
        except OSError as error:
            self._discard(path)
            raise storage_error(error, path, self._writer) from error
        except WindlassError:
            self._discard(path)
            raise
        self.last = CheckpointInfo(step, path)
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
