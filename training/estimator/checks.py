"""Arguments of an Estimator's methods, checked as TensorFlow checks them."""

from collections.abc import Sequence

from ...core.errors import ConfigurationError
from .hooks import CheckpointSaverListener, SessionRunHook


def check_steps(steps: int | None, max_steps: int | None) -> None:
    """Whether a training can be bounded so.

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
    """Hooks as they were given.

    Raises:
        TypeError: One is none.
    """
    found = list(hooks or ())
    for hook in found:
        if not isinstance(hook, SessionRunHook):
            raise TypeError(f"Hooks must be a SessionRunHook, given: {hook!r}")
    return found


def check_listeners(
    listeners: Sequence[CheckpointSaverListener] | None,
) -> list[CheckpointSaverListener]:
    """Listeners as they were given.

    Raises:
        TypeError: One is none.
    """
    found = list(listeners or ())
    for listener in found:
        if not isinstance(listener, CheckpointSaverListener):
            raise TypeError(
                f"saving_listeners must be CheckpointSaverListener, given: {listener!r}"
            )
    return found
