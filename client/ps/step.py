"""Step: what a program asks of the parameter servers in one round trip, as data.

A step is an ordered list of writes and a set of reads. One push carries one scale and one set of
hyperparameters for all of its gradients, and applies these before anything else; a program that
asks for more makes several pushes: :func:`fits` says where one ends.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.rules.definitions import VariableDefinition
from ...core.wire.steps import Operation

Value = Array | IndexedSlices | bytes
"""Value of a variable in a step: an array of its shape, some of its rows (of a table by their
keys), or all of its bytes."""


class Write(NamedTuple):
    """An operation on some variables, each with its value.

    Attributes:
        operation: The operation.
        values: Values by variable.
        decay: Part that is taken off first of whole variables that are added to.
        clip: Limit of the joint norm of the values, which are gradients; None: none.
        hyperparameters: Hyperparameters of the variables' update rules that differ from those
            bound; None: none do.
    """

    operation: Operation
    values: Mapping[str, Value]
    decay: float = 0.0
    clip: float | None = None
    hyperparameters: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Writes, and reads of what they make, in one round trip per ps.

    Attributes:
        writes: Writes in the order in which they are carried out; a variable may occur again. Those
            of one step :func:`fits` one push.
        reads: Whole variables to fetch, as they are after the writes.
        increment: Added to the global step.
        gradient_scale: Multiplies the gradients (clipping by global norm).
        seen_step: Global step of the values the gradients were computed from; None: the last seen.
        detached: Whether the caller may change the values once the step is sent: it is then
            repeated from a copy.
    """

    writes: Sequence[Write] = ()
    reads: Sequence[str] = ()
    increment: int = 0
    gradient_scale: float = 1.0
    seen_step: int | None = None
    detached: bool = False

    @property
    def hyperparameters(self) -> Mapping[str, Any] | None:
        """Hyperparameters of its gradients, which come first."""
        return self.writes[0].hyperparameters if self.writes else None


def fits(push: Iterable[Write], write: Write) -> bool:
    """Return whether a write may travel in one push with those before it.

    Gradients are applied before the other writes of a push, so none of them may be of a variable
    that the push has changed. A norm is taken over the gradients of one write, as in Keras.
    """
    if write.operation is not Operation.APPLY:
        return True
    for before in push:
        if not before.values.keys().isdisjoint(write.values.keys()):
            return False
        if before.operation is Operation.APPLY and not _share_a_rule(before, write):
            return False
    return True


def _share_a_rule(one: Write, other: Write) -> bool:
    """Return whether gradients may have one scale and one set of hyperparameters."""
    unclipped = one.clip is None and other.clip is None
    return unclipped and one.hyperparameters == other.hyperparameters


def gradients_first(push: Sequence[Write]) -> list[Write]:
    """Order the writes of one push as they are carried out, with all gradients as one write."""
    if len(push) < 2:
        return list(push)
    gradients = [write for write in push if write.operation is Operation.APPLY]
    others = [write for write in push if write.operation is not Operation.APPLY]
    if len(gradients) > 1:
        values = {name: value for write in gradients for name, value in write.values.items()}
        gradients = [gradients[0]._replace(values=values)]
    return [*gradients, *others]


def unpacked(value: bytes, definition: VariableDefinition) -> Array:
    """View all bytes of a variable's value as an array. Read-only."""
    return np.frombuffer(value, definition.dtype).reshape(definition.shape)
