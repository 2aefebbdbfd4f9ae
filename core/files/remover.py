"""Folders that are removed in the background, each in its turn.

What a program leaves behind may be large, deep or not removable at all, and whoever has run it has
better things to do: a thread of its own removes it, a second of one folder after a second of
another. If the thread fails or hangs, nobody waits for it; at the end of the process it just stops.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ..process.threads import new_thread, nobody_waits
from .tree_removal import Remains, remove_for

log = logging.getLogger(__name__)

TURN_S = 1.0
_PATIENCE_S = 600.0  # of all turns of a folder into which a process goes on writing

_Task = Callable[[], bool]  # a turn; True: it is over


class Remover:
    """Removes folders in a thread that ends when none is left. Thread-safe.

    Args:
        remove_for: The function of :mod:`~ropewalk.core.files.tree_removal`; tests replace it.
    """

    def __init__(self, remove_for: Callable[[float, Path], Remains | None] = remove_for) -> None:
        self._remove_for = remove_for
        self._lock = threading.Lock()
        self._waiting: deque[_Task] = deque()
        self._thread: threading.Thread | None = None

    def remove(self, path: Path, then: Callable[[], object] | None = None) -> threading.Event:
        """Remove a folder later; returns an event that is set when this is over.

        Args:
            path: Path of the folder. A missing one counts as removed.
            then: Called afterwards in the thread, even if something is left.
        """
        over = threading.Event()
        until = time.monotonic() + _PATIENCE_S

        def turn() -> bool:
            goes_on = False
            try:
                remains = self._remove_for(TURN_S, path)
                in_time = time.monotonic() < until
                goes_on = remains is not None and remains.error is None and in_time
                if remains is not None and not goes_on and path.exists():
                    log.warning("%s", _sentence(path, remains))
            finally:
                if not goes_on:
                    if then is not None:
                        then()
                    over.set()
            return not goes_on

        self.add(turn)
        return over

    def add(self, turn: _Task) -> None:
        """Have ``turn`` called in the thread, again and again until it says that it is over."""
        with self._lock:
            self._waiting.append(turn)
            if self._thread is None or not self._thread.is_alive():  # it is not, in a fork
                # The next one to be removed starts it anew.
                self._thread = new_thread("remover", self._run, failed=nobody_waits)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                turn = self._waiting.popleft()
            if not _is_over(turn):
                with self._lock:
                    self._waiting.append(turn)


def _is_over(turn: _Task) -> bool:
    try:
        return turn()
    except Exception:
        log.exception("a folder could not be removed")
        return True


def _sentence(path: Path, remains: Remains) -> str:
    again = "the next process of its kind tries again"
    if remains.error is None:
        return f"{path} was not removed in {_PATIENCE_S:g} s, something writes into it; {again}"
    error = remains.error
    what = f"{error.filename!r}: {error.strerror or error}"
    more = f" and {remains.stuck - 1} more" if remains.stuck > 1 else ""
    return f"{path} cannot be removed: {what}{more}; {again}"
