"""Which callbacks of ``fit`` run on which worker: those that write files run on the chief alone."""

import inspect
from typing import Any

from .extras import require

keras: Any = require("keras", "keras")

_WRITERS = ("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "RemoteMonitor", "TensorBoard")


def runs_here(callback: Any, *, is_chief: bool) -> bool:
    """Whether a callback runs on this worker. ``chief_only = True`` makes another one a writer."""
    writers = tuple(getattr(keras.callbacks, name) for name in _WRITERS)
    return is_chief or not (isinstance(callback, writers) or getattr(callback, "chief_only", False))


def arguments_here(fit: Any, args: tuple[Any, ...], kwargs: Any, *, is_chief: bool) -> Any:
    """The arguments of a model's ``fit`` for this worker.

    Elsewhere than on the chief writers are left out, and no progress is shown unless it is asked
    for.

    Returns:
        ``inspect.BoundArguments``.
    """
    bound = inspect.signature(fit).bind(*args, **kwargs)
    if is_chief:
        return bound
    given = bound.arguments.get("callbacks")
    if isinstance(given, keras.callbacks.CallbackList):
        given.callbacks = [c for c in given.callbacks if runs_here(c, is_chief=False)]
    elif given is not None:
        every = given if isinstance(given, (list, tuple)) else [given]
        chosen = [callback for callback in every if runs_here(callback, is_chief=False)]
        bound.arguments["callbacks"] = chosen
    if "verbose" in bound.signature.parameters:
        bound.arguments.setdefault("verbose", 0)
    return bound
