"""ReplicaBarrier: where the replicas of one step wait for each other, and merge.

The replica that arrives last runs the merge for all: waking a thread is what a step costs (0.01 ms
on a machine of one's own, 0.1 ms on an idle virtual one), and no thread is woken to do nothing.
Replicas that disagree (one ends, or calls something else, while another waits) get an error that
shows where each of them is, not a deadlock.
"""

import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from ...core.process.threads import new_thread, nobody_waits, thread_frames
from ..base.contexts import Frame, Merging, code_of, entered
from ..base.interface import StrategyInterface
from ..base.values import is_variable, regroup, select_replica

_OURS = str(Path(__file__).parents[1])
_SHOWN_FRAMES = 6


def closed_gate() -> threading.Lock:
    """Make a locked lock: acquiring it waits until another thread releases it."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class ReplicaAbortedError(BaseException):
    """Unwinds a waiting replica after another failed. No Exception: programs must not catch it."""


@dataclass(slots=True)
class _Call:
    """A call of ``merge_call`` by one replica."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def key(self) -> tuple[object, ...]:
        """Key that must agree between replicas: the code, and the variable it belongs to."""
        if isinstance(self.function, Merging):
            return code_of(self.function.function), *self.function.agreed
        owner = getattr(self.function, "__self__", None)
        return code_of(self.function), id(owner) if is_variable(owner) else 0


@dataclass(slots=True)
class _ReplicaState:
    """The state of one replica, as the barrier knows it.

    Attributes:
        gate: Opened when the merge it waits in has been carried out, or the run is aborted.
        finished: Opened by the thread that ran the replica, when it is through.
        is_through: Whether ``finished`` is open, to look at.
        thread: Thread that runs it.
        has_turn: Whether it holds the turn, where replicas take turns.
        call: The merge it waits in.
        answer: Part of the merge's result for the replica.
        result: Result that the replica returned.
    """

    gate: threading.Lock = field(default_factory=closed_gate)
    finished: threading.Lock = field(default_factory=closed_gate)
    is_through: bool = False
    thread: int = 0
    has_turn: bool = False
    call: _Call | None = None
    answer: Any = None
    result: Any = None


