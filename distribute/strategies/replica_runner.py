"""Running one function on every local replica at once, with ``merge_call`` as the meeting point.

The first replica runs in the caller's thread, each other one in a thread of its own that waits for the next
step; if the caller is through before that thread is awake, it runs the other replica, too. Whoever comes to a
merge last carries it out for all: to wake a thread is what a step costs (0.01 ms on a machine of one's own,
0.1 ms on an idle virtual one), and nothing is woken that has nothing to do. Replicas that disagree (one
ends, or calls something else, while another waits) get an error that shows where each of them is, not a
deadlock.
"""

import contextvars
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..base.contexts import Frame, Merging, ReplicaContext, code_of, entered, is_running
from ..base.devices import is_gpu, on_device
from ..base.values import is_variable, regroup, select_replica

if TYPE_CHECKING:
    from .strategy import Strategy

_OURS = str(Path(__file__).parents[1])
_SHOWN_FRAMES = 6


class _ReplicaAbortedError(BaseException):
    """Unwinds a waiting replica when another one failed. Not an Exception: programs must not catch it."""


@dataclass(slots=True)
class _Call:
    """A replica waits here in a merge."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def key(self) -> tuple[object, ...]:
        """What must agree between replicas: the code, and the variable it belongs to."""
        if isinstance(self.function, Merging):
            return code_of(self.function.function), *self.function.agreed
        owner = getattr(self.function, "__self__", None)
        return code_of(self.function), id(owner) if is_variable(owner) else 0


def _closed_gate() -> threading.Lock:
    gate = threading.Lock()
    gate.acquire()
    return gate


_LISTEN_S = 0.1


@dataclass(slots=True)
class _Place:
    """One replica's place in a meeting."""

    gate: threading.Lock = field(default_factory=_closed_gate)
    finished: threading.Lock = field(default_factory=_closed_gate)
    is_through: bool = False
    thread: int = 0
    call: _Call | None = None
    answer: Any = None
    result: Any = None


