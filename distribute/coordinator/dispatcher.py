"""Sends closures as :mod:`~ropewalk.cluster.job.closure_queue` decides, and hands out results."""

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...client.closure_link import ClosureLink, Frame, Knowledge, MakeFrames, WorkerLink
from ...cluster.job.barrier import WorkerReplicas
from ...cluster.job.closure_queue import Cancel, ClosureQueue, Decision, Expire, GiveUp, LeaveWorker
from ...cluster.spec import WORKER
from ...core.errors import (
    CancelledError,
    ClosureError,
    ConfigurationError,
    DeadlineExceededError,
    JoinTimeoutError,
    RefusedError,
    RopewalkError,
    said_of,
)
from ...core.process.threads import new_thread
from ...core.process.waiting import WaitLog
from ...core.task import TaskId
from ...core.wire.closure_pushes import ClosureRun
from ...core.wire.codec import closure_run_to_wire
from ...core.wire.structures import from_parts
from ...proto.v1 import session_pb2
from ...telemetry.catalogue import Sample
from ...telemetry.task_metrics import closure_samples
from ..strategies.parameter_server import ParameterServerStrategy
from .local_worker import LocalWorker
from .remote_value import RemoteValue
from .sent_once import OptimizerState, SentOnce
from .shipping import Pickled, pickle_for_workers, rebuild

_LOOK_S = 0.2  # how often a wait looks whether the job is over
_TICK_S = 0.05  # how often deadlines are looked at, if there are any


@dataclass(slots=True)
class _OpenClosure:
    """A closure that has no result yet."""

    function: int
    arguments: Pickled | None
    states: tuple[OptimizerState, ...]
    deadline_s: float
    result: RemoteValue


@dataclass(frozen=True, slots=True)
class _Send:
    """A message to be sent without the lock, to the worker's connection with this number."""

    link: WorkerLink
    connection: int
    frames: MakeFrames | None  # None: the worker is to be left


