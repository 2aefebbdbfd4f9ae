"""Functions, arguments and exceptions on their way between coordinator and worker."""

import builtins
import io
import itertools
import pickle
import sys
import sysconfig
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import cloudpickle

from ...core.errors import ClosureError, OutOfRangeError, RopewalkError
from ...core.process.tracebacks import program_traceback
from ...core.rules.definitions import VariableDefinition
from ...core.terminal import terminal_text
from ...core.wire.error_table import from_detail, to_detail
from ...proto.v1 import session_pb2
from ..optimizer import Optimizer
from ..strategies.parameter_server import ParameterServerStrategy
from ..strategies.strategy import Strategy
from ..variables.parameter_server import PsShard, PsShardedVariable, PsVariable
from ..variables.ps_table import PsTable
from ..variables.variable import Variable
from .remote_value import PerWorkerValue

# -- Functions and arguments on their way to a worker ------------------------------------------
# Functions are pickled by value (cloudpickle), so a worker needs none of the program's files. What
# lives in the cluster is not sent but named: a variable arrives as the worker's own view of it,
# the strategy as the worker's, an optimizer as one of the same rule, a per-worker value as that
# worker's.
#
# Only a worker reads such pickles, from the task that leads its job.


_ENVIRONMENT = tuple(
    sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


# Not by their identity, which another one may get when one is gone.
_optimizer_numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
_count_optimizers = itertools.count(1)


class Pickled:
    """A function or arguments, pickled.

    Attributes:
        parts: The pickle, then the arrays in it.
        optimizers: Optimizers in it, by their number.
        held: Per-worker values in it: workers keep them as long as it may be sent.
    """

    def __init__(
        self,
        parts: Sequence[memoryview],
        optimizers: Mapping[int, Optimizer],
        held: Sequence[PerWorkerValue] = (),
    ) -> None:
        self.parts = parts
        self.optimizers = optimizers
        self.held = held

    @property
    def num_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts)