class ReplicaBarrier:
    """A barrier at which the replicas of one ``run`` wait for each other.

    Args:
        strategy: Strategy whose replicas they are.
        count: Number of replicas on this worker.
        in_turns: Whether one replica runs at a time, from merge to merge, as in TensorFlow.
    """

    def __init__(self, strategy: StrategyInterface, count: int, *, in_turns: bool = False) -> None:
        self._strategy = strategy
        self._turn = threading.Lock() if in_turns else None
        self._lock = threading.Lock()
        self.slots = [_ReplicaState() for _ in range(count)]
        self._unclaimed = set(range(1, count))
        self.waiting = 0  # replicas in a merge
        self.ended = 0  # replicas that are through or failed
        self._aborted = False
        self.failure: BaseException | None = None  # the first one

    def claim(self, index: int) -> bool:
        """Take on a replica; False if another thread has."""
        with self._lock:
            if index not in self._unclaimed:
                return False
            self._unclaimed.remove(index)
            return True

    def take_turn(self, index: int) -> None:
        """Wait until no other replica runs, where they take turns."""
        if self._turn is not None:
            self._turn.acquire()
            self.slots[index].has_turn = True

    def leave_turn(self, index: int) -> None:
        """Let another replica run."""
        slot = self.slots[index]
        if self._turn is not None and slot.has_turn:
            slot.has_turn = False
            self._turn.release()

    @property
    def interrupted(self) -> bool:
        """Whether the program is to stop (Ctrl-C, an exit): what has not begun does not begin."""
        return self.failure is not None and not isinstance(self.failure, Exception)

    def interrupt(self, error: BaseException) -> None:
        """Release every replica that waits in a merge; the caller was interrupted."""
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
        """Wait for all replicas; the last one runs the merge. Returns this replica's part."""
        slot, call = self.slots[index], _Call(function, args, kwargs)
        with self._lock:
            if self._aborted:
                raise ReplicaAbortedError
            slot.call = call
            self.waiting += 1
            all_here = self.waiting + self.ended == len(self.slots)
            if all_here and self._disagree():
                self._abort()
            calls = [slot.call for slot in self.slots if slot.call is not None]
        if all_here and len(calls) == len(self.slots):
            self._run_merge(calls)
        else:
            self.leave_turn(index)
            try:
                slot.gate.acquire()
                self.take_turn(index)
            except BaseException as error:
                self.interrupt(error)
                raise
        if self._aborted:
            raise ReplicaAbortedError
        answer, slot.answer = slot.answer, None
        return answer

    def end(self, error: BaseException | None) -> None:
        """Note that a replica is through, or failed."""
        with self._lock:
            self.ended += 1
            if error is not None:
                if not isinstance(error, ReplicaAbortedError):
                    self.failure = self.failure or error
                self._abort()
            elif self.waiting and self.waiting + self.ended == len(self.slots):
                self._disagree()
                self._abort()

    def _abort(self) -> None:
        self._aborted = True
        for slot in self.slots:
            if slot.call is not None:
                slot.call = None
                slot.gate.release()
        self.waiting = 0

    def _disagree(self) -> bool:
        """Return whether the replicas are not all in one and the same merge; says where they
        are.
        """
        calls = [slot.call for slot in self.slots]
        keys = {call.key for call in calls if call is not None}
        if self.ended == 0 and len(keys) == 1:
            return False
        waiting = [i for i, call in enumerate(calls) if call is not None]
        what = (
            f"{', '.join(map(str, waiting))} called merge_call (or an operation that aggregates) "
            "and the others ended without"
            if self.ended
            else "they wait in different merge calls (or operations that aggregate)"
        )
        stacks = thread_frames()
        shown = "\n".join(
            f"replica {i} {'is at' if call is not None else 'has ended'}"
            + (f":\n{_stack_of(stacks.get(slot.thread))}" if call is not None else "")
            for i, (slot, call) in enumerate(zip(self.slots, calls, strict=True))
        )
        stacks.clear()  # this frame is in it
        self.failure = self.failure or RuntimeError(
            f"replicas disagree: {what}; every replica must make the same calls in the same "
            f"order\n{shown}"
        )
        return True

    def _run_merge(self, calls: list[_Call]) -> None:
        try:
            with entered(Frame(self._strategy, None)):
                args = tuple(
                    regroup(list(parts)) for parts in zip(*(c.args for c in calls), strict=True)
                )
                kwargs = {key: regroup([c.kwargs[key] for c in calls]) for key in calls[0].kwargs}
                answer = calls[0].function(self._strategy, *args, **kwargs)
            for index, slot in enumerate(self.slots):
                slot.answer = select_replica(index, answer)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            with self._lock:
                self.failure = self.failure or error
                self._abort()
            return
        with self._lock:
            if self._aborted:
                return  # the caller was interrupted, and has gone
            self.waiting = 0
            for slot in self.slots:
                slot.call = None
        mine = threading.get_ident()
        for slot in self.slots:
            if slot.thread != mine:
                slot.gate.release()


def _stack_of(frame: FrameType | None) -> str:
    """Format where a thread is, in the program's own code."""
    if frame is None:
        return "    (its stack is gone)"
    stack = [
        entry
        for entry in traceback.extract_stack(frame)
        if not entry.filename.startswith(_OURS) and entry.filename != threading.__file__
    ]
    return "".join(traceback.format_list(stack[-_SHOWN_FRAMES:])).rstrip() or "    (in Ropewalk)"


class ReplicaThread:
    """Waits for the work of a step and does it; drops work that it is too late for.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._go = closed_gate()
        self._work: Callable[[], None] | None = None
        self._ended = False
        # The caller catches what its work raises, and does it itself if this thread has not begun.
        new_thread(name, self._loop, failed=nobody_waits).start()

    def start(self, work: Callable[[], None]) -> None:
        """Do this next."""
        self._work = work
        self._wake()

    def stop(self) -> None:
        """End, once it is through."""
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
