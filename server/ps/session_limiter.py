"""Limits of the sessions with a ps: places for workers, and memory for steps and layouts.

A session carries out one step at a time, and has a bound for its layouts; but one caller may have
many sessions. So the bytes of a caller's steps are counted together, and one that would be too much
waits until another step of the same caller has ended. Nobody waits for another caller.

A step that is alone always fits: it has a bound of its own. Small steps and small answers are not
counted: a client may send those one after the other, and read them so, and a wait of one for
another would not end.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from ...core.errors import LimitExceededError, TooManyWorkersError
from ...core.settings import Settings
from ...core.task import TaskId

_CONNECTIONS_PER_SHARE = 4  # two while it upgrades, and those it gave up that are still at work;
# counted together, since one worker whose connection breaks again and again may leave more for a
# moment
_SMALL_BYTES = 1024 * 1024
_LOOK_S = 1.0  # how soon a caller that has gone gives up its turn
_SESSIONS = 2  # whose layouts one caller may have: those of a session that broke, and of the next

LAYOUT_MESSAGES = 16
"""Most memory that the layouts of a session take. Unit: ``max_message_bytes``."""


def connections_per_worker(shares: int) -> int:
    """Count the connections that a worker may have with a ps, on average over all workers.

    Args:
        shares: All shares of the job, which one ps may come to lead; 0: it has its own alone.
    """
    return _CONNECTIONS_PER_SHARE * max(1, shares)


class SessionLimiter:
    """Counts workers that have a session against their limit. Thread-safe.

    One worker has half of all sessions at most, so that it cannot keep the others out.

    A worker has two for a moment when it upgrades to a better connection, or comes back before we
    know that its last session is dead; it is not in its own way.

    Args:
        task: The ps, for messages.
        limit: Most workers.
        per_worker: Most sessions for each of them, on average.
        kind: Name of what is counted, for messages.
        allowed: Setting that allows so many, for messages; empty: ``max_sessions``.
    """

    def __init__(
        self,
        task: TaskId,
        limit: int,
        per_worker: int = _CONNECTIONS_PER_SHARE,
        kind: str = "workers",
        allowed: str = "",
    ) -> None:
        self._task = task
        self._limit = limit
        self.per_worker = per_worker
        self._kind = kind
        self._allowed = allowed or f"max_sessions={limit}"
        self._lock = threading.Lock()
        self._sessions: Counter[TaskId] = Counter()

    @property
    def task(self) -> TaskId:
        """The ps."""
        return self._task

    @property
    def count(self) -> int:
        """Workers that have a session."""
        with self._lock:
            return len(self._sessions)

    @contextmanager
    def session(self, worker: TaskId) -> Iterator[None]:
        """Count a session of a worker, for as long as it lasts.

        Raises:
            TooManyWorkersError: There are too many workers, or connections in all.
        """
        with self._lock:
            workers, connections = len(self._sessions), self._sessions.total()
            is_new = worker not in self._sessions
            most = self.per_worker * self._limit
            full = connections >= most
            is_greedy = self._sessions[worker] >= max(self.per_worker, most // 2)
            if full or is_greedy or (is_new and workers >= self._limit):
                raise TooManyWorkersError(
                    f"{self._task} has {connections} sessions of {workers} {self._kind} already "
                    f"({self._allowed} {self._kind}, {self.per_worker} for each on average), so "
                    f"{worker} is refused; raise ROPEWALK_MAX_SESSIONS on the ps, or run fewer "
                    f"{self._kind}",
                    limit="max_sessions",
                    value=self._limit,
                )
            self._sessions[worker] += 1
        try:
            yield
        finally:
            with self._lock:
                self._sessions[worker] -= 1
                self._sessions += Counter()  # forget zeros


class SessionRoom:
    """Memory that one session takes. Used by one thread; see :class:`StepRoom`."""

    def __init__(
        self, room: "StepRoom", caller: Hashable, is_there: Callable[[], bool] = lambda: True
    ) -> None:
        self._room = room
        self._caller = caller
        self._is_there = is_there
        self._step_bytes = 0
        self._layout_bytes = 0

    def begin_step(self, num_bytes: int) -> None:
        """Count a step's bytes, once there is room for them.

        Raises:
            LimitExceededError: There was none in time.
            ConnectionError: The caller has gone.
        """
        counted = _counted(num_bytes)
        if counted:
            self._room.wait(self._caller, counted, self._is_there)
        self._step_bytes = counted

    def keep(self, num_bytes: int) -> None:
        """Give back what the step under way needs no more; 0: it has ended."""
        kept = min(self._step_bytes, _counted(num_bytes))
        self._room.give_back(self._caller, self._step_bytes - kept)
        self._step_bytes = kept

    def set_layouts(self, num_bytes: int) -> None:
        """Count the bytes of the session's layouts.

        Raises:
            LimitExceededError: The caller has too many.
        """
        self._room.add_layouts(self._caller, num_bytes - self._layout_bytes)
        self._layout_bytes = num_bytes

    def close(self) -> None:
        """Give everything back."""
        self.keep(0)
        self.set_layouts(0)


class StepRoom:
    """Counts what all sessions with a ps take, by caller. Thread-safe.

    Args:
        task: The ps, for messages.
        settings: ``max_step_bytes`` for the steps of one caller that are under way,
            ``request_timeout_s`` for their wait, and ``max_message_bytes`` for layouts.
    """

    def __init__(self, task: TaskId, settings: Settings) -> None:
        self._task = task
        self._most = settings.max_step_bytes
        self._most_layouts = _SESSIONS * LAYOUT_MESSAGES * settings.max_message_bytes
        self._timeout_s = settings.request_timeout_s
        self._changed = threading.Condition()
        self._steps: Counter[Hashable] = Counter()
        self._layouts: Counter[Hashable] = Counter()

    @contextmanager
    def session(self, caller: Hashable, is_there: Callable[[], bool]) -> Iterator[SessionRoom]:
        """Count what a session of a caller takes, for as long as it lasts.

        Args:
            caller: Identity of the caller; sessions of equal ones are counted together.
            is_there: Returns whether the caller still waits for an answer.
        """
        room = SessionRoom(self, caller, is_there)
        try:
            yield room
        finally:
            room.close()

    def wait(self, caller: Hashable, num_bytes: int, is_there: Callable[[], bool]) -> None:
        """Take bytes for a step; see :meth:`SessionRoom.begin_step`."""
        until = time.monotonic() + self._timeout_s
        with self._changed:
            while not self._fits(caller, num_bytes):
                if not is_there():
                    raise ConnectionError("the caller left while its step waited for another one")
                left_s = until - time.monotonic()
                if left_s <= 0:
                    raise self._too_much(caller, num_bytes)
                self._changed.wait(min(left_s, _LOOK_S))
            self._steps[caller] += num_bytes

    def _fits(self, caller: Hashable, num_bytes: int) -> bool:
        taken = self._steps[caller]
        return not taken or taken + num_bytes <= self._most

    def _too_much(self, caller: Hashable, num_bytes: int) -> LimitExceededError:
        return LimitExceededError(
            f"{self._task}: a step of {num_bytes} bytes has waited {self._timeout_s:g} s for other "
            f"steps of {caller}, which have {self._steps[caller]} bytes under way, of "
            f"max_step_bytes={self._most} for all sessions of one caller; raise "
            "ROPEWALK_MAX_STEP_BYTES on the ps, or use fewer sessions at the same time",
            task=self._task,
            limit="max_step_bytes",
            value=self._most,
        )

    def give_back(self, caller: Hashable, num_bytes: int) -> None:
        """Give back bytes of a step."""
        if num_bytes:
            with self._changed:
                self._steps[caller] -= num_bytes
                self._steps += Counter()  # forget zeros
                self._changed.notify_all()

    def add_layouts(self, caller: Hashable, num_bytes: int) -> None:
        """Count more bytes of layouts, or less; see :meth:`SessionRoom.set_layouts`."""
        with self._changed:
            total = self._layouts[caller] + num_bytes
            if num_bytes > 0 and total > self._most_layouts:
                raise LimitExceededError(
                    f"{self._task}: the sessions of {caller} have sent layouts of {total} bytes, "
                    f"more than {self._most_layouts}; push and pull the same sets of variables "
                    "from step to step, or use fewer sessions at the same time",
                    task=self._task,
                    limit="layouts",
                    value=total,
                )
            self._layouts[caller] = total
            self._layouts += Counter()  # forget zeros


def _counted(num_bytes: int) -> int:
    return num_bytes if num_bytes > _SMALL_BYTES else 0
