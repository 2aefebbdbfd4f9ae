"""The end of a process whose closure does not end in time, whatever it is doing."""

import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager

# The coordinator has said so by then, and a closure that is a little late keeps its process.
GRACE_S = 1.0


@contextmanager
def ends_process_after(deadline_s: float, may_end_process: bool) -> Iterator[None]:
    """End this process if what is done here takes too long, with the stacks of its threads.

    The watch is a thread that needs no lock of Python's: it ends a loop in C as well.

    Args:
        deadline_s: Deadline that came with the closure; 0: none. Unit: seconds.
        may_end_process: False: nothing is done.
    """
    if not deadline_s or not may_end_process:
        yield
        return
    faulthandler.dump_traceback_later(deadline_s + GRACE_S, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
