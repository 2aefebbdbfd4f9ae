"""Things that workers are told once and then know by a number: functions, resources, optimizers'
states.

A function is kept as long as the program keeps it and some closure of it waits; then workers are
told to forget it as well. Those that the program never lets go are bounded: the one scheduled least
recently goes first, and is pickled anew when it is scheduled again.
"""

import contextlib
import itertools
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ...client.closure_link import Frame, Knowledge
from ...proto.v1 import session_pb2
from ..optimizer import Optimizer
from ..strategies.parameter_server import ParameterServerStrategy
from .remote_value import PerWorkerDataset, PerWorkerIterator, PerWorkerValue
from .shipping import Pickled, pickle_for_workers, state_of

_Value = TypeVar("_Value", bound=PerWorkerValue)
_MAX_FUNCTIONS = 1024
_MAX_FUNCTION_BYTES = 1 << 30


@dataclass(slots=True)
class _Function:
    """Attributes:
    users: Closures and resources that need it.
    is_gone: The program cannot schedule it again.
    """

    pickled: Pickled
    users: int = 0
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class _Resource:
    """A thing that every worker makes for itself: by a function, or as an iterator."""

    function: int = 0
    iterates: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerState:
    """The hyperparameters of an optimizer, as they were when a closure was scheduled.

    Attributes:
        optimizer: Number of the optimizer.
        version: Version number, unique across all states of all optimizers.
        of: The objects that the state is made of: while they are the same, so is the state.
        parts: The state, pickled.
    """

    optimizer: int
    version: int
    of: tuple[Any, Any]
    parts: Sequence[memoryview]


