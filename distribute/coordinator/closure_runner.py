"""Runs closures: reads what a coordinator sent, calls it, and describes what came of it."""

import faulthandler
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ...core.errors import JobStoppedError, LimitExceededError, RefusedError
from ...core.rules.definitions import VariableDefinition
from ...core.step_times import OTHERS
from ...core.wire.closure_pushes import ClosureRun
from ...core.wire.codec import closure_run_from_wire
from ...core.wire.structures import to_parts
from ...proto.v1 import session_pb2
from ..base.worker_index import current_worker
from ..optimizer import Optimizer
from ..runtime import ClusterRuntime
from ..strategies.parameter_server import ParameterServerStrategy
from ..variables.parameter_server import PsVariable
from ..variables.ps_table import PsTable
from ..variables.spec import VariableSpec
from .shipping import describe, unpickle


class _Failed:
    """A stand-in for something that could not be made: using it raises the reason."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class ClosureRunner:
    """Functions, resources and closures of one coordinator. Used by one thread at a time.

    Args:
        worker: The worker's index.
        runtime: Connection of the worker to its cluster.
        strategy: Strategy that closures get; None: one is made when it is asked for.
        may_end_process: A closure that does not end in time takes this process with it.
    """

    def __init__(
        self,
        worker: int,
        runtime: ClusterRuntime,
        strategy: ParameterServerStrategy | None = None,
        *,
        may_end_process: bool = False,
    ) -> None:
        self._may_end_process = may_end_process
        self._worker = worker
        self._max_bytes = runtime.settings.max_step_bytes
        self._place = _WorkerPlace(runtime, strategy)
        self._clock = runtime.progress.clock
        self._idle = self._clock.begin()  # since when it waits for a closure
        # In the coordinator's own process others push, too, and no worker is lost without it.
        self._is_coordinators = strategy is not None
        self._in_closure = runtime.session.in_closure if strategy is None else _not_at_all
        self._process = os.getpid()
        self._pickles: dict[int, Sequence[memoryview]] = {}
        self._functions: dict[int, Any] = {}
        self._states: dict[int, Sequence[memoryview]] = {}  # of optimizers, to be read

    def forget(self) -> None:
        """Forget everything: the coordinator begins anew, and tells it again."""
        self._pickles.clear()
        self._functions.clear()
        self._states.clear()
        self._place.resources.clear()

    def handle(
        self,
        message: session_pb2.ClientMessage,
        parts: Sequence[memoryview],
        began: Callable[[session_pb2.ClosureAnswer], None],
    ) -> tuple[session_pb2.ClosureAnswer, list[memoryview]] | None:
        """Carry out a message from a coordinator.

        Args:
            message: The coordinator's message.
            parts: Parts of the message's payload.
            began: Called when a closure with a deadline begins.

        Returns:
            (the answer, the parts of its payload) of a closure, else None.

        Raises:
            RefusedError: Coordinators do not send such a message.
            JobStoppedError: This worker is to leave, in the middle of a closure.
        """
        kind = message.WhichOneof("kind")
        if kind == "run_closure":
            return self._run(message.run_closure, parts, began)
        if kind == "make_resource":
            self._make(message.make_resource)
        elif kind == "define_function":
            # It is read when it is first called, so that its error is a closure's.
            self._pickles[message.define_function.id] = parts
        elif kind == "change_optimizer":
            self._states[message.change_optimizer.id] = parts
        elif kind == "forget":
            for number in message.forget.ids:
                self._pickles.pop(number, None)
                self._functions.pop(number, None)
                self._place.resources.pop(number, None)
        else:
            raise RefusedError(
                f"a coordinator goes on with closures, not with {kind or 'an empty message'}"
            )
        return None

    def _make(self, message: session_pb2.MakeResource) -> None:
        resources = self._place.resources
        with self._here():
            try:
                if message.function:
                    resources[message.id] = self._function(message.function)()
                else:
                    resources[message.id] = iter(self._place.resource(message.iterates))
            except BaseException as error:  # noqa: BLE001 - the closures that use it raise it
                resources[message.id] = _Failed(error)

    def _run(
        self,
        message: session_pb2.RunClosure,
        arguments: Sequence[memoryview],
        began: Callable[[session_pb2.ClosureAnswer], None],
    ) -> tuple[session_pb2.ClosureAnswer, list[memoryview]]:
        answer = session_pb2.ClosureAnswer(id=message.id, attempt=message.attempt)
        if message.deadline_s:
            began(session_pb2.ClosureAnswer(id=message.id, attempt=message.attempt, began=True))
        if not self._is_coordinators:
            self._clock.end(OTHERS, self._idle)
        with self._here(), ends_process_after(message.deadline_s, self._may_end_process):
            try:
                with self._in_closure(closure_run_from_wire(message.run)):
                    result = self._call(message.function, arguments)
                structure, parts = to_parts(result)
                self._check_size(sum(part.nbytes for part in parts))
            # Whatever a closure raises is the coordinator's to know: sys.exit too.
            except BaseException as error:
                self._end_fork()
                if isinstance(error, JobStoppedError) and not self._is_coordinators:
                    raise  # this worker is to leave: it is lost, and others run the closure
                answer.failure.CopyFrom(describe(error))
                return answer, []
        self._end_fork()
        answer.structure = structure
        answer.part_bytes.extend(part.nbytes for part in parts)
        self._idle = self._clock.begin()
        return answer, parts

    def _call(self, function: int, arguments: Sequence[memoryview]) -> Any:
        called = self._function(function)
        args, kwargs = unpickle(arguments, self._place) if arguments else ((), {})
        while self._states:
            number, parts = self._states.popitem()
            self._place.update(number, unpickle(parts, self._place))
        return called(*args, **kwargs)

    def _end_fork(self) -> None:
        """End here if this is a process that the closure forked: the answer is its parent's."""
        if os.getpid() != self._process:
            os._exit(0)

    def _function(self, number: int) -> Any:
        if number not in self._functions:
            if number not in self._pickles:
                raise RefusedError(f"function {number} was not sent")
            self._functions[number] = unpickle(self._pickles[number], self._place)
        return self._functions[number]

    def _check_size(self, num_bytes: int) -> None:
        most = self._max_bytes
        if num_bytes > most:
            raise LimitExceededError(
                f"the closure's result has {num_bytes} bytes, more than max_step_bytes={most}; "
                "return less, or raise ROPEWALK_MAX_STEP_BYTES on the workers and the chief",
                limit="max_step_bytes",
                value=num_bytes,
            )

    @contextmanager
    def _here(self) -> Iterator[None]:
        token = current_worker.set(self._worker)
        try:
            yield
        finally:
            current_worker.reset(token)


