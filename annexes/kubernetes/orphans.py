"""Orphans: processes whose parent has ended, and which the first process of a container inherits.

A process that ends stays in the system's table until its parent has asked for its exit status. In a
container the parent of orphans is the container's own process, so that one has to ask.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ...core.process.threads import new_thread, nobody_waits
from ...launch.processes.process import TaskProcess

_POLL_S = 0.1


def end_children(timeout_s: float) -> None:
    """Kill every child of this process and what it inherits from them, and wait for their ends.

    Args:
        timeout_s: Longest time to wait. Unit: seconds.
    """
    until = time.monotonic() + timeout_s
    while (left := _running_children()) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S / 10)


def _running_children() -> set[int]:
    """Find the children of this process that have not ended."""
    own, children = os.getpid(), set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it is gone
            # The name in parentheses may have any bytes; state and parent are the words behind it.
            state, parent = entry.read_bytes().rpartition(b")")[2].split()[:2]
            if int(parent) == own and state != b"Z":
                children.add(int(entry.parent.name))
    return children


class Reaper:
    """Asks for the exit status of orphans, in a thread."""

    def __init__(self) -> None:
        self._own: set[int] = set()
        self._starting = threading.Lock()
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin."""
        new_thread("reaper", self._reap, failed=nobody_waits).start()

    def stop(self) -> None:
        """End soon."""
        self._stop.set()

    def own(self, start: Callable[[], TaskProcess]) -> TaskProcess:
        """Start a process whose status is asked for elsewhere."""
        with self._starting:  # it may have ended when this returns
            process = start()
            self._own.add(process.process.pid)
        return process

    def _reap(self) -> None:
        while not self._stop.is_set():
            if not self._reap_one():
                self._stop.wait(_POLL_S)

    def _reap_one(self) -> bool:
        """Ask for the status of one orphan that has ended; False: there is none."""
        with self._starting:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            except ChildProcessError:
                return False
            if ended is None or ended.si_pid in self._own:
                return False
            with contextlib.suppress(ChildProcessError):
                os.waitpid(ended.si_pid, os.WNOHANG)
            return True