class SentOnce:
    """Functions, resources and optimizers' states of one coordinator. Thread-safe.

    Args:
        strategy: The coordinator's.
        max_functions: Most functions that are kept.
    """

    def __init__(
        self, strategy: ParameterServerStrategy, max_functions: int = _MAX_FUNCTIONS
    ) -> None:
        self._strategy = strategy
        self._max_functions = max_functions
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)  # of functions and resources
        self._functions: OrderedDict[int, _Function] = OrderedDict()  # scheduled last: last
        self._function_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._bytes = 0
        self._resources: dict[int, _Resource] = {}
        self._states: dict[int, OptimizerState] = {}
        self._versions = itertools.count(1)
        # What the garbage collector took, in whatever thread: no lock is taken there.
        self._gone: deque[int] = deque()
        self._drops = 0

    # -- functions ---------------------------------------------------------------------------

    def use(self, fn: Callable[..., Any]) -> int:
        """Find the number of a function, which is kept until :meth:`release`.

        Raises:
            ValueError: It holds what belongs to the coordinator alone.
            TypeError: It cannot be pickled.
        """
        with self._lock:
            self._drop_gone()
            number = self._known(fn)
            if number is not None:
                self._functions[number].users += 1
                self._functions.move_to_end(number)
                return number
        pickled = pickle_for_workers(fn, self._strategy)
        with self._lock:
            number = next(self._numbers)
            self._functions[number] = _Function(pickled, users=1)
            self._bytes += pickled.num_bytes
            try:
                self._function_numbers[fn] = number
                weakref.finalize(fn, self._gone.append, number).atexit = False
            except TypeError:  # it has no weak references, or no hash
                self._functions[number].is_gone = True
            self._bound()
            return number

    def release(self, number: int) -> None:
        """Release a function that is no longer needed by its user."""
        with self._lock:
            function = self._functions[number]
            function.users -= 1
            if function.is_gone and not function.users:
                self._drop(number)

    def _known(self, fn: Callable[..., Any]) -> int | None:
        with contextlib.suppress(TypeError):
            number = self._function_numbers.get(fn)
            return number if number in self._functions else None
        return None

    def _drop_gone(self) -> None:
        while self._gone:
            number = self._gone.popleft()
            resource = self._resources.pop(number, None)
            if resource is not None:
                self._drops += 1
                number = resource.function
                if number:
                    self._functions[number].users -= 1
            function = self._functions.get(number)
            if function is None:
                continue
            function.is_gone = function.is_gone or resource is None
            if function.is_gone and not function.users:
                self._drop(number)

    def _bound(self) -> None:
        """Keep to the bounds, as far as no closure waits."""
        over = len(self._functions) - self._max_functions
        if over <= 0 and self._bytes <= _MAX_FUNCTION_BYTES:
            return
        for number in [
            number for number, function in self._functions.items() if not function.users
        ]:
            if len(self._functions) <= self._max_functions and self._bytes <= _MAX_FUNCTION_BYTES:
                return
            self._drop(number)

    def _drop(self, number: int) -> None:
        self._bytes -= self._functions.pop(number).pickled.num_bytes
        self._drops += 1

    # -- resources ---------------------------------------------------------------------------

    def add_value(self, make: Callable[[], Any]) -> PerWorkerValue:
        """Add a value that every worker makes with a function."""
        return self._keep(PerWorkerValue(self._add(_Resource(function=self.use(make)))))

    def add_dataset(self, make: Callable[[], Any]) -> PerWorkerDataset:
        """Add a dataset that every worker makes with a function."""
        number = self._add(_Resource(function=self.use(make)))
        return self._keep(PerWorkerDataset(number, make, self._add_iterator))

    def _add_iterator(self, dataset: PerWorkerDataset) -> PerWorkerIterator:
        number = self._add(_Resource(iterates=dataset.resource))
        return self._keep(PerWorkerIterator(number, dataset))

    def _add(self, resource: _Resource) -> int:
        with self._lock:
            self._drop_gone()
            number = next(self._numbers)
            self._resources[number] = resource
            return number

    def _keep(self, value: _Value) -> _Value:
        """Have workers forget a resource when the program has."""
        weakref.finalize(value, self._gone.append, value.resource).atexit = False
        return value

    # -- optimizers --------------------------------------------------------------------------

    def states(self, function: int, arguments: Pickled | None) -> tuple[OptimizerState, ...]:
        """Collect the states of the optimizers in a function and its arguments, as far as they
        changed.
        """
        with self._lock:
            optimizers = dict(self._functions[function].pickled.optimizers)
        if arguments is not None:
            optimizers.update(arguments.optimizers)
        changed = (self._state(number, optimizer) for number, optimizer in optimizers.items())
        return tuple(state for state in changed if state is not None)

    def _state(self, number: int, optimizer: Optimizer) -> OptimizerState | None:
        of = (optimizer.current, optimizer._rate)
        last = self._states.get(number)
        if last is not None and last.of[0] is of[0] and last.of[1] is of[1]:
            return last
        if of[0] is optimizer.rule and of[1] is None:
            return None  # as workers make it
        parts = pickle_for_workers(state_of(optimizer), self._strategy).parts
        state = OptimizerState(number, next(self._versions), of, parts)
        self._states[number] = state
        return state

    # -- for a worker ------------------------------------------------------------------------

    def frames(
        self, known: Knowledge, function: int, states: Iterable[OptimizerState]
    ) -> list[Frame]:
        """Make the frames that a worker needs before a closure, beyond those that it has already.

        Args:
            known: Things that the worker has already; updated in place.
            function: Number of the closure's function.
            states: States of the closure's optimizers.
        """
        frames: list[Frame] = []
        with self._lock:
            self._drop_gone()
            self._forget(known, frames)
            for number, resource in self._resources.items():
                if number not in known.things:
                    self._make(number, resource, known, frames)
            self._define(function, known, frames)
        for state in states:
            if known.optimizers.get(state.optimizer) != state.version:
                known.optimizers[state.optimizer] = state.version
                message = session_pb2.ChangeOptimizer(
                    id=state.optimizer, part_bytes=[part.nbytes for part in state.parts]
                )
                frames.append((session_pb2.ClientMessage(change_optimizer=message), state.parts))
        return frames

    def _forget(self, knowledge: Knowledge, frames: list[Frame]) -> None:
        if knowledge.drops == self._drops:
            return
        knowledge.drops = self._drops
        gone = [
            number
            for number in knowledge.things
            if number not in self._functions and number not in self._resources
        ]
        if gone:
            knowledge.things.difference_update(gone)
            message = session_pb2.ForgetThings(ids=gone)
            frames.append((session_pb2.ClientMessage(forget=message), ()))

    def _make(
        self, number: int, resource: _Resource, knowledge: Knowledge, frames: list[Frame]
    ) -> None:
        if resource.function:
            self._define(resource.function, knowledge, frames)
        message = session_pb2.MakeResource(
            id=number, function=resource.function, iterates=resource.iterates
        )
        frames.append((session_pb2.ClientMessage(make_resource=message), ()))
        knowledge.things.add(number)

    def _define(self, function: int, knowledge: Knowledge, frames: list[Frame]) -> None:
        if function in knowledge.things or function not in self._functions:
            return  # without it the closure is over, and the worker's error counts for nothing
        parts = self._functions[function].pickled.parts
        message = session_pb2.DefineFunction(
            id=function, part_bytes=[part.nbytes for part in parts]
        )
        frames.append((session_pb2.ClientMessage(define_function=message), parts))
        knowledge.things.add(function)
