"""How many workers may have a session with a ps."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ...core.errors import TooManyWorkersError
from ...core.task import TaskId

CONNECTIONS_PER_WORKER = 4  # two while it upgrades, and those it gave up that are still at work;
# counted together, since one worker whose connection breaks again and again may leave more for a
# moment


class SessionLimiter:
    """Counts workers that have a session against their limit. Thread-safe.

    A worker has two for a moment when it upgrades to a better connection, or comes back before we
    know that its last session is dead; it is not in its own way.

    Args:
        task: The ps, for messages.
        limit: Most workers.
        kind: What they are, for messages.
        allowed: What allows so many, for messages; empty: ``max_sessions``.
    """

    def __init__(self, task: TaskId, limit: int, kind: str = "workers", allowed: str = "") -> None:
        self._task = task
        self._limit = limit
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
        """A session of a worker, for as long as it lasts.

        Raises:
            TooManyWorkersError: There are too many workers, or connections in all.
        """
        with self._lock:
            workers, connections = len(self._sessions), self._sessions.total()
            is_new = worker not in self._sessions
            full = connections >= CONNECTIONS_PER_WORKER * self._limit
            if full or (is_new and workers >= self._limit):
                raise TooManyWorkersError(
                    f"{self._task} has {connections} sessions of {workers} {self._kind} already "
                    f"({self._allowed} {self._kind}, {CONNECTIONS_PER_WORKER} for "
                    f"each on average), so {worker} is refused; raise WINDLASS_MAX_SESSIONS on the "
                    f"ps, or run fewer {self._kind}",
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