def _not_at_all(run: ClosureRun) -> AbstractContextManager[None]:  # noqa: ARG001
    return nullcontext()


class _WorkerPlace:
    """The objects of this worker that names in pickles stand for. See
    :class:`~ropewalk.distribute.coordinator.shipping.WorkerObjects`.
    """

    def __init__(self, runtime: ClusterRuntime, strategy: ParameterServerStrategy | None) -> None:
        self._runtime = runtime
        self._strategy = strategy
        self._variables: dict[str, PsVariable] = {}
        self._tables: dict[str, PsTable] = {}
        self._optimizers: dict[int, Optimizer] = {}
        self._states: dict[int, Mapping[str, Any]] = {}  # that the coordinator told last
        self.resources: dict[int, Any] = {}

    @property
    def strategy(self) -> ParameterServerStrategy:
        if self._strategy is None:
            self._strategy = ParameterServerStrategy(runtime=self._runtime)
        return self._strategy

    def variable(self, name: str, spec: VariableSpec, *, sharded: bool) -> PsVariable:
        if name not in self._variables:
            extended = self.strategy.extended
            self._variables[name] = extended.find_variable(spec, name, sharded=sharded)
        return self._variables[name]

    def table(self, definition: VariableDefinition) -> PsTable:
        name = definition.name
        if name not in self._tables:
            self._tables[name] = self.strategy.extended.tables.find_table(definition)
        return self._tables[name]

    def optimizer(self, number: int, kind: type[Optimizer], state: Mapping[str, Any]) -> Optimizer:
        if number not in self._optimizers:  # else its state is newer than that of a function
            optimizer = kind.__new__(kind)
            optimizer.__dict__.update(_owner=None, _variables={}, **self._states.get(number, state))
            self._optimizers[number] = optimizer
        return self._optimizers[number]

    def update(self, number: int, state: Mapping[str, Any]) -> None:
        """Give an optimizer the hyperparameters of the coordinator's."""
        self._states[number] = state
        if number in self._optimizers:
            self._optimizers[number].__dict__.update(state)

    def resource(self, number: int) -> Any:
        resource = self.resources[number]
        if isinstance(resource, _Failed):
            raise resource.error
        return resource


# The coordinator has said so by then, and a closure that is a little late keeps its process.
GRACE_S = 1.0


@contextmanager
def ends_process_after(deadline_s: float, may_end_process: bool) -> Iterator[None]:
    """End this process if what is done here takes too long, with the stacks of its threads.

    The watch is a thread that needs no lock of Python's: it ends a loop in C as well.

    Args:
        deadline_s: Deadline that came with the closure; 0: none. Unit: seconds.
        may_end_process: False: nothing is done.
    """
    if not deadline_s or not may_end_process:
        yield
        return
    faulthandler.dump_traceback_later(deadline_s + GRACE_S, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
