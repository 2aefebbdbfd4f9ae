"""Threads that cannot fail silently: an early end is logged and reported to those that wait.

Python prints the traceback of a thread's exception and goes on without it. A caller that waits for
that thread then waits for ever, so each thread names here whom its end concerns.
"""

import logging
import threading
from collections.abc import Callable

from ..errors import RopewalkError, said_of

log = logging.getLogger(__name__)

Failed = Callable[[BaseException], object]


def new_thread(name: str, work: Callable[[], object], *, failed: Failed) -> threading.Thread:
    """Make a daemon thread that calls ``work``, not started yet.

    Args:
        name: Name of the thread.
        work: Function that the thread runs; it handles the exceptions that it expects itself.
        failed: Called in the thread with any other exception; ends whatever waits for the thread.
    """

    def run() -> None:
        try:
            work()
        except BaseException as error:
            ours = isinstance(error, RopewalkError)
            log.error("the thread %s has failed: %s", name, said_of(error), exc_info=not ours)
            failed(error)

    return threading.Thread(target=run, name=name, daemon=True)


def nobody_waits(error: BaseException) -> None:
    """Do nothing, as ``failed``: no more than the thread is lost."""
