"""The newest checkpoints of a directory, as ``tf.train.CheckpointManager`` keeps them."""

from collections.abc import Callable
from typing import Any

from ..core.checkpoint import numbered_checkpoints, prune
from .object_checkpoint import ObjectCheckpoint


class CheckpointManager:
    """Keeps the newest checkpoints in a directory. As ``tf.train.CheckpointManager``.

    Args:
        checkpoint: The checkpoint that is saved and restored.
        directory: Path or fsspec URL of the directory; need not exist.
        max_to_keep: Number of checkpoints to keep; None keeps all.
        checkpoint_name: Checkpoints are named ``<checkpoint_name>-<number>``.
        step_counter: A variable, or a function that returns a number, which
            ``checkpoint_interval`` refers to.
        checkpoint_interval: :meth:`save` does nothing before ``step_counter`` has grown by this
            much since the last checkpoint.
        init_fn: Function that :meth:`restore_or_initialize` calls if there is no checkpoint.

    Raises:
        ValueError: ``max_to_keep`` < 1, or an interval without a counter.
    """

    def __init__(
        self,
        checkpoint: ObjectCheckpoint,
        directory: str,
        max_to_keep: int | None,
        *,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
    ) -> None:
        if max_to_keep is not None and max_to_keep < 1:
            raise ValueError(f"max_to_keep must be positive or None, got {max_to_keep}")
        if checkpoint_interval is not None and step_counter is None:
            raise ValueError("checkpoint_interval needs a step_counter that it is counted by")
        self.checkpoint = checkpoint
        self.directory = str(directory)
        self.checkpoint_interval = checkpoint_interval
        self._max_to_keep = max_to_keep
        self._name = checkpoint_name
        self._step_counter = step_counter
        self._init_fn = init_fn
        self._last_step: int | None = None

    @property
    def checkpoints(self) -> list[str]:
        """Paths of the complete checkpoints of this name, the oldest first."""
        return [info.path for info in numbered_checkpoints(self.directory, self._name)]

    @property
    def latest_checkpoint(self) -> str | None:
        """Path of the newest checkpoint, or None."""
        paths = self.checkpoints
        return paths[-1] if paths else None

    def save(self, checkpoint_number: int | None = None, check_interval: bool = True) -> str | None:
        """Save, and remove the oldest checkpoints beyond ``max_to_keep``.

        Args:
            checkpoint_number: Number of the checkpoint; None means one more than the last.
            check_interval: Whether to save only when ``checkpoint_interval`` has passed.

        Returns:
            The path; None if nothing was saved, since ``checkpoint_interval`` has not passed.
        """
        step = self._step()
        interval = self.checkpoint_interval if check_interval else None
        last = self._last_step
        if interval and step is not None and last is not None and step < last + interval:
            return None
        number = checkpoint_number
        if number is None:
            number = self.checkpoint.save_counter + 1
        self.checkpoint.save_counter = self.checkpoint.agreed(int(number))
        path = f"{self.directory.rstrip('/')}/{self._name}-{self.checkpoint.save_counter}"
        self.checkpoint.write(path)
        self._last_step = step
        if self._max_to_keep is not None and self.checkpoint.writes:
            prune(self.directory, self._max_to_keep, name=self._name, saved=path)
        return path

    def restore_or_initialize(self) -> str | None:
        """Restore the newest checkpoint and return its path; call ``init_fn`` if there is none.

        Raises:
            CheckpointError: The checkpoint is damaged, or has nothing for these objects.
        """
        newest = self.latest_checkpoint
        if newest is None:
            if self._init_fn is not None:
                self._init_fn()
            return None
        self.checkpoint.restore(newest)
        self._last_step = self._step()
        return newest

    def sync(self) -> None:
        """Do nothing: a checkpoint is written when :meth:`save` returns."""

    def _step(self) -> int | None:
        counter = self._step_counter
        if counter is None:
            return None
        return int(counter() if callable(counter) else counter)
