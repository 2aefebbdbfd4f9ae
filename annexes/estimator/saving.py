"""Checkpoints of a training that no job saves, in the form of a job's (docs/checkpoints.md).

Variables in the memory of this process are written with their slots; those of parameter servers in
this process are written as a ps writes them.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...client.ps.parameter_session import ParameterSession
from ...core.checkpoint import CheckpointReader, latest_checkpoint, prune
from ...core.checkpoint.directory import commit_step, remove_incomplete
from ...core.checkpoint.folder import Folder
from ...core.checkpoint.manifest import Manifest, manifest_of_parts
from ...core.checkpoint.storage import check_writable, open_model_dir
from ...core.errors import ConfigurationError
from ...distribute.base.reductions import VariableAggregation, VariableSynchronization
from ...distribute.saved_variables import capture, write_values
from ...distribute.strategies.parameter_server import ParameterServerExtended
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable
from .hooks import (
    CheckpointSaverListener,
    RunningModel,
    SavingElsewhere,
    SecondOrStepTimer,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from .run_config import RunConfig
from .training_target import same_place

if TYPE_CHECKING:
    from .run_config import RunConfig

log = logging.getLogger(__name__)


class CheckpointWriter(Protocol):
    """Writes the values of one checkpoint and returns the manifest that describes them."""

    def __call__(self, folder: Folder, global_step: int, *, final: bool) -> Manifest:
        """Write into ``folder``.

        Raises:
            OSError: The file system refused.
        """


def writer_for(strategy: Strategy, variables: Mapping[str, Variable]) -> CheckpointWriter:
    """Make what writes a strategy's variables.

    Args:
        strategy: Strategy of this process.
        variables: Variables by name; more are added while the model is made.
    """
    extended = strategy.extended
    if isinstance(extended, ParameterServerExtended):
        session = extended.runtime.session
        return lambda folder, step, *, final: _write_servers(session, folder, step, final=final)
    return values_writer(variables)


def values_writer(variables: Mapping[str, Variable]) -> CheckpointWriter:
    """Make what writes variables as this process sees them, with the slots that it has.

    Args:
        variables: Variables by name; grows while the model is made.
    """
    return lambda folder, step, *, final: _write_memory(variables, folder, step, final=final)


def shared_values_writer(variables: Mapping[str, Variable]) -> CheckpointWriter:
    """Make what writes the variables that one task of a job can read by itself.

    Args:
        variables: Variables by name; grows while the model is made. What replicas count for
            themselves is left out: all workers would have to read it together.
    """
    return lambda folder, step, *, final: _write_memory(
        shared_values(variables), folder, step, final=final
    )


def shared_values(variables: Mapping[str, Variable]) -> dict[str, Variable]:
    """Select the variables that one task can read by itself."""
    return {
        name: variable
        for name, variable in variables.items()
        if variable.synchronization is not VariableSynchronization.ON_READ
    }


def _write_memory(
    variables: Mapping[str, Variable], folder: Folder, global_step: int, *, final: bool
) -> Manifest:
    saved = {name: capture(variable) for name, variable in variables.items() if has_value(variable)}
    return write_values(folder, saved, global_step, final=final)


def has_value(variable: Variable) -> bool:
    """Return whether a variable has a value: not ON_READ without aggregation."""
    on_read = variable.synchronization is VariableSynchronization.ON_READ
    return not (on_read and variable.aggregation is VariableAggregation.NONE)


def _write_servers(
    session: ParameterSession, folder: Folder, global_step: int, *, final: bool
) -> Manifest:
    # The server's half, for which a worker of a real cluster has no use.
    from ...distribute.local_ps import LocalPs
    from ...server.ps.saving import save_shards

    session.finish()
    peers = [peer for peer in session.peers if isinstance(peer, LocalPs)]
    for peer in peers:
        peer.take_own_arrays()
    parts = [save_shards(peer.store, folder) for peer in peers]
    return manifest_of_parts(parts, global_step, final=final)


class OwnCheckpoints:
    """Checkpoints that this process writes.

    Args:
        model_dir: Path or fsspec URL.
        write: Writes the values.
        keep: Complete checkpoints kept; 0: all.
    """

    def __init__(self, model_dir: str, write: CheckpointWriter, keep: int) -> None:
        self._model_dir, self._write, self._keep = model_dir, write, keep
        self._folder = open_model_dir(model_dir)

    def prepare(self) -> None:
        """Remove what was left unfinished.

        Raises:
            StorageError: The model directory cannot be written.
        """
        check_writable(self._model_dir, "the Estimator")
        for path in remove_incomplete(self._model_dir):
            log.warning("removed %s: an incomplete checkpoint", path)

    def save(self, global_step: int, *, final: bool = False) -> str:
        """Write a checkpoint and return its path; empty if there is nothing to save.

        Raises:
            StorageError: The directory cannot be written.
        """

        def write(name: str) -> Manifest:
            return self._write(self._folder.subfolder(name), global_step, final=final)

        info = commit_step(self._model_dir, global_step, write, "the Estimator")
        if info is None:
            return ""
        if self._keep:
            prune(self._model_dir, self._keep)
        log.info("Saving checkpoints for %d into %s", global_step, info.path)
        return info.path


def reader_of(path: str) -> CheckpointReader:
    """Open a checkpoint that the caller names.

    Raises:
        CheckpointError: There is none, or it is not whole.
        ConfigurationError: The path is empty.
    """
    if not path:
        raise ConfigurationError("checkpoint_path is empty; give a path, or None for the newest")
    return CheckpointReader(path)


# -- Times at which a training saves, and who is told of it ------------------------------------

_LOOK_S = 0.25  # for checkpoints that the job writes


def timer_of(config: "RunConfig") -> SecondOrStepTimer:
    """Make the timer by which a training of this configuration saves."""
    return SecondOrStepTimer(
        config.save_checkpoints_secs or None, config.save_checkpoints_steps or None
    )


class Checkpoints:
    """Times at which a training saves, and who is told.

    Args:
        model_dir: Directory of the checkpoints. Also an attribute.
        own: Writes them; None: the job does, or another task.
        timer: Timer that says when this process saves; it is due at the first step, which counts as
            saved.
        listeners: Are told, on the chief.
        session: Session of the training.
        save_elsewhere: Makes what writes into another directory; None: nothing does.
    """

    def __init__(
        self,
        model_dir: str,
        own: OwnCheckpoints | None,
        timer: SecondOrStepTimer,
        listeners: list[CheckpointSaverListener],
        session: RunningModel,
        save_elsewhere: Callable[[str], OwnCheckpoints] | None = None,
    ) -> None:
        self.model_dir, self._own = model_dir, own
        self._save_elsewhere = save_elsewhere
        self._listeners, self._session = listeners, session
        self._timer = timer if own is not None else SecondOrStepTimer(every_secs=_LOOK_S)
        self.saved_step = session.global_step

    def begin(self) -> None:
        """Begin before the first step."""
        self._timer.note(self._session.global_step)
        for listener in self._listeners:
            listener.begin()

    def use(self, timer: SecondOrStepTimer, listeners: list[CheckpointSaverListener]) -> None:
        """Let a hook say when to save from the first step on, and who else is told.

        A job that saves by itself does so when it was started to.
        """
        if self._own is not None:
            self._timer = timer
            timer.note(self.saved_step)
        if self._session.is_chief:
            self._listeners += listeners
            for listener in listeners:
                listener.begin()

    def elsewhere(
        self, directory: str, timer: SecondOrStepTimer, listeners: list[CheckpointSaverListener]
    ) -> "Checkpoints | None":
        """Make checkpoints in another directory as well; None: this task writes none.

        Raises:
            StorageError: It cannot be written.
        """
        if self._save_elsewhere is None or not self._session.is_chief:
            return None
        own = self._save_elsewhere(directory)
        own.prepare()
        other = Checkpoints(directory, own, timer, listeners, self._session)
        other.saved_step = self.saved_step
        timer.note(self.saved_step)
        for listener in listeners:
            listener.begin()
        return other

    def after_step(self, step: int) -> None:
        """Save if it is time, or look whether the job has saved."""
        if not self._timer.is_due(step):
            return
        self._timer.note(step)
        if self._own is not None:
            self._save(step)
        elif self._listeners:
            newest = latest_checkpoint(self.model_dir)
            if newest is not None and newest.global_step > self.saved_step:
                self._tell(newest.global_step, before=True)

    def end(self, step: int) -> None:
        """Save what was not saved yet."""
        if self._own is not None and step > self.saved_step:
            self._save(step)
        for listener in self._listeners:
            listener.end(self._session, step)

    def _save(self, step: int) -> None:
        for listener in self._listeners:
            listener.before_save(self._session, step)
        assert self._own is not None  # noqa: S101 - the callers look
        self._own.save(step)
        self._tell(step, before=False)

    def _tell(self, step: int, *, before: bool) -> None:
        self.saved_step = step
        for listener in self._listeners:
            if before:
                listener.before_save(self._session, step)
            if listener.after_save(self._session, step):
                log.info("a listener of checkpoints has asked for the end of the training")
                self._session.request_stop()


# -- CheckpointSaverHook: a program that says by a hook when to save ---------------------------


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
