"""Running one function on every local replica at once, with ``merge_call`` as the meeting point.

One thread per replica; the caller's thread leads. A merge happens when every replica has called it;
replicas that disagree (one ends while another waits) get an error, not a deadlock.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .context import Frame, ReplicaContext, pop_frame, push_frame
from .values import regroup, select_replica

if TYPE_CHECKING:
    from .strategy import Strategy


class _ReplicaAbortedError(BaseException):
    """Unwinds a waiting replica when another one failed. Not an Exception: programs must not catch it."""


@dataclass(slots=True)
class _Replica:
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None = None
    answer: Any = None
    answered: bool = False
    result: Any = None
    error: BaseException | None = None
    done: bool = False


@dataclass(slots=True)
class _Meeting:
    """One ``run`` in progress."""

    replicas: list[_Replica]
    changed: threading.Condition = field(default_factory=threading.Condition)
    aborted: bool = False

    def abort(self) -> None:
        """Unwind the replicas that wait."""
        with self.changed:
            self.aborted = True
            self.changed.notify_all()


class ReplicaRunner:
    """Runs functions on ``replicas`` replicas of ``strategy``."""

    def __init__(self, strategy: "Strategy", replicas: int) -> None:
        self._strategy = strategy
        self._count = replicas
        self._pool: ThreadPoolExecutor | None = None

    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call ``function`` once per replica with its part of the arguments; regroup the results.

        Raises:
            RuntimeError: Replicas made different numbers of ``merge_call``.
        """
        if self._count == 1:
            return self._run_alone(function, args, kwargs)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="replica")
        meeting = _Meeting([_Replica() for _ in range(self._count)])
        futures: list[Future[None]] = []
        try:
            futures.extend(
                self._pool.submit(self._replica, meeting, i, function, args, kwargs)
                for i in range(self._count)
            )
            self._lead(meeting)
        except BaseException:  # Ctrl-C, too: nobody will hold the merges that replicas wait for
            meeting.abort()
            raise
        finally:
            for future in futures:
                future.result()
        errors = [replica.error for replica in meeting.replicas]
        for error in errors:
            if error is not None and not isinstance(error, _ReplicaAbortedError):
                raise error
        return regroup([replica.result for replica in meeting.replicas])

    def _run_alone(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        frame = Frame(self._strategy, ReplicaContext(self._strategy, 0))
        push_frame(frame)
        try:
            return function(*select_replica(0, args), **select_replica(0, kwargs))
        finally:
            pop_frame(frame)

    def _replica(
        self,
        meeting: _Meeting,
        index: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        me = meeting.replicas[index]

        def merge(fn: Callable[..., Any], a: tuple[Any, ...], k: dict[str, Any]) -> Any:
            with meeting.changed:
                me.call, me.answered = (fn, a, k), False
                meeting.changed.notify_all()
                meeting.changed.wait_for(lambda: me.answered or meeting.aborted)
                if not me.answered:
                    raise _ReplicaAbortedError
                return me.answer

        frame = Frame(self._strategy, ReplicaContext(self._strategy, index, merge))
        push_frame(frame)
        try:
            me.result = function(*select_replica(index, args), **select_replica(index, kwargs))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            me.error = error
        finally:
            pop_frame(frame)
            with meeting.changed:
                me.done = True
                meeting.changed.notify_all()

    def _lead(self, meeting: _Meeting) -> None:
        replicas = meeting.replicas
        while True:
            with meeting.changed:
                meeting.changed.wait_for(lambda: all(r.done or r.call for r in replicas))
                waiting = [i for i, r in enumerate(replicas) if not r.done]
                failed = any(r.error is not None for r in replicas)
                if not waiting:
                    return
                if failed or len(waiting) < len(replicas):
                    meeting.abort()
            if meeting.aborted:
                if failed:
                    return
                raise RuntimeError(
                    f"replicas disagree: {', '.join(map(str, waiting))} called merge_call (or an "
                    "operation that aggregates) and the others ended without; every replica must make "
                    "the same calls in the same order"
                )
            self._merge(meeting)

    def _merge(self, meeting: _Meeting) -> None:
        calls = [replica.call for replica in meeting.replicas if replica.call is not None]
        merge_fn = calls[0][0]
        frame = Frame(self._strategy, None)
        push_frame(frame)
        try:
            args = tuple(
                regroup(list(parts)) for parts in zip(*(call[1] for call in calls), strict=True)
            )
            kwargs = {key: regroup([call[2][key] for call in calls]) for key in calls[0][2]}
            answer = merge_fn(self._strategy, *args, **kwargs)
        finally:
            pop_frame(frame)
        with meeting.changed:
            for index, replica in enumerate(meeting.replicas):
                replica.call = None
                replica.answer, replica.answered = select_replica(index, answer), True
            meeting.changed.notify_all()
