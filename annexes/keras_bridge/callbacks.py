"""Choice of the callbacks of ``fit`` for each worker: those that write files run on the chief
alone.
"""

import inspect
import logging
from collections.abc import Callable
from typing import Any

import fsspec

from ...core.backoff import attempts
from ...core.outside_text import read_json
from .frameworks import keras

log = logging.getLogger(__name__)

# -- First epoch of the chief's ``BackupAndRestore``, for the workers beside it ----------------


_FILE = "training_metadata.json"  # as Keras calls it
_MOST_CHARACTERS = 1_000_000
_PATIENCE_S = 1.0  # the chief may be writing it


class LoadedBackup(keras.callbacks.Callback):  # type: ignore[misc]
    """Takes the place of a ``BackupAndRestore`` on a worker in sync other than the chief.

    Such a worker has a copy of the weights, so it loads what the chief loads. It writes nothing.

    Args:
        backup: The program's callback.
    """

    def __init__(self, backup: Any) -> None:
        super().__init__()
        self._backup = backup

    def on_train_begin(self, logs: Any = None) -> None:
        """Load the backup, once per ``fit``."""
        self._backup.set_model(self.model)
        self._backup.on_train_begin(logs)


class EpochOfBackup(keras.callbacks.Callback):  # type: ignore[misc]
    """Takes the place of a ``BackupAndRestore`` on a worker of servers other than the chief.

    It writes nothing. If there is a backup, because the job or this worker alone was restarted,
    ``fit`` begins with the epoch that the backup has; weights are those of the servers. A worker
    that does not see the chief's files begins with its first epoch.

    Args:
        backup_dir: Backup folder of the callback: a path or fsspec URL.
    """

    def __init__(self, backup_dir: Any) -> None:
        super().__init__()
        self._path = f"{str(backup_dir).rstrip('/')}/{_FILE}"

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Read the epoch of the backup, once per ``fit``."""
        try:
            for attempt in attempts(timeout_s=_PATIENCE_S, retry_on=ValueError):
                with attempt:
                    epoch = self._epoch()
        except (ValueError, OSError) as error:
            log.warning("%s cannot be read, so all epochs are made: %s", self._path, error)
            return
        if epoch:
            log.info("beginning with epoch %d, that of %s", epoch + 1, self._path)
            self.model._initial_epoch = epoch

    def _epoch(self) -> int:
        try:
            with fsspec.open(self._path, "r") as file:
                return int(read_json(file.read(_MOST_CHARACTERS))["epoch"])
        except FileNotFoundError:
            return 0
        except KeyError as error:
            raise ValueError(f"it has no {error}") from error


_WRITERS = ("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "RemoteMonitor", "TensorBoard")


def runs_here(callback: Any, *, is_chief: bool) -> bool:
    """Return whether a callback runs on this worker. ``chief_only = True`` makes another one a
    writer.
    """
    writers = tuple(getattr(keras.callbacks, name) for name in _WRITERS)
    return is_chief or not (isinstance(callback, writers) or getattr(callback, "chief_only", False))


def arguments_here(
    fit: Any,
    args: tuple[Any, ...],
    kwargs: Any,
    *,
    is_chief: bool,
    in_sync: bool,
    take_input: Callable[[Any, int | None], Any],
    job: Callable[[int], list[Any]],
) -> Any:
    """Adapt the arguments of a model's ``fit`` to this worker.

    Elsewhere than on the chief writers are left out, and no progress is shown unless it is asked
    for. Callbacks of the program are given ``validation_data``, as Keras once did.

    Args:
        fit: The model's.
        args: Positional arguments that the program gave.
        kwargs: Keyword arguments that the program gave.
        is_chief: Whether writers run here.
        in_sync: Whether each worker has a copy of the weights, in sync with the others'.
        take_input: Makes what Keras takes of data and a number of steps.
        job: Makes the job's callbacks, of the first epoch; they come last.

    Returns:
        ``inspect.BoundArguments``.
    """
    bound = inspect.signature(fit).bind(*args, **kwargs)
    arguments = bound.arguments
    for data, steps in (("x", "steps_per_epoch"), ("validation_data", "validation_steps")):
        if data in arguments:
            arguments[data] = take_input(arguments[data], arguments.get(steps))
    callbacks = arguments.get("callbacks")
    ours = job(arguments.get("initial_epoch", 0))
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks = _chosen(callbacks.callbacks, is_chief=is_chief, in_sync=in_sync)
        for job_callback in ours:
            callbacks.append(job_callback)
            job_callback.set_model(callbacks.model)
        chosen = callbacks.callbacks
    else:
        every = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
        every = [callback for callback in every if callback is not None]
        chosen = _chosen(every, is_chief=is_chief, in_sync=in_sync)
        arguments["callbacks"] = [*chosen, *ours]
    for callback in chosen:
        if not hasattr(callback, "validation_data"):
            callback.validation_data = arguments.get("validation_data")
    if not is_chief and "verbose" in bound.signature.parameters:
        arguments.setdefault("verbose", 0)
    return bound


def _chosen(callbacks: list[Any], *, is_chief: bool, in_sync: bool) -> list[Any]:
    chosen: list[Any] = []
    for callback in callbacks:
        if runs_here(callback, is_chief=is_chief):
            chosen.append(callback)
        elif isinstance(callback, keras.callbacks.BackupAndRestore):
            chosen.append(LoadedBackup(callback) if in_sync else EpochOfBackup(callback.backup_dir))
    return chosen
