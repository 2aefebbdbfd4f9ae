"""Files of a distributed Keras model: the chief alone writes them, each whole or not at all.

Every worker runs the program, and with it ``model.save("model.keras")``: two that write one archive
at once leave a file that nobody can read.
"""

import inspect
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ...distribute.strategies.strategy import Strategy
from ...training.saving import save

log = logging.getLogger(__name__)

METHODS = ("save", "save_weights", "export")
_ONE_FILE = (".keras", ".h5", ".hdf5")  # endings; other files and folders Keras writes in place


def write(
    name: str,
    model: Any,
    strategy: Strategy,
    tell: Callable[[], None],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Keras' method of that name, on the chief.

    Args:
        name: Name of the method, one of :data:`METHODS`.
        model: Model whose file it is.
        strategy: Strategy of the model.
        tell: Says what a file with the optimizer's state lacks of it.
        args: Positional arguments of the program's call.
        kwargs: Keyword arguments of the program's call.
    """
    method = getattr(type(model), name).__get__(model)
    if not strategy.should_save:
        log.debug("%s.%s: the chief writes it", model.name, name)
        return None
    if name != "export":
        tell()
    bound = inspect.signature(method).bind(*args, **kwargs)
    target: Any = bound.arguments.get("filepath")
    if not _is_one_file(target, bound.arguments):
        return method(*bound.args, **bound.kwargs)

    def write_to(path: Path) -> None:
        bound.arguments["filepath"] = str(path)
        method(*bound.args, **bound.kwargs)

    save(target, write_to, strategy=strategy)
    return None


def writers(model: Any, strategy: Strategy, tell: Callable[[], None]) -> dict[str, Any]:
    """Make what stands in front of the model's methods that write files, by name."""
    return {
        name: partial(write, name, model, strategy, tell)
        for name in METHODS
        if hasattr(type(model), name)
    }


def _is_one_file(target: Any, arguments: Any) -> bool:
    """Return whether a call writes one file of this machine, without a question to a person."""
    if not isinstance(target, str | Path) or "://" in str(target):
        return False
    if arguments.get("max_shard_size") is not None or arguments.get("zipped") is False:
        return False
    if not arguments.get("overwrite", True) and Path(target).exists():
        return False
    return str(target).endswith(_ONE_FILE)
