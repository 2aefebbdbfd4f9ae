"""Threads that nobody can lose unheard: what ends one early is logged, and whoever waits is told.

Python prints the traceback of a thread's exception and goes on without it. Whoever waits for that
thread then waits for ever, so each says here whom its end concerns.
"""

import logging
import threading
from collections.abc import Callable

from ..errors import WindlassError, said_of

log = logging.getLogger(__name__)

Failed = Callable[[BaseException], object]


def new_thread(name: str, work: Callable[[], object], *, failed: Failed) -> threading.Thread:
    """A daemon thread that calls ``work``, not started yet.

    Args:
        name: Of the thread.
        work: Handles what it expects by itself.
        failed: Told of any other exception, in the thread: ends whatever waits for it.
    """

    def run() -> None:
        try:
            work()
        except BaseException as error:
            ours = isinstance(error, WindlassError)
            log.error("the thread %s has failed: %s", name, said_of(error), exc_info=not ours)
            failed(error)

    return threading.Thread(target=run, name=name, daemon=True)


def nobody_waits(error: BaseException) -> None:
    """For ``failed``: what is lost with the thread is all that happens."""