class Dispatcher:
    """Closures of one coordinator. Thread-safe.

    Args:
        strategy: The coordinator's.
        redispatch_after_s: See :class:`~ropewalk.cluster.job.closure_queue.ClosureQueue`.
        replicas_read: See :class:`~ropewalk.cluster.job.barrier.WorkerReplicas`.

    Attributes:
        told: Functions and resources.
        is_closed: Whether it has left the workers.

    Raises:
        ConfigurationError: The cluster has no worker.
    """

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        redispatch_after_s: float = math.inf,
        replicas_read: int | None = None,
    ) -> None:
        runtime = strategy.extended.runtime
        task = runtime.task
        workers = [task for task in task.spec.tasks() if task.type == WORKER]
        if not workers and not runtime.alone:
            raise ConfigurationError(
                f"{task.task}: a coordinator needs at least one worker, and the cluster has none"
            )
        self.told = SentOnce(strategy)
        self.is_closed = False
        self._strategy = strategy
        self._check = runtime.job.check
        self._who = runtime.session.who
        # Another coordinator of this process goes on behind the last one.
        self._turns_before = time.monotonic_ns()
        self._queue = ClosureQueue(redispatch_after_s=redispatch_after_s)
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)  # of closures
        self._closures: dict[int, _OpenClosure] = {}
        self._failures: dict[int, RopewalkError] = {}  # of workers that will never be there
        self._replicas = WorkerReplicas(replicas_read)
        self._unequal: RopewalkError | None = None  # what they have; from then on nothing is begun
        self._join_timeout_s = runtime.settings.join_timeout_s
        self._ticks: threading.Thread | None = None
        self._looks_at_time = redispatch_after_s < math.inf
        self._closing = threading.Event()
        self._links: dict[int, WorkerLink] = {
            worker.index: ClosureLink(
                worker, task.address_of(worker), self._who, runtime.settings, self
            )
            for worker in workers
        }
        if runtime.alone:
            self._links = {0: LocalWorker(strategy, self)}
        runtime.at_end.append(self.close)
        runtime.measures.append(self._samples)
        for link in self._links.values():
            link.start()

    # -- the coordinator's -------------------------------------------------------------------

    def schedule(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        deadline_s: float = math.inf,
    ) -> RemoteValue:
        """See :meth:`ClusterCoordinator.schedule`."""
        function = self.told.use(fn)
        try:
            arguments = None
            if args or kwargs:
                arguments = pickle_for_workers((args, kwargs), self._strategy)
            states = self.told.states(function, arguments)
            closure = _OpenClosure(function, arguments, states, deadline_s, RemoteValue())
            with self._changed:
                self._raise_error()
                while self._queue.is_full:
                    self._wait()
                    self._raise_error()
                number = next(self._numbers)
                self._closures[number] = closure
                decisions = self._queue.schedule(
                    number, deadline_s=deadline_s, now=time.monotonic()
                )
                todo = self._plan(decisions)
        except BaseException:
            self.told.release(function)
            raise
        if self._ticks is None and (deadline_s < math.inf or self._looks_at_time):
            self._start_ticks()
        self._carry_out(todo)
        return closure.result

    def join(self) -> None:
        """See :meth:`ClusterCoordinator.join`."""
        with self._changed:
            while not self._queue.is_idle and not self._queue.has_error:
                self._wait()
            self._raise_error()

    def done(self) -> bool:
        """See :meth:`ClusterCoordinator.done`."""
        with self._changed:
            self._raise_error()
            return self._queue.is_idle

    def replicas(self) -> int:
        """Count the devices of each worker; waits for the first worker.

        Raises:
            ConfigurationError: The workers do not have the same number.
            JoinTimeoutError: No worker came within join_timeout_s.
        """
        task = self._who.task
        waits = WaitLog(task, limit_s=self._join_timeout_s, limit="join_timeout_s")
        with self._changed:
            while self._replicas.count is None and self._unequal is None:
                if waits.is_over:
                    raise JoinTimeoutError(
                        f"{task} waited {self._join_timeout_s:g} s (join_timeout_s) for a worker: "
                        "num_replicas_in_sync is how many devices each of them has. Start the "
                        "workers, or read it later",
                        task=task,
                        missing="worker",
                    )
                waits.tick("a worker, which says how many devices it has")
                self._wait()
            if self._unequal is not None:
                raise self._unequal
            waits.done()
            return self._replicas.count or 0

    def close(self) -> None:
        """Cancel what waits, and leave the workers. More than once does nothing."""
        self.is_closed = True
        self._closing.set()
        with self._changed:
            todo = self._plan(self._queue.cancel())
        self._carry_out(todo)
        for link in self._links.values():
            link.close()

    def _samples(self) -> Iterator[Sample]:
        # Without the lock, which is held while closures are sent to a worker that may not read.
        return closure_samples(*self._queue.depths)

    def _wait(self) -> None:
        """Wait for a change; the caller holds the lock.

        Raises:
            RopewalkError: The job is over, or no worker will ever be there.
        """
        self._changed.wait(_LOOK_S)
        self._check()
        if len(self._failures) == len(self._links):
            raise next(iter(self._failures.values()))

    def _raise_error(self) -> None:
        if not self._queue.has_error:
            return
        while not self._queue.is_settled:  # as TensorFlow: what is under way may end
            self._wait()
        error = self._unequal or self._queue.take_error()
        if error is not None:
            raise error

    def _start_ticks(self) -> None:
        with self._changed:
            if self._ticks is None:
                self._ticks = new_thread("deadlines", self._tick, failed=self._failed)
                self._ticks.start()

    def _tick(self) -> None:
        """Have the queue look at the time, as long as there is a coordinator."""
        while not self._closing.wait(_TICK_S):
            with self._changed:
                todo = self._plan(self._queue.tick(time.monotonic()))
            self._carry_out(todo)

    def _failed(self, error: BaseException) -> None:
        """Give the reason to threads that wait: deadlines are no longer checked."""
        why = RopewalkError(f"{self._who.task}: no deadline counts any more: {said_of(error)}")
        with self._changed:
            self._failures = dict.fromkeys(self._links, why)
            for number in list(self._closures):
                self._settle(number, None, why)
            self._changed.notify_all()

    # -- the links' --------------------------------------------------------------------------

    def ready(self, link: WorkerLink) -> None:
        """See :class:`~ropewalk.client.closure_link.LinkEvents`."""
        with self._changed:
            self._unequal = self._unequal or self._replicas.joined(link.worker, link.replicas)
            if self._unequal is not None:  # the queue keeps it: it is never taken
                decisions = self._queue.failed(0, 0, self._unequal).decisions
            else:
                decisions = self._queue.worker_ready(link.worker.index, time.monotonic())
            todo = self._plan(decisions)
        self._carry_out(todo)

    def lost(self, link: WorkerLink) -> None:
        """See :class:`~ropewalk.client.closure_link.LinkEvents`."""
        with self._changed:
            todo = self._plan(self._queue.worker_lost(link.worker.index, time.monotonic()))
        self._carry_out(todo)

    def refused(self, link: WorkerLink, error: RopewalkError) -> None:
        """See :class:`~ropewalk.client.closure_link.LinkEvents`."""
        with self._changed:
            self._failures[link.worker.index] = error
            if len(self._failures) == len(self._links):  # no result will come
                self._plan(self._queue.failed(0, 0, error).decisions)
            self._changed.notify_all()

    def answered(
        self, worker: TaskId, answer: session_pb2.ClosureAnswer, parts: list[memoryview]
    ) -> None:
        """See :class:`~ropewalk.client.closure_link.LinkEvents`.

        Raises:
            RefusedError: It is no answer to anything.
        """
        if not answer.attempt:
            raise RefusedError(f"{worker} answers closure {answer.id} without an attempt")
        if answer.began:
            with self._changed:
                self._queue.began(answer.id, answer.attempt, time.monotonic())
            return
        error: Exception | None = None
        value = None
        if answer.HasField("failure"):
            error = rebuild(answer.failure, str(worker))
        else:
            try:
                value = from_parts(answer.structure, parts)
            except RopewalkError as refused:
                error = refused
        with self._changed:
            now = time.monotonic()
            outcome = (
                self._queue.finished(answer.id, answer.attempt, now)
                if error is None
                else self._queue.failed(answer.id, answer.attempt, error, now)
            )
            if outcome.counts:
                self._settle(answer.id, value, error)
            todo = self._plan(outcome.decisions)
        self._carry_out(todo)

    # -- decisions ---------------------------------------------------------------------------

    def _settle(self, number: int, value: Any, error: Exception | None) -> None:
        """Settle a closure that is over; the caller holds the lock."""
        closure = self._closures.pop(number, None)
        if closure is None:  # its waiters were told that nothing is decided any more
            return
        self.told.release(closure.function)
        if error is None:
            closure.result.settle(value)
        else:
            closure.result.abort(error)

    def _plan(self, decisions: Sequence[Decision]) -> list[_Send]:
        """Settle what was decided against, under the lock; returns what is to be sent."""
        todo: list[_Send] = []
        waiting = list(decisions)
        while waiting:
            decision = waiting.pop(0)
            if isinstance(decision, Cancel):
                self._settle(decision.closure, None, self._unequal or _cancelled())
            elif isinstance(decision, GiveUp):
                given_up = _given_up(decision)
                self._settle(decision.closure, None, given_up)
                waiting += self._queue.failed(decision.closure, 0, given_up).decisions
            elif isinstance(decision, Expire):
                late = self._expired(decision)
                outcome = self._queue.expired(decision.closure, late)
                if outcome.counts:
                    self._settle(decision.closure, None, late)
                waiting += outcome.decisions
            elif isinstance(decision, LeaveWorker):
                link = self._links[decision.worker]
                todo.append(_Send(link, link.connections, None))
            else:
                link = self._links[decision.worker]
                run = ClosureRun(
                    self._who.generation, decision.lane, self._turns_before + decision.turn,
                    decision.attempt, decision.oldest_attempt,
                )  # fmt: skip
                frames = self._frames(decision.closure, self._closures[decision.closure], run)
                todo.append(_Send(link, link.connections, frames))
        self._changed.notify_all()
        return todo

    def _expired(self, decision: Expire) -> DeadlineExceededError:
        worker = self._links[decision.worker].worker
        return DeadlineExceededError(
            f"a closure ran for longer than its deadline_s={decision.deadline_s:g} on {worker}, "
            "and was ended; the worker's log shows where it was. Give it more time, or less to do",
            task=worker,
            deadline_s=decision.deadline_s,
        )

    @staticmethod
    def _carry_out(todo: Sequence[_Send]) -> None:
        for message in todo:
            if message.frames is not None:
                message.link.send(message.connection, message.frames)
            elif message.link.connections == message.connection:
                message.link.drop()

    def _frames(self, number: int, closure: _OpenClosure, run: ClosureRun) -> MakeFrames:
        """Make the frames that a worker has to be sent for a closure, beside what it knows
        already.
        """

        def make(knowledge: Knowledge) -> Sequence[Frame]:
            # Also if it is over by now: the worker's answer makes room there.
            frames = self.told.frames(knowledge, closure.function, closure.states)
            parts = closure.arguments.parts if closure.arguments is not None else ()
            message = session_pb2.RunClosure(
                id=number,
                attempt=run.attempt,
                function=closure.function,
                part_bytes=[part.nbytes for part in parts],
                run=closure_run_to_wire(run),
                deadline_s=closure.deadline_s if closure.deadline_s < math.inf else 0,
            )
            frames.append((session_pb2.ClientMessage(run_closure=message), parts))
            return frames

        return make


def _cancelled() -> CancelledError:
    return CancelledError(
        "The corresponding function is cancelled. Please reschedule the function."
    )


def _given_up(decision: GiveUp) -> ClosureError:
    return ClosureError(
        f"a closure was given up: the workers {', '.join(map(str, decision.workers))} were lost "
        "one after the other while they ran it; does it end its process, or take all memory?"
    )
