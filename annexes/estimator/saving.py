"""Checkpoints of a training that no job saves, in the form of a job's (docs/checkpoints.md).

Variables in the memory of this process are written with their slots; those of parameter servers in
this process are written as a ps writes them.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from ...client.ps.parameter_session import ParameterSession
from ...core.checkpoint import CheckpointReader, prune
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