class _Meeting:
    """One ``run`` in progress."""

    def __init__(self, runner: "ReplicaRunner", count: int) -> None:
        self._runner = runner
        self._lock = threading.Lock()
        self.places = [_Place() for _ in range(count)]
        self._unclaimed = set(range(1, count))
        self._waiting = 0
        self._ended = 0
        self._aborted = False
        self.failure: BaseException | None = None

    def claim(self, index: int) -> bool:
        """Take on a replica; False if another thread has."""
        with self._lock:
            if index not in self._unclaimed:
                return False
            self._unclaimed.remove(index)
            return True

    @property
    def interrupted(self) -> bool:
        """Whether the program is to stop (Ctrl-C, an exit): what has not begun does not begin."""
        return self.failure is not None and not isinstance(self.failure, Exception)

    def interrupt(self, error: BaseException) -> None:
        """The caller was interrupted while it waited: nobody shall wait in a merge any more."""
        with self._lock:
            self.failure = self.failure or error
            self._abort()

    def merge(
        self,
        index: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Wait for the others; the last one to come merges."""
        place, call = self.places[index], _Call(function, args, kwargs)
        with self._lock:
            if self._aborted:
                raise _ReplicaAbortedError
            place.call = call
            self._waiting += 1
            all_here = self._waiting + self._ended == len(self.places)
            if all_here and self._disagree():
                self._abort()
            calls = [place.call for place in self.places if place.call is not None]
        if all_here and len(calls) == len(self.places):
            self._carry_out(calls)
        else:
            try:
                place.gate.acquire()
            except BaseException as error:
                self.interrupt(error)
                raise
        if self._aborted:
            raise _ReplicaAbortedError
        answer, place.answer = place.answer, None
        return answer

    def end(self, error: BaseException | None) -> None:
        """A replica is through, or failed."""
        with self._lock:
            self._ended += 1
            if error is not None:
                if not isinstance(error, _ReplicaAbortedError):
                    self.failure = self.failure or error
                self._abort()
            elif self._waiting and self._waiting + self._ended == len(self.places):
                self._disagree()
                self._abort()

    def _abort(self) -> None:
        self._aborted = True
        for place in self.places:
            if place.call is not None:
                place.call = None
                place.gate.release()
        self._waiting = 0

    def _disagree(self) -> bool:
        """Whether the replicas are not all in one and the same merge; says where they are."""
        calls = [place.call for place in self.places]
        keys = {call.key for call in calls if call is not None}
        if self._ended == 0 and len(keys) == 1:
            return False
        waiting = [i for i, call in enumerate(calls) if call is not None]
        what = (
            f"{', '.join(map(str, waiting))} called merge_call (or an operation that aggregates) and the "
            "others ended without"
            if self._ended
            else "they wait in different merge calls (or operations that aggregate)"
        )
        stacks = sys._current_frames()
        shown = "\n".join(
            f"replica {i} {'is at' if call is not None else 'has ended'}"
            + (f":\n{_stack_of(stacks.get(place.thread))}" if call is not None else "")
            for i, (place, call) in enumerate(zip(self.places, calls, strict=True))
        )
        stacks.clear()  # this frame is in it
        self.failure = self.failure or RuntimeError(
            f"replicas disagree: {what}; every replica must make the same calls in the same order\n{shown}"
        )
        return True

    def _carry_out(self, calls: list[_Call]) -> None:
        strategy = self._runner.strategy
        try:
            with entered(Frame(strategy, None)):
                args = tuple(
                    regroup(list(parts)) for parts in zip(*(c.args for c in calls), strict=True)
                )
                kwargs = {key: regroup([c.kwargs[key] for c in calls]) for key in calls[0].kwargs}
                answer = calls[0].function(strategy, *args, **kwargs)
            for index, place in enumerate(self.places):
                place.answer = select_replica(index, answer)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            with self._lock:
                self.failure = self.failure or error
                self._abort()
            return
        with self._lock:
            if self._aborted:
                return  # the caller was interrupted, and has gone
            self._waiting = 0
            for place in self.places:
                place.call = None
        mine = threading.get_ident()
        for place in self.places:
            if place.thread != mine:
                place.gate.release()


class _Thread:
    """Runs one replica per step, if nobody else has by the time it is awake; ends with its runner."""

    def __init__(self, name: str) -> None:
        self._go = _closed_gate()
        self._work: Callable[[], None] | None = None
        self._ended = False
        threading.Thread(target=self._loop, name=name, daemon=True).start()

    def start(self, work: Callable[[], None]) -> None:
        self._work = work
        self._wake()

    def stop(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # it is on its way already, and will find the newest work
            self._go.release()

    def _loop(self) -> None:
        while True:
            self._go.acquire()
            if self._ended:
                return
            work, self._work = self._work, None
            if work is not None:
                work()
            del work  # what a step used must not live until the next one


def _stop(threads: list[_Thread]) -> None:
    for thread in threads:
        thread.stop()


_runners: "weakref.WeakSet[ReplicaRunner]" = weakref.WeakSet()


def _after_fork() -> None:
    for runner in list(_runners):
        runner.forget_threads()


os.register_at_fork(after_in_child=_after_fork)


class ReplicaRunner:
    """Runs functions on the local replicas of ``strategy``, one run at a time.

    Args:
        strategy: Whose replicas these are.
        devices: One per local replica.
        first_id: Number of the first of them among those in sync.
    """

    def __init__(self, strategy: "Strategy", devices: tuple[str, ...], first_id: int = 0) -> None:
        self._strategy = weakref.ref(strategy)
        self._devices = devices
        self._first_id = first_id
        self._busy = threading.Lock()
        self._threads: list[_Thread] = []
        _runners.add(self)

    def forget_threads(self) -> None:
        """In a forked process: there are none there, and nobody is busy."""
        self._busy, self._threads = threading.Lock(), []

    @property
    def strategy(self) -> "Strategy":
        """Whose replicas these are."""
        strategy = self._strategy()
        assert strategy is not None  # noqa: S101 - it is running this
        return strategy

    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call ``function`` once per replica with its part of the arguments; regroup the results.

        Raises:
            RuntimeError: Replicas did not make the same merge calls, or this is called in a merge of them.
        """
        if is_running(self.strategy):
            # The replicas wait for the merge that would wait for them.
            raise RuntimeError(
                "strategy.run inside merge_call (or update) of strategy.run; call the function itself"
            )
        if len(self._devices) == 1:
            return self._run_alone(function, args, kwargs)
        with self._busy:
            return self._run_all(function, args, kwargs)

    def _run_alone(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        strategy = self.strategy
        device = self._devices[0]
        context = ReplicaContext(strategy, self._first_id)
        with (
            entered(Frame(strategy, context)),
            on_device(device) if is_gpu(device) else nullcontext(),
        ):
            return function(*select_replica(0, args, 1), **select_replica(0, kwargs, 1))

    def _run_all(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not self._threads:
            self._threads = [_Thread(f"replica-{index}") for index in range(1, len(self._devices))]
            weakref.finalize(self, _stop, self._threads)
        count = len(self._devices)
        meeting = _Meeting(self, count)
        strategy = self.strategy

        def work(index: int) -> None:
            place = meeting.places[index]
            place.thread = threading.get_ident()

            merge = partial(meeting.merge, index)
            context = ReplicaContext(strategy, self._first_id + index, merge, index)
            failure: BaseException | None = None
            try:
                with entered(Frame(strategy, context)), on_device(self._devices[index]):
                    place.result = function(
                        *select_replica(index, args, count), **select_replica(index, kwargs, count)
                    )
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                failure = error
            finally:
                meeting.end(failure)
                del failure  # its traceback holds this frame

        def work_in_thread(index: int, scope: contextvars.Context) -> None:
            if meeting.claim(index):
                try:
                    if not meeting.interrupted:
                        scope.run(work, index)
                finally:
                    meeting.places[index].is_through = True
                    meeting.places[index].finished.release()

        # What the caller set for its thread holds for the replicas, too; what the first one sets does not.
        scopes = [contextvars.copy_context() for _ in self._devices]
        try:
            for index, thread in enumerate(self._threads, 1):
                thread.start(partial(work_in_thread, index, scopes[index]))
            work(0)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C just beside the first replica; raised below
            meeting.interrupt(error)
        for index in range(1, len(self._devices)):
            # A step that is shorter than it takes to wake a thread is done by the time that is awake.
            if not meeting.claim(index):
                self._wait_out(meeting, index)
            elif not meeting.interrupted:
                scopes[index].run(work, index)
        failure, meeting.failure = meeting.failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame
        return regroup([place.result for place in meeting.places])

    def _wait_out(self, meeting: _Meeting, index: int) -> None:
        """Wait for a replica, also through Ctrl-C: it must not run on into the next step.

        A second Ctrl-C leaves it behind: it may hang in the program's own code, where nothing reaches it.
        """
        place = meeting.places[index]
        # A Ctrl-C that comes just before a wait begins is heard at its end only; one just after it has ended
        # finds the lock taken.
        try:
            while not place.is_through:
                place.finished.acquire(timeout=_LISTEN_S)
        except BaseException as error:  # noqa: BLE001 - raised when all replicas are through
            meeting.interrupt(error)
            try:
                while not place.is_through:
                    place.finished.acquire(timeout=_LISTEN_S)
            except BaseException:
                _stop(self._threads)
                self._threads = []  # the next run gets others
                raise


def _stack_of(frame: FrameType | None) -> str:
    """Where a thread is, in the program's own code."""
    if frame is None:
        return "    (its stack is gone)"
    stack = [
        entry
        for entry in traceback.extract_stack(frame)
        if not entry.filename.startswith(_OURS) and entry.filename != threading.__file__
    ]
    return "".join(traceback.format_list(stack[-_SHOWN_FRAMES:])).rstrip() or "    (in Windlass)"