class _Sender(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(
        self, file: io.BytesIO, strategy: Strategy, buffers: list[pickle.PickleBuffer]
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self._strategy = strategy
        self.optimizers: dict[int, Optimizer] = {}
        self.held: list[PerWorkerValue] = []

    def persistent_id(self, item: Any) -> Any:
        if isinstance(item, PerWorkerValue):
            self.held.append(item)
            return ("resource", item.resource)
        if isinstance(item, Variable):
            return self._variable(item)
        if isinstance(item, PsTable):
            return ("table", item.definition)
        if isinstance(item, Optimizer):
            number = _optimizer_numbers.get(item)
            if number is None:
                number = _optimizer_numbers[item] = next(_count_optimizers)
            self.optimizers[number] = item
            return ("optimizer", number, type(item), state_of(item))
        if isinstance(item, Strategy):
            if item is not self._strategy:
                raise ValueError(
                    f"a closure uses {type(item).__name__}, and the coordinator is of another "
                    "strategy: use that one in functions that are scheduled"
                )
            return ("strategy",)
        if item is self._strategy.extended:
            return ("extended",)
        return None

    def _variable(self, item: Variable) -> Any:
        if item.strategy is not self._strategy:
            raise ValueError(
                f"a closure uses {item.name!r}, which is no variable of the coordinator's "
                "strategy; create it in `with strategy.scope():`"
            )
        if isinstance(item, PsShard):
            return ("shard", self._variable(item._whole), item.part)
        if not isinstance(item, PsVariable):
            return None
        return ("variable", item._name, isinstance(item, PsShardedVariable), item._spec)


def pickle_for_workers(item: Any, strategy: ParameterServerStrategy) -> Pickled:
    """Pickle something for the workers of a strategy.

    Args:
        item: A function, or arguments.
        strategy: Strategy whose variables and optimizers are named and not sent.

    Raises:
        ValueError: It holds what belongs to the coordinator alone.
        TypeError: It cannot be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    sender = _Sender(file, strategy, buffers)
    try:
        with _by_value():
            sender.dump(item)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"a worker cannot be sent {item!r}: {error}") from error
    # Copies: a closure may be sent later, and the program goes on with its arrays.
    arrays = [memoryview(bytearray(buffer.raw())) for buffer in buffers]
    return Pickled([file.getbuffer(), *arrays], sender.optimizers, sender.held)


def state_of(optimizer: Optimizer) -> dict[str, Any]:
    """Collect what a worker needs to make an optimizer like this one."""
    own = optimizer.__dict__
    return {name: own[name] for name in ("rule", "current", "_changes", "_rate")}


class WorkerObjects(Protocol):
    """The objects of a worker under the names that pickles give."""

    @property
    def strategy(self) -> ParameterServerStrategy:
        """The worker's."""

    def variable(self, name: str, spec: Any, *, sharded: bool) -> PsVariable:
        """Find the worker's view of a variable."""

    def table(self, definition: VariableDefinition) -> PsTable:
        """Find the worker's view of a growing table."""

    def optimizer(self, number: int, kind: type[Optimizer], state: Mapping[str, Any]) -> Optimizer:
        """Find the worker's optimizer for one of the coordinator."""

    def resource(self, number: int) -> Any:
        """Find the worker's resource of this number; raises what making it raised."""


class _Receiver(pickle.Unpickler):
    def __init__(self, parts: Sequence[memoryview], objects: WorkerObjects) -> None:
        super().__init__(io.BytesIO(parts[0]), buffers=parts[1:])
        self._objects = objects

    def persistent_load(self, named: Any) -> Any:
        kind, *rest = named
        if kind == "resource":
            return self._objects.resource(*rest)
        if kind == "variable":
            name, sharded, spec = rest
            return self._objects.variable(name, spec, sharded=sharded)
        if kind == "table":
            return self._objects.table(*rest)
        if kind == "shard":
            whole, part = rest
            return self.persistent_load(whole).variables[part]
        if kind == "optimizer":
            return self._objects.optimizer(*rest)
        strategy = self._objects.strategy
        return strategy.extended if kind == "extended" else strategy


def unpickle(parts: Sequence[memoryview], objects: WorkerObjects) -> Any:
    """Rebuild what was pickled, with what it names as the worker has it."""
    return _Receiver(parts, objects).load()


@contextmanager
def _by_value() -> Iterator[None]:
    """Pickle the program's own modules with everything inside this context."""
    own = _own_modules(len(sys.modules))
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


@lru_cache(maxsize=1)
def _own_modules(count: int) -> list[ModuleType]:  # noqa: ARG001 - another one: look again
    """List the program's own modules among the ``count`` that are loaded."""
    return [module for module in list(sys.modules.values()) if _is_own(module)]


def _is_own(module: ModuleType) -> bool:
    """Return whether a module is the program's, and neither installed nor Python's."""
    path, name = getattr(module, "__file__", None), getattr(module, "__name__", "")
    if not path or name.partition(".")[0] in ("ropewalk", "__main__", "__mp_main__"):
        return False
    if not sys.argv or not sys.argv[0]:
        return False
    folder, resolved = Path(sys.argv[0]).resolve().parent, Path(path).resolve()
    return resolved.is_relative_to(folder) and not str(resolved).startswith(_ENVIRONMENT)


# -- Exceptions of closures, as they travel from the worker to the coordinator -----------------

_MAX_CHARACTERS = 64 * 1024


def describe(error: BaseException) -> session_pb2.ClosureFailure:
    """Describe an exception as a message, with the closure's part of the traceback."""
    if isinstance(error, StopIteration):
        # TensorFlow's name for it; a StopIteration would end the coordinator's own loops.
        error = OutOfRangeError(
            "the closure's dataset is at an end; repeat it, or stop scheduling"
        ).with_traceback(error.__traceback__)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's class; the error that it failed with is none of ours
        message = "(its text cannot be made)"
    return session_pb2.ClosureFailure(
        type=type(error).__name__,
        message=message[:_MAX_CHARACTERS],
        traceback=program_traceback(error, "")[-_MAX_CHARACTERS:],
        detail=to_detail(error) if isinstance(error, RopewalkError) else None,
    )


def rebuild(failure: session_pb2.ClosureFailure, worker: str) -> Exception:
    """Rebuild the exception to raise where the closure was scheduled.

    An exception of Python or of Ropewalk has its own class, any other is a ClosureError. The
    worker's traceback is a note on it. Both have nothing that a terminal would obey.

    Args:
        failure: Message that :func:`describe` made.
        worker: Worker that ran the closure.
    """
    message, trace = terminal_text(failure.message), terminal_text(failure.traceback.rstrip())
    error: Exception | None = None
    if failure.HasField("detail"):
        error = from_detail(failure.detail)
    else:
        kind = getattr(builtins, failure.type, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                error = kind(message)
            except Exception:  # noqa: BLE001 - it takes other arguments, as UnicodeDecodeError
                error = None
    if error is None:
        error = ClosureError(f"{failure.type}: {message}", type=failure.type, worker=worker)
    error.add_note(f"raised in a closure on {worker}:\n{trace}")
    return error
