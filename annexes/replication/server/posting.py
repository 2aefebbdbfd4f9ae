"""The changes of a store as records for the ps that follow it."""

from collections.abc import Sequence
from dataclasses import replace

from ....core.errors import MovedError, PeerLostError, RopewalkError
from ....core.rules.update_rules import UpdateRule
from ....core.task import Incarnation
from ....core.wire.steps import SMALL_BYTES
from ....engine.block import Block
from ....engine.push_target import PushTarget
from ....server.ps.change_stream import BlockChange, Push, Subscriber
from ....server.ps.new_blocks import Held
from ....server.ps.store import Store
from .copying import copy_target, has_kernel, post_tiles
from .follower import Follower
from .records import (
    BlockSet,
    BlockUpdated,
    CopiedTile,
    PushCompleted,
    RuleBound,
    StepRaised,
    TaskRegistered,
)
from .stream import RecordStream


class StoreRecords(Subscriber):
    """Posts what happens to a store, as long as anybody follows it. Thread-safe.

    The record of a change goes before the change, so that followers work at the same time. A change
    that another processor may compute otherwise is sent as the values that it leaves.

    Args:
        store: The store that is followed.

    Attributes:
        stream: Stream to the followers.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.stream = RecordStream(store.settings.request_timeout_s, self._listen)

    def _listen(self) -> None:
        self._store.stream.keep(self, lambda: self.stream.is_used)

    def attach(self, follower: Follower, *, has_all: bool = False) -> None:
        """Send records to a follower from now on, after a copy of which pushes are complete.

        Args:
            follower: Gets them.
            has_all: Whether it has exactly what is here, but for its marks, which may be ahead: of
                a closure's run that has begun there, and pushed nothing.
        """
        numbers = {block.number for block in self._store.table.targets()} if has_all else set[int]()
        with self._store.at_rest() as log:
            follower.blocks |= numbers
            follower.claimed |= numbers
            self.stream.attach(follower)
            self.stream.send(follower, log)

    # -- changes of blocks ---------------------------------------------------------------------

    def before(self, change: BlockChange) -> None:
        """Post the push, if followers are to run it, too."""
        if not _runs_again(change):
            return
        block, segment = change.block.number, change.push.segment
        completes = _completes(change)
        self._post(change, BlockUpdated(block, change.info, change.parts, segment, completes))

    def done(self, change: BlockChange) -> None:
        """Post the values that a push has left, if followers are not to run it."""
        if _runs_again(change) or not isinstance(change.block, Block):
            return
        values = _values_of(change.block, change, has_run=True)
        try:
            self._post(change, values)
        except RopewalkError:  # the push is fenced, and what it has done here stays
            self.stream.post(replace(values, completes=None))
            raise

    def failed(self, change: BlockChange, error: BaseException) -> None:
        """Post what a rule without a kernel has left, or end the lead of this ps.

        Raises:
            MovedError: A kernel failed after its record was sent: this ps leads no more.
        """
        if _runs_again(change):
            failure = MovedError(f"an update failed on this ps that its followers have: {error!r}")
            self.stream.close(failure)
            raise failure from error
        if isinstance(change.block, Block):
            self.stream.post(_values_of(change.block, change, has_run=False))

    def _post(self, change: BlockChange, record: BlockUpdated | BlockSet) -> None:
        """Post a change, and count the push that is complete with it."""
        if record.completes is None:
            self.stream.post(record)
            return
        # Pushes are complete in the order of their last records, on every replica.
        with self._store.completing(change):
            self.stream.post(record)

    # -- other changes -------------------------------------------------------------------------

    def complete(self, push: Push) -> None:
        """Post that a push is complete."""
        self.stream.post(PushCompleted(push, push.step_increment))

    def registered(self, who: Incarnation) -> None:
        """Post that a process of a task has opened a session."""
        self.stream.post(TaskRegistered(who))

    def step_raised(self, global_step: int) -> None:
        """Post that the global step is at least this."""
        self.stream.post(StepRaised(global_step))

    def bound(self, held: Held, rule: UpdateRule, who: Incarnation, *, has_slots: bool) -> None:
        """Post a shard's update rule, and its slots if they do not begin anew."""
        block, entry = held.block, held.entry
        updates = int(block.updates[entry])
        self.stream.post(RuleBound(block.number, entry, rule, who, updates))
        if has_slots and isinstance(block, Block):
            post_tiles(self.stream, block, entry)

    def defined(self, blocks: Sequence[PushTarget], held: Sequence[Held]) -> None:
        """Copy new blocks, which nobody uses yet, to every follower that is there."""
        stream = self.stream
        for follower in stream.followers:
            for block in blocks:
                if stream.claim(follower, block.number):
                    own = [each for each in held if each.block is block]
                    try:
                        copy_target(stream, block, own, follower)
                    except PeerLostError as error:
                        # It has half of the block. If it is needed, answers wait for the chief.
                        stream.give_up(follower, error)

    def has_all(self, blocks: Sequence[PushTarget]) -> bool:
        """Return whether all followers have new blocks."""
        return all(self.stream.is_claimed(block.number) for block in blocks)

    # -- answers -------------------------------------------------------------------------------

    def confirm(self) -> None:
        """See :meth:`RecordStream.confirm`."""
        self.stream.confirm()

    def confirm_read(self) -> None:
        """See :meth:`RecordStream.confirm_read`."""
        self.stream.confirm_read()


def _runs_again(change: BlockChange) -> bool:
    """Return whether followers run a push themselves: it leaves the same bits anywhere."""
    if not isinstance(change.block, Block):
        return True
    return all(has_kernel(part.rule) for part in change.parts)


def _completes(change: BlockChange) -> int | None:
    """Choose what a record says of the push: its increment of the global step, if it is complete.

    Much that goes by value takes long to send, and the log is not to wait for that.
    """
    if not change.is_last:
        return None
    push = change.push
    if push.segment is None and _num_bytes(change) > SMALL_BYTES:
        return None
    return push.step_increment


def _num_bytes(change: BlockChange) -> int:
    return sum(part.gradient.values.nbytes for part in change.parts)


def _values_of(block: Block, change: BlockChange, *, has_run: bool) -> BlockSet:
    tiles = []
    for start, stop in sorted({(part.where.start, part.where.stop) for part in change.parts}):
        slots = {name: slot[start:stop] for name, slot in block.slots.items()}
        tiles.append(CopiedTile(block.number, start, stop, block.value[start:stop], slots))
    return BlockSet(
        block.number,
        change.info if has_run else None,
        tuple(tiles),
        tuple(block.versions.tolist()),
        tuple(block.updates.tolist()),
        tuple(block.initialized.tolist()),
        _completes(change) if has_run else None,
    )
