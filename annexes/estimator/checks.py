"""Arguments of an Estimator's methods, checked as TensorFlow checks them."""

from collections.abc import Sequence
from typing import TypeVar

from ...core.errors import ConfigurationError
from .hooks import CheckpointSaverListener, SessionRunHook

_Kind = TypeVar("_Kind")


def check_steps(steps: int | None, max_steps: int | None) -> None:
    """Check that a training can be bounded so.

    Raises:
        ConfigurationError: Both are given, or one is not positive.
    """
    if steps is not None and max_steps is not None:
        raise ConfigurationError("Can not provide both steps and max_steps.")
    if steps is not None and steps <= 0:
        raise ConfigurationError(f"Must specify steps > 0, given: {steps}")
    if max_steps is not None and max_steps <= 0:
        raise ConfigurationError(f"Must specify max_steps > 0, given: {max_steps}")


def check_hooks(hooks: Sequence[SessionRunHook] | None) -> list[SessionRunHook]:
    """Check hooks, and return them.

    Raises:
        TypeError: One is none.
    """
    return all_of(SessionRunHook, hooks, "Hooks must be a SessionRunHook, given: {!r}")


def check_listeners(
    listeners: Sequence[CheckpointSaverListener] | None,
) -> list[CheckpointSaverListener]:
    """Check listeners, and return them.

    Raises:
        TypeError: One is none.
    """
    wanted = "saving_listeners must be CheckpointSaverListener, given: {!r}"
    return all_of(CheckpointSaverListener, listeners, wanted)


def all_of(kind: type[_Kind], given: Sequence[_Kind] | None, message: str) -> list[_Kind]:
    """Check that all objects that were given are of one kind, and list them.

    Args:
        kind: Class of the objects.
        given: Any number of them; None: there are none.
        message: Message of the error, with a place for an object that is of another kind.

    Raises:
        TypeError: One is of another kind.
    """
    objects = list(given or ())
    for item in objects:
        if not isinstance(item, kind):
            raise TypeError(message.format(item))
    return objects
