"""A ps, as a parameter session sees it: in another process, or in this one."""

from collections.abc import Sequence
from typing import Protocol

from ...core.errors import RopewalkError
from ...core.rules.definitions import ShardDefinition
from ...core.rules.update_rules import UpdateRule
from ...core.task import TaskId
from ...core.wire.cut_marks import CutMark, Elements
from ...core.wire.steps import NO_TARGET, HeldShard, PullTarget, PushResult, StepRequest


class PsPeer(Protocol):
    """A session with one ps. Used by one thread at a time, but for :meth:`abort`.

    A step is prepared, sent and received apart: steps to several ps are under way together, and
    none is sent before all are prepared.
    """

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

    def prepare(self, request: StepRequest) -> None:
        """Gather a step's values as far as that takes memory; :meth:`send` follows, if anything.

        If this raises, say because there is no memory, the ps knows nothing of the step.
        """
        ...

    def send(self) -> None:
        """Begin the step prepared last; :meth:`receive` must follow.

        Does not wait for an answer where the payload is large.
        """
        ...

    def receive(self, target: PullTarget = NO_TARGET) -> PushResult:
        """Finish the step sent last.

        A broken connection is opened again and the step repeated; the ps applies a push once.

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
