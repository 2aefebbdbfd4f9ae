"""The strategy, as the rooms below ``strategies`` know it.

Contexts, variables, input and optimizers are used by strategies and ask them back: who the other
replicas are, and to reduce something over them. These protocols are all they ask, so that imports
go one way. ``strategies`` has the classes; where a program gets a strategy back from a lower room,
as from ``variable.strategy``, its type is Any.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from .communication import CommunicationOptions
from .creations import Creations
from .reductions import ReduceOp


class ExtendedInterface(Protocol):
    """The part of ``ropewalk.distribute.StrategyExtended`` that lower rooms use; see there."""

    @property
    def replica_devices(self) -> tuple[str, ...]:
        """Devices of this worker's replicas, one each, as this process names them."""

    creations: Creations

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Devices of this worker's replicas, with the task."""

    @property
    def task_name(self) -> str:
        """Name of this task, as it stands in front of a device."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas over all workers."""

    @property
    def first_replica(self) -> int:
        """Number of this worker's first replica among those in sync."""

    @property
    def input_pipeline_id(self) -> int:
        """Number of this worker."""

    def any_worker(self, mine: bool) -> bool:
        """Return whether ``mine`` is true on any synchronous worker."""

    def note_write(self) -> None:
        """Note that a variable that the replicas share is being changed."""

    def create_variable(self, spec: Any) -> Any:
        """Make the variable that a ``VariableSpec`` asks for."""

    def apply_gradients(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Update variables by reduced gradients."""

    def reduce_to(self, reduce_op: ReduceOp | str, value: Any, destinations: Any) -> Any:
        """Reduce a value over the replicas, to where ``destinations`` are."""

    def batch_reduce_to(
        self, reduce_op: ReduceOp | str, value_destination_pairs: Sequence[tuple[Any, Any]]
    ) -> list[Any]:
        """Reduce many values."""

    def reduce_to_all(self, op: ReduceOp, tree: Any, options: CommunicationOptions | None) -> Any:
        """Reduce a nested value over the replicas, to every replica."""

    def gather_to_all(self, tree: Any, axis: int, options: CommunicationOptions | None) -> Any:
        """Concatenate a nested value over the replicas, on every replica."""

    def of_first_replica(self, value: Any) -> Any:
        """Return the value of the first replica of all."""


class StrategyInterface(Protocol):
    """The part of ``ropewalk.distribute.Strategy`` that lower rooms use; see there."""

    @property
    def extended(self) -> ExtendedInterface:
        """The strategy's algorithms."""
