"""Capped, jittered exponential backoff for everything that dials.

Jitter spreads the attempts of many workers that wait for the same restarted server.
"""

import random
import threading
from collections.abc import Callable, Iterator

from tenacity import (
    AttemptManager,
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_before_delay,
    stop_when_event_set,
)
from tenacity.nap import sleep_using_event

from .errors import PeerLostError


def attempts(
    *,
    timeout_s: float,
    initial_s: float = 0.05,
    max_s: float = 2.0,
    retry_on: type[Exception] | tuple[type[Exception], ...] = PeerLostError,
    stop: threading.Event | None = None,
    before_sleep: Callable[[Exception | None], None] | None = None,
) -> Iterator[AttemptManager]:
    """Attempts until one succeeds, ``timeout_s`` has passed or ``stop`` is set.

    ::

        for attempt in attempts(timeout_s=30):
            with attempt:
                dial()

    The last failure is raised as it is.

    Args:
        timeout_s: No new attempt begins after this long. Unit: seconds.
        initial_s: First wait. Unit: seconds.
        max_s: Longest wait. Unit: seconds.
        retry_on: Failures worth another attempt; others pass through at once.
        stop: Ends the waiting early.
        before_sleep: Called with the failure before each wait.
    """
    event = stop or threading.Event()

    # Our own function: tenacity's exponential waits changed their arguments within 9.x.
    def wait(state: RetryCallState) -> float:
        grown = initial_s * 2.0 ** min(state.attempt_number - 1, 32)
        return min(max_s, grown + random.uniform(0, initial_s))  # noqa: S311 - jitter, no secret

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
            wait=wait,
            sleep=sleep_using_event(event),
            before_sleep=hook,
            reraise=True,
        )
    )
