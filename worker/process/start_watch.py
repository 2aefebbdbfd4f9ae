"""Watching a task while it starts: it is never silent for long, and never stuck for ever.

Every known wait has its own message and limit (``core/process/waiting.py``). This is for the
others: a network folder that does not answer, a lock in a library, a defect of ours. A watcher
samples the position of the thread that starts the task. After a silence it logs that position; if
the thread has not moved for longer than any wait is silent, it ends the task, which a launcher may
restart.
"""

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from ...core.clock import Clock, SystemClock
from ...core.exit_codes import ExitCode
from ...core.process.threads import new_thread, nobody_waits, thread_frames

log = logging.getLogger(__name__)

SILENT_S = 10.0
"""Longest start without a log line; a loaded machine needs a few seconds. Unit: seconds."""

STUCK_S = 180.0
"""Longest stay at one position without a log line; known waits log every minute. Unit: seconds."""

_POLL_S = 1.0
_BUSY_S = 1.0  # of processor time: a task that has used it was not stuck


@dataclass(frozen=True, slots=True)
class ThreadPosition:
    """The position of one thread of a process.

    Attributes:
        stack: The thread's calls, the outermost first: file, line, function.
        cpu_s: Processor time that the process has used.
    """

    stack: tuple[tuple[str, int, str], ...]
    cpu_s: float

    def __str__(self) -> str:
        """Name the innermost call in Ropewalk, or at all: ``net/probes.py:44 (start)``."""
        ours = [call for call in self.stack if "/ropewalk/" in call[0]]
        if not self.stack:
            return "an unknown place"
        file, line, name = (ours or list(self.stack))[-1]
        return f"{file.rpartition('/ropewalk/')[2]}:{line} ({name})"


def thread_position(thread: int) -> ThreadPosition:
    """Find the position of a thread of this process now.

    Args:
        thread: The thread's identifier, as ``threading.get_ident`` returns it.
    """
    frame = thread_frames().get(thread)
    calls = traceback.extract_stack(frame) if frame is not None else []
    stack = tuple((call.filename, call.lineno or 0, call.name) for call in calls)
    return ThreadPosition(stack, time.process_time())


def main_position() -> ThreadPosition:
    """Find the position of this process's main thread now."""
    return thread_position(threading.main_thread().ident or 0)


class Standstill:
    """Decides what to do about a start that is silent. Pure.

    Args:
        now: The time. Unit: seconds.
        place: The position at that time.
    """

    def __init__(self, now: float, place: ThreadPosition) -> None:
        self._place = place
        self._here_since = now
        self._told = now

    def look(self, now: float, place: ThreadPosition, last_line: float) -> tuple[bool, bool]:
        """Compare with the last position.

        Args:
            now: The time. Unit: seconds.
            place: The position at that time.
            last_line: Time of the last log line. Unit: seconds.

        Returns:
            (whether to log the position, whether to end the task)
        """
        moved = place.stack != self._place.stack or place.cpu_s - self._place.cpu_s > _BUSY_S
        if moved:
            self._place, self._here_since = place, now
        if now - max(self._here_since, last_line) >= STUCK_S:
            return True, True
        if now - max(self._told, last_line) < SILENT_S:
            return False, False
        self._told = now + 2 * SILENT_S  # then every half a minute
        return True, False


class StartWatch:
    """Watches this process from :meth:`begin` to :meth:`over`.

    Args:
        task: The task that starts, for messages.
        place: Returns the position of the process.
        end: Called if the task is stuck.
        clock: Clock, replaced in tests.
    """

    def __init__(
        self,
        task: object,
        place: Callable[[], ThreadPosition] = main_position,
        end: Callable[[], None] = lambda: os._exit(int(ExitCode.JOIN_TIMEOUT)),
        clock: Clock | None = None,
    ) -> None:
        self._task = task
        self._look = place
        self._end = end
        self._clock = clock or SystemClock()
        self._over = threading.Event()
        self._last_line = self._began = self._clock.now()
        self._logger = logging.getLogger("ropewalk")
        self._handlers = list(self._logger.handlers)

    def begin(self) -> None:
        """Watch, in a thread."""
        for handler in self._handlers:
            handler.addFilter(self._notice)
        new_thread("start-watch", self._run, failed=nobody_waits).start()

    def over(self) -> None:
        """Stop watching: the task has started, or has failed to. Idempotent."""
        self._over.set()
        for handler in self._handlers:
            handler.removeFilter(self._notice)

    def _notice(self, record: logging.LogRecord) -> bool:
        if record.name != __name__:
            self._last_line = self._clock.now()
        return True

    def _run(self) -> None:
        still = Standstill(self._began, self._look())
        while not self._clock.wait(self._over, _POLL_S):
            now, place = self._clock.now(), self._look()
            tells, ends = still.look(now, place, self._last_line)
            if ends:
                calls = "\n".join(f"  {file}:{line} ({name})" for file, line, name in place.stack)
                log.error(
                    "%s has not moved for %.0f s while it started, and ends; it is at\n%s",
                    self._task,
                    STUCK_S,
                    calls,
                )
                self._end()
                return
            if tells:
                log.warning(
                    "%s has been starting for %.0f s and is at %s; it ends if it stays there for "
                    "%.0f s",
                    self._task,
                    now - self._began,
                    place,
                    STUCK_S,
                )
