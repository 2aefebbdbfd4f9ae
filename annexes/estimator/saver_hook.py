"""CheckpointSaverHook: a program that says by a hook when to save."""

from collections.abc import Sequence
from typing import Any

from ...core.errors import ConfigurationError
from .hooks import (
    CheckpointSaverListener,
    RunningModel,
    SavingElsewhere,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from .run_config import RunConfig
from .timers import SecondOrStepTimer
from .training_target import same_place


class CheckpointSaverHook(SessionRunHook):
    """Says when a training saves, instead of RunConfig. As ``tf.compat.v1.train``'s.

    With the Estimator's model directory a process alone saves when the hook says so; a job does if
    this task joins it in this ``train``, and otherwise as it was started. Another directory gets
    checkpoints of the chief beside those of the model directory.

    Args:
        checkpoint_dir: Path or fsspec URL.
        save_secs: Seconds between two checkpoints.
        save_steps: Or steps.
        saver: TensorFlow's; not used, as all below but ``listeners``.
        checkpoint_basename: Not used: a checkpoint is a folder ``ckpt-<step>``.
        scaffold: Not used.
        listeners: Are told of checkpoints, on the chief.
        save_graph_def: Not used: there is no graph.

    Raises:
        ConfigurationError: Not exactly one of the intervals is given, or no directory; it is a hook
            of an evaluation.
    """

    def __init__(
        self,
        checkpoint_dir: str,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Any = None,  # noqa: ARG002
        checkpoint_basename: str = "model.ckpt",  # noqa: ARG002
        scaffold: Any = None,  # noqa: ARG002
        listeners: Sequence[CheckpointSaverListener] | None = None,
        save_graph_def: bool = True,  # noqa: ARG002
    ) -> None:
        if (save_secs is None) == (save_steps is None):
            raise ConfigurationError(
                f"save_secs={save_secs} and save_steps={save_steps}: give one of them"
            )
        if not checkpoint_dir:
            raise ConfigurationError("checkpoint_dir is empty; give a path: estimator.model_dir")
        self.checkpoint_dir = checkpoint_dir
        self.save_secs, self.save_steps = save_secs, save_steps
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._listeners = list(listeners or ())
        self._elsewhere: SavingElsewhere | None = None

    def after_create_session(self, session: RunningModel, coord: Any) -> None:  # noqa: ARG002
        """Take over, or begin beside it.

        Raises:
            ConfigurationError: Nothing is trained.
            StorageError: The directory cannot be written.
        """
        saving = session.saving
        if saving is None:
            raise ConfigurationError(
                "CheckpointSaverHook is a hook of a training; nothing is saved here"
            )
        self._elsewhere = None
        if same_place(self.checkpoint_dir, saving.model_dir):
            saving.use(self._timer, self._listeners)
        else:
            self._elsewhere = saving.elsewhere(self.checkpoint_dir, self._timer, self._listeners)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        """Save to another directory, if it is time."""
        if self._elsewhere is not None:
            self._elsewhere.after_step(run_values.values["global_step"])

    def end(self, session: RunningModel) -> None:
        """Save there what was not saved yet."""
        if self._elsewhere is not None:
            self._elsewhere.end(session.global_step)


def with_interval_of_hook(
    config: RunConfig, hooks: Sequence[SessionRunHook], model_dir: str
) -> RunConfig:
    """Give RunConfig the interval that a hook of the program says, for a job that is joined now."""
    for hook in hooks:
        if isinstance(hook, CheckpointSaverHook) and same_place(hook.checkpoint_dir, model_dir):
            return config.replace(
                save_checkpoints_secs=hook.save_secs, save_checkpoints_steps=hook.save_steps
            )
    return config
