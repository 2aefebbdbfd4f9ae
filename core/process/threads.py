"""Threads of this process: they cannot fail silently, and where they are."""

import gc
import logging
import sys
import threading
from collections.abc import Callable
from types import FrameType

from ..errors import RopewalkError, said_of
from .events import event

log = logging.getLogger(__name__)

# -- Threads that cannot fail silently: an early end is logged and reported to those that wait --
# Python prints the traceback of a thread's exception and goes on without it. A caller that waits
# for that thread then waits for ever, so each thread names here whom its end concerns.


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
            why = said_of(error)
            extra = event("thread.failed", thread=name, error=why)
            log.error("the thread %s has failed: %s", name, why, exc_info=not ours, extra=extra)
            failed(error)

    return threading.Thread(target=run, name=name, daemon=True)


def nobody_waits(error: BaseException) -> None:
    """Do nothing, as ``failed``: no more than the thread is lost."""


# -- Positions of the threads of this process --------------------------------------------------
# CPython before 3.12 reads the frames of all threads under a lock of its runtime. A garbage
# collection that begins meanwhile may want the same lock, to free a ``threading.local``, and then
# no thread of the process ever runs again (python/cpython#106883). So none begins.

_reading = threading.Lock()  # else one thread would allow collections while another one reads


def thread_frames() -> dict[int, FrameType]:
    """Find the current frame of each thread, by the thread's identifier."""
    if sys.version_info >= (3, 12):
        return sys._current_frames()
    with _reading:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if collects:
                gc.enable()


def main_thread_frame() -> FrameType | None:
    """Find the current frame of the main thread; None if it has ended."""
    return thread_frames().get(threading.main_thread().ident or 0)
