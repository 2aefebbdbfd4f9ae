"""Every so many steps, or so many seconds: when something is due. Pure."""

import time
from collections.abc import Callable

from ...core.errors import ConfigurationError


class SecondOrStepTimer:
    """Says when something is due again. As ``tf.compat.v1.train.SecondOrStepTimer``.

    Args:
        every_secs: Seconds between two times; None: not by seconds.
        every_steps: Steps between two times; None: not by steps.
        clock: The time in seconds.

    Raises:
        ConfigurationError: Both are given, or one is not positive.
    """

    def __init__(
        self,
        every_secs: float | None = None,
        every_steps: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if every_secs is not None and every_steps is not None:
            raise ConfigurationError(
                f"every_secs={every_secs} and every_steps={every_steps}: give one of them"
            )
        for name, value in (("every_secs", every_secs), ("every_steps", every_steps)):
            if value is not None and value <= 0:
                raise ConfigurationError(f"{name}={value}: it must be positive")
        self._every_secs, self._every_steps = every_secs, every_steps
        self._clock = clock
        self._step: int | None = None
        self._at = 0.0

    def is_due(self, step: int) -> bool:
        """Return whether it is time, at the first step as well; never twice in one step."""
        if self._step is None:
            return True
        if step == self._step:
            return False
        if self._every_steps is not None and step >= self._step + self._every_steps:
            return True
        return self._every_secs is not None and self._clock() >= self._at + self._every_secs

    def note(self, step: int) -> tuple[float, int] | None:
        """Note that it was done at this step; returns seconds and steps since the last time, None
        the first time.
        """
        now, before = self._clock(), self._step
        since = None if before is None else (now - self._at, step - before)
        self._step, self._at = step, now
        return since
