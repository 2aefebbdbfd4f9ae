"""Positions of the threads of this process.

CPython before 3.12 reads the frames of all threads under a lock of its runtime. A garbage
collection that begins meanwhile may want the same lock, to free a ``threading.local``, and then no
thread of the process ever runs again (python/cpython#106883). So none begins.
"""

import gc
import sys
import threading
from types import FrameType

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
