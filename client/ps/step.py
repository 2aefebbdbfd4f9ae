"""A step: what a program asks of the parameter servers in one round trip, as data.

A step is an ordered list of writes and a set of reads. One push carries one scale and one set of
hyperparameters for all of its gradients, and applies these before anything else; a program that
asks for more makes several pushes: :func:`fits` says where one ends.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import RopewalkError
from ...core.rules.definitions import ShardDefinition, VariableDefinition
from ...core.rules.update_rules import UpdateRule
from ...core.task import TaskId
from ...core.wire.cut_marks import CutMark, Elements
from ...core.wire.steps import NO_TARGET, HeldShard, Operation, PullTarget, PushResult, StepRequest

# -- A ps, as a parameter session sees it: in another process, or in this one ------------------

Exchange = Generator[None, None, PushResult]
"""A step with one ps, in three turns: steps to several ps are under way together, and none is sent
before all are gathered. The first gathers the values as far as that takes memory: if it raises, say
because there is none, the ps knows nothing of the step. The second sends, and does not wait for an
answer where the payload is large; the third must follow, which waits for the answer and returns it.
"""


def answered(exchange: Exchange) -> PushResult:
    """Carry a step through all turns that are left; returns its answer."""
    try:
        while True:
            next(exchange)
    except StopIteration as end:
        result: PushResult = end.value
        return result


class PsPeer(Protocol):
    """A session with one ps. Used by one thread at a time, but for :meth:`abort`."""

    @property
    def task(self) -> TaskId:
        """The ps."""
        ...

    @property
    def description(self) -> str:
        """Name of the transport, for people: ``"grpc"``."""
        ...

    @property
    def shares_memory(self) -> bool:
        """Whether values are handed over in memory, where making them narrower saves nothing."""
        ...

    def connect(self, timeout_s: float) -> None:
        """Open the session.

        Raises:
            PeerLostError: It does not answer.
            ProtocolMismatchError: It speaks another protocol.
        """
        ...

    def define(
        self, shards: Sequence[ShardDefinition], *, create: bool, restore_from: str = ""
    ) -> list[HeldShard]:
        """Create shards on this ps, or look up those that it holds of these variables.

        Idempotent: repeated after a lost answer, it gives the same one.

        Args:
            shards: Shards of this ps.
            create: Whether to create them, or else look them up.
            restore_from: Name of a checkpoint in the model directory of the ps; of a ps in this
                process, the checkpoint's path. Empty: none.

        Raises:
            DefinitionMismatchError: Another task defined one differently.
        """
        ...

    def bind(self, variables: Sequence[str], rule: UpdateRule) -> None:
        """Bind an update rule to the shards held there. Idempotent.

        Raises:
            DefinitionMismatchError: Another task bound a different rule.
        """
        ...

    def held_bytes(self) -> int:
        """Return bytes of values on this ps, as of the last definition."""
        ...

    def step(self, request: StepRequest, target: PullTarget = NO_TARGET) -> Exchange:
        """Carry out a step, in three turns; see :data:`Exchange`.

        A broken connection is opened again and the step repeated; the ps applies a push once.

        Args:
            request: The step. Unless it is ``detached``, its values stay as they are until the
                answer.
            target: Memory for the values of the answer.

        Raises:
            RefusedError: The ps refused the step; nothing of it was applied there.
            PeerLostError: The ps is gone for longer than the reconnect timeout.
        """
        ...

    def mark_cut(self, number: int, mark: CutMark, timeout_s: float) -> None:
        """Tell the ps where a cut is; no step is under way.

        Raises:
            RopewalkError: It did not take the mark: the cut will be void.
        """
        ...

    def read_cut(self, number: int, piece: int, timeout_s: float) -> list[Elements]:
        """Read values of a cut, a piece at a time, in order; none: there are no more. From any
        thread.

        Raises:
            CutVoidError: They were not kept.
        """
        ...

    def abort(self, error: RopewalkError) -> None:
        """Make a running and every later call raise ``error``. From any thread."""
        ...

    def close(self) -> None:
        """End the session."""
        ...


# -- Steps -------------------------------------------------------------------------------------

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


class Advance(NamedTuple):
    """A row of every part of a variable, which a push raises to a number.

    On a ps whose part has that number already, or a larger one, nothing of the push is applied, and
    the step is answered as if it were: another task has pushed the same before.

    Attributes:
        variable: An int64 variable, whose rows are numbers. Each of its parts has as many.
        row: Number of the row in each part.
        to: The number, at least 1.
        settled_row: A second row, which is raised with the push and decides nothing.
        settled_to: Number that this one is raised to; 0: there is none.
    """

    variable: str
    row: int
    to: int
    settled_row: int = 0
    settled_to: int = 0


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
        advance: Row that the writes are applied with, and once; None: they are applied.
    """

    writes: Sequence[Write] = ()
    reads: Sequence[str] = ()
    increment: int = 0
    gradient_scale: float = 1.0
    seen_step: int | None = None
    detached: bool = False
    advance: Advance | None = None

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
