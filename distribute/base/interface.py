"""The strategy, as contexts, variables, input, optimizers, bridges and jobs use it.

They ask it who the other replicas are, to reduce something over them, and to make a step.
TensorFlow's interface has the rest: ``strategies`` has the classes. Where a program gets a strategy
back from a lower room, as from ``variable.strategy``, its type is Any.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from ...core.arguments import ArgumentTypeError
from ...core.arrays.indexed_slices import IndexedSlices
from .communication import CommunicationOptions
from .creations import Creations
from .devices import LOCALHOST
from .moved_average import MovedAverage
from .reductions import ReduceOp

Updates = Sequence[tuple[Any, Sequence[tuple[Any, Any]]]]
"""Optimizers, each with pairs of gradient and variable."""

Arguments = tuple[Any, ...] | list[Any]
"""Positional arguments of a function that replicas call."""

Keywords = dict[str, Any] | None
"""Type of keyword arguments."""


def require_call_arguments(args: Any, kwargs: Any, error: type[ValueError] = ValueError) -> None:
    """Refuse arguments that no function can be called with.

    Args:
        args: Positional ones.
        kwargs: Keyword arguments.
        error: Class of the error that TensorFlow raises here for positional ones that are none.

    Raises:
        ValueError: As ``error``: ``args`` is neither a list nor a tuple.
        TypeError: ``kwargs`` is no mapping.
    """
    if not isinstance(args, list | tuple):
        kind = type(args).__name__
        raise error(
            f"positional args must be a list or tuple, got {kind}: write args=(value,) for one"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ArgumentTypeError(f"kwargs must map names to values, got {type(kwargs).__name__}")


class ExtendedInterface:
    """The base of ``StrategyExtended``: what lower rooms ask it, and all that makes steps.

    Steps have defaults for one worker; a strategy of several workers or replicas overrides what
    differs.

    Attributes:
        task_name: Name of this task, as it stands in front of a device.
        creations: The variables made in ``run``.
        first_replica: Number of this worker's first replica among those in sync.
        replica_devices: Devices of this worker's replicas, one each, as this process names them.
        divides_input: Whether workers share a dataset that does not say whether they do.
    """

    task_name: str = LOCALHOST
    creations: Creations
    first_replica: int
    replica_devices: tuple[str, ...]
    divides_input: bool = True

    @property
    @abstractmethod
    def num_replicas_in_sync(self) -> int:
        """Replicas whose gradients are aggregated in one step."""

    @property
    def batch_devices(self) -> tuple[str, ...]:
        """Devices to which the batches of each replica go: to what it reads of variables."""
        return self.replica_devices

    @property
    def num_input_pipelines(self) -> int:
        """Workers among which input is sharded."""
        return 1

    @property
    def input_pipeline_id(self) -> int:
        """Number of this worker's pipeline among all."""
        return 0

    @property
    def shuffles_input(self) -> bool:
        """Whether input comes in the orders that its dataset draws; else as it is stored."""
        return True

    @abstractmethod
    def require_scope(self, method: str) -> None:
        """Refuse a call in the scope of another strategy."""

    @abstractmethod
    def create_variable(self, spec: Any) -> Any:
        """Make the variable that a ``VariableSpec`` asks for."""

    @abstractmethod
    def reduce_to(self, reduce_op: ReduceOp | str, value: Any, destinations: Any) -> Any:
        """Reduce a value over the replicas, to where ``destinations`` are."""

    @abstractmethod
    def reduce_to_all(self, op: ReduceOp, tree: Any, options: CommunicationOptions | None) -> Any:
        """Reduce a nested value over the replicas, to every replica."""

    @abstractmethod
    def gather_to_all(self, tree: Any, axis: int, options: CommunicationOptions | None) -> Any:
        """Concatenate a nested value over the replicas, on every replica."""

    @abstractmethod
    def of_first_replica(self, value: Any) -> Any:
        """Return the value of the first replica of all."""

    # -- steps -------------------------------------------------------------------------------

    @abstractmethod
    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Arguments = (), kwargs: Keywords = None
    ) -> Any:
        """Call ``fn`` on every local replica; as ``strategy.run``."""

    def read_all(self, variables: Sequence[Any], *, arrived: bool = False) -> list[Any]:  # noqa: ARG002
        """Read the values of several variables, in order; as they are now, or in ``run`` as of the
        step.

        Args:
            variables: Variables of this strategy.
            arrived: Outside of ``run``, accept values that came with the last step.
        """
        return [variable.read_value() for variable in variables]

    def read_applied(self, variables: Sequence[Any]) -> list[Any]:
        """Read the values of several variables in a merge of the replicas, with all that the step
        has applied so far.
        """
        return self.read_all(variables)

    def same_step(self) -> AbstractContextManager[None]:
        """Let steps outside of ``run`` belong to the one before in this block, uncounted."""
        return nullcontext()

    def will_read(self, variables: Sequence[Any]) -> None:
        """Say in ``run`` what is read after the step, so that its push brings it along."""

    def apply_and_read(
        self,
        updates: Updates,
        reads: Sequence[Any],
        averages: Sequence[tuple[Any, MovedAverage]] = (),
        *,
        added: Sequence[tuple[Any, Any]] = (),
        assigned: Sequence[tuple[Any, Any]] = (),
    ) -> list[Any]:
        """Make a step, outside of ``run``: apply gradients, and read what they made.

        Args:
            updates: Optimizers, each with pairs of gradient and variable.
            reads: Variables of this strategy.
            averages: Moving averages, as :meth:`move_averages` takes them.
            added: Variables, each with an array or IndexedSlices to add.
            assigned: Variables, each with its new value.

        Returns:
            Values after the step, in order.
        """

        def step() -> None:
            self.will_read(reads)
            for optimizer, pairs in updates:
                optimizer.apply_gradients(pairs)
            for variable, delta in added:
                add = (
                    variable.scatter_add
                    if isinstance(delta, IndexedSlices)
                    else variable.assign_add
                )
                add(delta)
            self.move_averages(averages)
            for variable, value in assigned:
                variable.assign(value)

        self.call_for_each_replica(step)
        return self.read_all(reads, arrived=True)

    def note_write(self) -> None:
        """Note that a variable that the replicas share is being changed."""

    def scope_left(self) -> None:
        """Note that a ``with strategy.scope()`` ended without an error."""

    def as_one_step(self) -> AbstractContextManager[None]:
        """Count what is done in the block as one global step.

        For a training step of several parts: several optimizers, or an update behind ``run``. Where
        steps are not counted it does nothing.
        """
        return nullcontext()

    def move_averages(self, moves: Sequence[tuple[Any, MovedAverage]]) -> None:
        """Have moving averages go on from where a step of this worker took them.

        Between replicas in sync what is given is reduced already, the same on all of them. Those
        of asynchronous workers become one: as if the steps of all had been made one after another.

        Args:
            moves: Variables of this strategy, and what the step made of each.
        """
        for variable, moved in moves:
            variable.assign(moved.after)

    def last_write_counts(self, variables: Iterable[Any]) -> None:
        """Say that each worker has values of its own of some variables, made of no others'.

        What is assigned to them last is what checkpoints have, and nothing is lost by it.
        """

    def refuses_deltas(self, deltas: Mapping[str, Any]) -> bool:
        """Decide whether a step's deltas, made by an optimizer of this worker, are to change
        nothing.

        They are if they hold NaN or infinity, where a job's other workers would suffer. In sync
        every worker asks, with the same deltas.

        Args:
            deltas: Arrays or IndexedSlices by name of the variable.

        Raises:
            NonFiniteGradientError: So many steps in a row are refused that the model has diverged.
        """
        del deltas
        return False

    def any_worker(self, mine: bool) -> bool:
        """Return whether ``mine`` is true on any synchronous worker; every one of them must call
        this.
        """
        return mine

    def barrier(self, timeout_s: float) -> None:
        """Wait for the other workers; see ``Strategy.barrier``."""


class StrategyInterface(Protocol):
    """The part of ``ropewalk.distribute.Strategy`` that lower rooms use; see there."""

    @property
    def extended(self) -> ExtendedInterface:
        """The strategy's algorithms."""
