"""A ps, as a parameter session sees it: in another process, or in this one."""

from collections.abc import Generator, Sequence
from typing import Protocol

from ...core.errors import RopewalkError
from ...core.rules.definitions import ShardDefinition
from ...core.rules.update_rules import UpdateRule
from ...core.task import TaskId
from ...core.wire.cut_marks import CutMark, Elements
from ...core.wire.steps import NO_TARGET, HeldShard, PullTarget, PushResult, StepRequest

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
