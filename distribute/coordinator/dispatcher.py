"""Carries out the decisions of :mod:`~windlass.cluster.closure_queue`: sends closures, and hands
out their results.
"""

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...client.worker.closure_link import ClosureLink, Frame, Link
from ...cluster.closure_queue import Cancel, ClosureQueue, Decision, GiveUp
from ...cluster.roles import WORKER
from ...core.errors import CancelledError, ClosureError, ConfigurationError, WindlassError
from ...core.structures import from_parts
from ...proto.v1 import session_pb2
from ..optimizer import Optimizer
from ..strategies.parameter_server import ParameterServerStrategy
from .failures import rebuild
from .local_worker import LocalWorker
from .remote_value import RemoteValue
from .shipping import Pickled, pickle_for_workers, state_of

_LOOK_S = 0.2  # how often a wait looks whether the job is over


@dataclass(slots=True)
class _Closure:
    """A closure that has no result yet."""

    function: int
    arguments: Pickled | None
    result: RemoteValue
    worker: str = ""


@dataclass(frozen=True, slots=True)
class _Resource:
    """Something that every worker makes for itself: by a function, or as an iterator."""

    function: int = 0
    iterates: int = 0


class Dispatcher:
    """Closures of one coordinator. Thread-safe.

    Args:
        strategy: The coordinator's.

    Raises:
        ConfigurationError: The cluster has no worker.
    """

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        runtime = strategy.extended.runtime
        task = runtime.task
        workers = [each for each in task.spec.tasks() if each.type == WORKER]
        if not workers and not runtime.alone:
            raise ConfigurationError(
                f"{task.task}: a coordinator needs at least one worker, and the cluster has none"
            )
        self._strategy = strategy
        self._check = runtime.check
        self._queue = ClosureQueue()
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)  # of functions, resources and closures
        self._functions: dict[int, Pickled] = {}
        self._function_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._resources: dict[int, _Resource] = {}
        self._closures: dict[int, _Closure] = {}
        self._failures: dict[int, WindlassError] = {}  # of workers that will never be there
        who = runtime.session.who
        self._links: dict[int, Link] = {
            worker.index: ClosureLink(worker, task.address_of(worker), who, runtime.settings, self)
            for worker in workers
        }
        if runtime.alone:
            self._links = {0: LocalWorker(strategy, self)}
        runtime.at_end.append(self.close)
        for link in self._links.values():
            link.start()

    # -- the coordinator's -------------------------------------------------------------------

    def schedule(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RemoteValue:
        """See :meth:`ClusterCoordinator.schedule`."""
        function = self._number_of(fn)
        changed = self._changed_optimizers(function)
        arguments = None
        if args or kwargs or changed:
            arguments = pickle_for_workers((args, kwargs, changed), self._strategy)
        result = RemoteValue()
        with self._changed:
            self._raise_error()
            while self._queue.is_full:
                self._wait()
                self._raise_error()
            number = next(self._numbers)
            self._closures[number] = _Closure(function, arguments, result)
            todo = self._plan(self._queue.schedule(number))
        self._carry_out(todo)
        return result

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

    def add_resource(self, make: Callable[[], Any]) -> int:
        """Something that every worker makes with a function; returns its number."""
        function = self._number_of(make)
        with self._changed:
            number = next(self._numbers)
            self._resources[number] = _Resource(function=function)
        return number

    def add_iterator(self, resource: int) -> int:
        """An iterator of a resource on every worker; returns its number."""
        with self._changed:
            number = next(self._numbers)
            self._resources[number] = _Resource(iterates=resource)
        return number

    def close(self) -> None:
        """Cancel what waits, and leave the workers. More than once does nothing."""
        with self._changed:
            todo = self._plan(self._queue.cancel())
        self._carry_out(todo)
        for link in self._links.values():
            link.close()

    def _wait(self) -> None:
        """Wait for a change; the caller holds the lock.

        Raises:
            WindlassError: The job is over, or no worker will ever be there.
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
        error = self._queue.take_error()
        if error is not None:
            raise error

    # -- functions ---------------------------------------------------------------------------

    def _number_of(self, fn: Callable[..., Any]) -> int:
        try:
            known = self._function_numbers.get(fn)
        except TypeError:  # it has no weak references, or no hash
            known = None
        if known is not None:
            return known
        pickled = pickle_for_workers(fn, self._strategy)
        with self._changed:
            number = next(self._numbers)
            self._functions[number] = pickled
        with contextlib.suppress(TypeError):
            self._function_numbers[fn] = number
        return number

    def _changed_optimizers(self, function: int) -> Mapping[int, Mapping[str, Any]]:
        """Hyperparameters that were assigned since the function was pickled."""
        optimizers: Mapping[int, Optimizer] = self._functions[function].optimizers
        return {
            number: state_of(optimizer)
            for number, optimizer in optimizers.items()
            if optimizer.current is not optimizer.rule or optimizer._rate is not None
        }

    # -- the links' --------------------------------------------------------------------------

    def ready(self, link: Link) -> None:
        """See :class:`~windlass.client.worker.closure_link.Events`."""
        with self._changed:
            todo = self._plan(self._queue.worker_ready(link.worker.index))
        self._carry_out(todo)

    def lost(self, link: Link) -> None:
        """See :class:`~windlass.client.worker.closure_link.Events`."""
        with self._changed:
            todo = self._plan(self._queue.worker_lost(link.worker.index))
        self._carry_out(todo)

    def refused(self, link: Link, error: WindlassError) -> None:
        """See :class:`~windlass.client.worker.closure_link.Events`."""
        with self._changed:
            self._failures[link.worker.index] = error
            self._changed.notify_all()

    def answered(self, answer: session_pb2.ClosureAnswer, parts: list[memoryview]) -> None:
        """See :class:`~windlass.client.worker.closure_link.Events`."""
        error: Exception | None = None
        value = None
        with self._changed:
            closure = self._closures.get(answer.id)
        if closure is None:
            return
        if answer.HasField("failure"):
            error = rebuild(answer.failure, closure.worker)
        else:
            try:
                value = from_parts(answer.structure, parts)
            except WindlassError as refused:
                error = refused
        with self._changed:
            decisions = (
                self._queue.finished(answer.id, answer.attempt)
                if error is None
                else self._queue.failed(answer.id, answer.attempt, error)
            )
            if decisions is None:
                return
            del self._closures[answer.id]
            if error is None:
                closure.result.settle(value)
            else:
                closure.result.abort(error)
            todo = self._plan(decisions)
        self._carry_out(todo)

    # -- decisions ---------------------------------------------------------------------------

    def _plan(self, decisions: Sequence[Decision]) -> list[tuple[Link, int, int, int, _Closure]]:
        """Settle what was decided against, under the lock; returns what is to be sent."""
        todo = []
        waiting = list(decisions)
        while waiting:
            decision = waiting.pop(0)
            if isinstance(decision, Cancel):
                self._closures.pop(decision.closure).result.abort(
                    CancelledError(
                        "The corresponding function is cancelled. Please reschedule the function."
                    )
                )
            elif isinstance(decision, GiveUp):
                lost = ClosureError(
                    f"a closure was given up: the workers {', '.join(map(str, decision.workers))} "
                    "were lost one after the other while they ran it; does it end its process, or "
                    "take all memory?"
                )
                self._closures.pop(decision.closure).result.abort(lost)
                waiting += self._queue.failed(decision.closure, 0, lost) or []
            else:
                closure = self._closures[decision.closure]
                link = self._links[decision.worker]
                closure.worker = str(link.worker)
                todo.append((link, link.connections, decision.closure, decision.attempt, closure))
        self._changed.notify_all()
        return todo

    def _carry_out(self, todo: list[tuple[Link, int, int, int, _Closure]]) -> None:
        for link, connection, number, attempt, closure in todo:
            link.send(connection, self._frames(number, attempt, closure))

    def _frames(
        self, number: int, attempt: int, closure: _Closure
    ) -> Callable[[set[int]], Sequence[Frame]]:
        """What a worker has to be sent for a closure, beside what it knows already."""

        def make(known: set[int]) -> Sequence[Frame]:
            frames: list[Frame] = []
            with self._changed:
                resources = list(self._resources.items())
            for resource, how in resources:
                if resource in known:
                    continue
                if how.function:
                    self._define(how.function, known, frames)
                message = session_pb2.MakeResource(
                    id=resource, function=how.function, iterates=how.iterates
                )
                frames.append((session_pb2.ClientMessage(make_resource=message), ()))
                known.add(resource)
            self._define(closure.function, known, frames)
            parts = closure.arguments.parts if closure.arguments is not None else ()
            run = session_pb2.RunClosure(
                id=number,
                attempt=attempt,
                function=closure.function,
                part_bytes=[part.nbytes for part in parts],
            )
            frames.append((session_pb2.ClientMessage(run_closure=run), parts))
            return frames

        return make

    def _define(self, function: int, known: set[int], frames: list[Frame]) -> None:
        if function in known:
            return
        parts = self._functions[function].parts
        message = session_pb2.DefineFunction(
            id=function, part_bytes=[part.nbytes for part in parts]
        )
        frames.append((session_pb2.ClientMessage(define_function=message), parts))
        known.add(function)
