"""Running one function on every local replica at once.

The first replica runs in the caller's thread, each other one in a thread of its own that waits for
the next step; if the caller is through before that thread is awake, it runs the other replica, too.
``ReplicaBarrier`` is where they merge.
"""

import contextvars
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from ..base.contexts import Frame, ReplicaContext, entered, is_running
from ..base.devices import is_gpu, on_device
from ..base.interface import StrategyInterface
from ..base.values import regroup, select_replica
from .replica_barrier import ReplicaBarrier, ReplicaThread

_INTERRUPT_CHECK_S = 0.1  # how often a wait looks whether Ctrl-C was pressed


def _stop(threads: list[ReplicaThread]) -> None:
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
        strategy: Strategy whose replicas these are.
        devices: Devices of the local replicas, one each.
        first_id: Number of the first of them among those in sync.

    Attributes:
        in_turns: Whether one replica runs at a time, from merge to merge.
    """

    def __init__(
        self, strategy: StrategyInterface, devices: tuple[str, ...], first_id: int = 0
    ) -> None:
        self._strategy = weakref.ref(strategy)
        self._devices = devices
        self._first_id = first_id
        self.in_turns = False
        self._busy = threading.Lock()
        self._threads: list[ReplicaThread] = []
        _runners.add(self)

    def forget_threads(self) -> None:
        """Begin anew in a forked process, which has none of the threads."""
        self._busy, self._threads = threading.Lock(), []

    @property
    def strategy(self) -> StrategyInterface:
        """Strategy whose replicas these are."""
        strategy = self._strategy()
        assert strategy is not None  # noqa: S101 - it is running this
        return strategy

    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call ``function`` once per replica with its part of the arguments; regroup the results.

        Raises:
            RuntimeError: Replicas did not make the same merge calls, or this is called in a merge
                of them.
        """
        if is_running(self.strategy):
            # The replicas wait for the merge that would wait for them.
            raise RuntimeError(
                "strategy.run inside merge_call (or update) of strategy.run; call the function "
                "itself"
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
            self._threads = [
                ReplicaThread(f"replica-{index}") for index in range(1, len(self._devices))
            ]
            weakref.finalize(self, _stop, self._threads)
        count = len(self._devices)
        barrier = ReplicaBarrier(self.strategy, count, in_turns=self.in_turns)
        strategy = self.strategy

        def work(index: int) -> None:
            slot = barrier.slots[index]
            slot.thread = threading.get_ident()

            merge = partial(barrier.merge, index)
            context = ReplicaContext(strategy, self._first_id + index, merge, index)
            failure: BaseException | None = None
            try:
                barrier.take_turn(index)
                with entered(Frame(strategy, context)), on_device(self._devices[index]):
                    slot.result = function(
                        *select_replica(index, args, count), **select_replica(index, kwargs, count)
                    )
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                failure = error
            finally:
                barrier.end(failure)
                barrier.leave_turn(index)
                del failure  # its traceback holds this frame

        def work_in_thread(index: int, scope: contextvars.Context) -> None:
            if barrier.claim(index):
                try:
                    if not barrier.interrupted:
                        scope.run(work, index)
                finally:
                    barrier.slots[index].is_through = True
                    barrier.slots[index].finished.release()

        # What the caller set for its thread holds for the replicas, too; what the first one sets
        # does not.
        scopes = [contextvars.copy_context() for _ in self._devices]
        try:
            for index, thread in enumerate(self._threads, 1):
                thread.start(partial(work_in_thread, index, scopes[index]))
            work(0)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C just beside the first replica; raised below
            barrier.interrupt(error)
        for index in range(1, len(self._devices)):
            # A step shorter than it takes to wake a thread is over by then: its replica is run
            # here.
            if not barrier.claim(index):
                self._wait_out(barrier, index)
            elif not barrier.interrupted:
                scopes[index].run(work, index)
        failure, barrier.failure = barrier.failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame
        return regroup([slot.result for slot in barrier.slots])

    def _wait_out(self, barrier: ReplicaBarrier, index: int) -> None:
        """Wait for a replica, also through Ctrl-C: it must not run on into the next step.

        A second Ctrl-C leaves it behind: it may hang in the program's own code, where nothing
        reaches it.
        """
        slot = barrier.slots[index]
        # A Ctrl-C that comes just before a wait begins is heard at its end only; one just after it
        # has ended finds the lock taken.
        try:
            while not slot.is_through:
                slot.finished.acquire(timeout=_INTERRUPT_CHECK_S)
        except BaseException as error:  # noqa: BLE001 - raised when all replicas are through
            barrier.interrupt(error)
            try:
                while not slot.is_through:
                    slot.finished.acquire(timeout=_INTERRUPT_CHECK_S)
            except BaseException:
                _stop(self._threads)
                self._threads = []  # the next run gets others
                raise
