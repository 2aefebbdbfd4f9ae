"""The part of a strategy that steps need beyond TensorFlow's interface, with defaults for one
worker.

Bridges, optimizers and jobs call it; a strategy of several workers or replicas overrides what
differs.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ...core.argument_errors import ArgumentTypeError
from ...core.arrays.indexed_slices import IndexedSlices
from ..base.moved_average import MovedAverage
from ..variables.holders import holders_of
from ..variables.variable import Variable

if TYPE_CHECKING:
    from .steps_alone import StepsAlone, Updates

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


class StepInterface:
    """Reading, counting and ending steps; ``StrategyExtended`` derives from it."""

    @abstractmethod
    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Arguments = (), kwargs: Keywords = None
    ) -> Any:
        """Call ``fn`` on every local replica; as ``strategy.run``."""

    def read_all(self, variables: Sequence[Variable], *, arrived: bool = False) -> list[Any]:  # noqa: ARG002
        """Read the values of several variables, in order; as they are now, or in ``run`` as of the
        step.

        Args:
            variables: Variables of this strategy.
            arrived: Outside of ``run``, accept values that came with the last step.
        """
        return [variable.read_value() for variable in variables]

    def read_applied(self, variables: Sequence[Variable]) -> list[Any]:
        """Read the values of several variables in a merge of the replicas, with all that the step
        has applied so far.
        """
        return self.read_all(variables)

    def same_step(self) -> AbstractContextManager[None]:
        """Let steps outside of ``run`` belong to the one before in this block, uncounted."""
        return nullcontext()

    def will_read(self, variables: Sequence[Variable]) -> None:
        """Say in ``run`` what is read after the step, so that its push brings it along."""

    def apply_and_read(
        self,
        updates: "Updates",
        reads: Sequence[Variable],
        averages: Sequence[tuple[Variable, MovedAverage]] = (),
        *,
        added: Sequence[tuple[Variable, Any]] = (),
        assigned: Sequence[tuple[Variable, Any]] = (),
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

    @property
    def alone(self) -> "StepsAlone | None":
        """Steps on a program's own arrays; None: other processes have the variables, too."""
        return None

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

    def move_averages(self, moves: Sequence[tuple[Variable, MovedAverage]]) -> None:
        """Have moving averages go on from where a step of this worker took them.

        Between replicas in sync what is given is reduced already, the same on all of them. Those
        of asynchronous workers become one: as if the steps of all had been made one after another.

        Args:
            moves: Variables of this strategy, and what the step made of each.
        """
        for variable, moved in moves:
            variable.assign(moved.after)

    def last_write_counts(self, variables: Iterable[Variable]) -> None:
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

    def iterations(self, variables: Sequence[Variable]) -> int:
        """Return how often an optimizer has updated these variables."""
        updates = (holder.updates for each in variables for holder in holders_of(each))
        return max(updates, default=0)

    def any_worker(self, mine: bool) -> bool:
        """Return whether ``mine`` is true on any synchronous worker; every one of them must call
        this.
        """
        return mine

    def barrier(self, timeout_s: float) -> None:
        """Wait for the other workers; see ``Strategy.barrier``."""
