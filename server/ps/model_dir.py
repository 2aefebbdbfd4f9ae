"""The model directory of a ps: the only place where it reads and writes files.

Callers name a checkpoint, never a path or URL; where it is, the ps was told when it was started.
"""

from ...core.checkpoint.directory import checkpoint_name
from ...core.checkpoint.folder import Folder
from ...core.checkpoint.storage import open_model_dir
from ...core.errors import ConfigurationError
from ...core.task import TaskId


class PsModelDir:
    """See the module. Thread-safe.

    Args:
        task: The ps, for messages.
        url: Setting ``model_dir`` of the ps; empty: it was given none.
    """

    def __init__(self, task: TaskId, url: str) -> None:
        self._task = task
        self.url = url

    def folder(self) -> Folder:
        """Open the directory itself.

        Raises:
            ConfigurationError: This ps was given none, or it is no URL that can be used here.
        """
        if not self.url:
            raise ConfigurationError(
                f"{self._task} was started without a model directory, so it can neither save nor "
                "restore: give it --model-dir (or ROPEWALK_MODEL_DIR), the same as the chief's",
                task=self._task,
            )
        return open_model_dir(self.url)

    def checkpoint(self, name: str) -> Folder:
        """Open a checkpoint in it.

        Raises:
            RefusedError: ``name`` is not that of a job's checkpoint.
            ConfigurationError: See :meth:`folder`.
        """
        return self.folder().subfolder(checkpoint_name(name))
