"""Capped, jittered exponential backoff for everything that tries again.

Jitter spreads the attempts of many workers that wait for the same restarted server.
"""

import random
import threading
from collections.abc import Callable, Iterator

from tenacity import (
    AttemptManager,
    Retrying,
    retry_if_exception_type,
    stop_before_delay,
    stop_when_event_set,
)
from tenacity.nap import sleep_using_event

from .errors import PeerLostError


class Backoff:
    """Waits that grow, for a loop that tries again. Used by one thread.

    A wait is random, between half of a bound and all of it; the bound doubles up to ``max_s``.

    Source: Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015 ("equal jitter").

    Args:
        initial_s: Bound of the first wait. Unit: seconds.
        max_s: Largest bound. Unit: seconds.
    """

    def __init__(self, initial_s: float, max_s: float) -> None:
        self._initial_s = initial_s
        self._max_s = max_s
        self._bound_s = 0.0
        self.reset()

    def next_s(self) -> float:
        """Draw the time to wait before the next attempt. Unit: seconds."""
        bound_s, self._bound_s = self._bound_s, min(self._max_s, self._bound_s * 2)
        return random.uniform(bound_s / 2, bound_s)  # noqa: S311 - jitter, no secret

    def reset(self) -> None:
        """Begin with the first wait again, since an attempt has succeeded."""
        self._bound_s = min(self._initial_s, self._max_s)


def attempts(
    *,
    timeout_s: float,
    initial_s: float = 0.05,
    max_s: float = 2.0,
    retry_on: type[Exception] | tuple[type[Exception], ...] = PeerLostError,
    stop: threading.Event | None = None,
    wake: threading.Event | None = None,
    before_sleep: Callable[[Exception | None], None] | None = None,
) -> Iterator[AttemptManager]:
    """Yield attempts until one succeeds, ``timeout_s`` has passed or ``stop`` is set.

    ::

        for attempt in attempts(timeout_s=30):
            with attempt:
                dial()

    The last failure is raised as it is.

    Args:
        timeout_s: No new attempt begins after this long. Unit: seconds.
        initial_s: Longest first wait. Unit: seconds.
        max_s: Longest wait. Unit: seconds.
        retry_on: Failures worth another attempt; others pass through at once.
        stop: Ends the attempts early.
        wake: Ends a wait early, and is cleared then; what sets ``stop`` sets this, too. None:
            nothing but ``stop`` does.
        before_sleep: Called with the failure before each wait.
    """
    event = stop or threading.Event()
    backoff = Backoff(initial_s, max_s)

    def sleep(seconds: float) -> None:
        if wake is not None:
            wake.wait(seconds)
            wake.clear()

    hook = None
    if before_sleep is not None:
        report = before_sleep

        def hook(state: object) -> None:
            outcome = getattr(state, "outcome", None)
            report(outcome.exception() if outcome is not None else None)

    return iter(
        Retrying(
            retry=retry_if_exception_type(retry_on),
            stop=stop_before_delay(timeout_s) | stop_when_event_set(event),
            wait=lambda _: backoff.next_s(),
            sleep=sleep_using_event(event) if wake is None else sleep,
            before_sleep=hook,
            reraise=True,
        )
    )
