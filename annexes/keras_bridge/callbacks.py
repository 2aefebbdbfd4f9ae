"""Choice of the callbacks of ``fit`` for each worker: those that write files run on the chief
alone.
"""

import inspect
from collections.abc import Callable
from typing import Any

from .epoch_of_backup import EpochOfBackup, LoadedBackup
from .frameworks import keras

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
