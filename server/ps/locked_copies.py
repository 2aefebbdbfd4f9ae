"""Copying rows that pushes may change meanwhile: some at a time, so that no push waits for long."""

import threading
import time
from collections.abc import Callable

LOCKED_BYTES = 512 * 1024  # copied at a time: 0.1 ms under the lock
PAUSE_S = 50e-6  # without it: who waits for the lock would find it taken again


def copy_in_parts(
    lock: threading.Lock, rows: int, row_bytes: int, copy: Callable[[slice], None]
) -> None:
    """Copy rows, some at a time under a lock, with a pause between for others who want the lock.

    Args:
        lock: The lock of the rows.
        rows: Number of rows.
        row_bytes: Bytes that are copied of one.
        copy: Copies rows ``[start, stop)`` of a slice.
    """
    step = max(1, LOCKED_BYTES // max(1, row_bytes))
    for start in range(0, rows, step):
        if start:
            time.sleep(PAUSE_S)
        with lock:
            copy(slice(start, min(start + step, rows)))
