"""Limit of the workers that have a session with a ps."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ...core.errors import TooManyWorkersError
from ...core.task import TaskId

_CONNECTIONS_PER_SHARE = 4  # two while it upgrades, and those it gave up that are still at work;
# counted together, since one worker whose connection breaks again and again may leave more for a
# moment


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
