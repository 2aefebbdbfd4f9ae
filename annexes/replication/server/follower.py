"""A follower of a stream of records, and the link that carries them to it."""

from typing import Protocol

from ....cluster.replication.replica import may_answer
from ....core.errors import RopewalkError
from ....core.task import TaskId
from .records import (
    BLOCK_RECORDS,
    BlockCopyBegun,
    BlockUpdated,
    Record,
    TableCopied,
    before,
    completion_of,
)


class FollowerLink(Protocol):
    """Carries records to one follower. One thread at a time sends, and one reads."""

    @property
    def shares_memory(self) -> bool:
        """Whether records may refer to segments, which are handed on."""
        ...

    def send(self, position: int, record: Record) -> None:
        """Send a record, and be done with its arrays.

        Raises:
            OSError: The link broke.
            RopewalkError: The same, in our words.
        """
        ...

    def read(self, timeout_s: float) -> None:
        """Wait for acknowledgements, and tell the stream: them, or that the link broke.

        Args:
            timeout_s: Return after this if none has come. Unit: seconds.
        """
        ...

    def cancel(self) -> None:
        """Make running and later calls fail. From any thread."""
        ...

    def close(self) -> None:
        """Close it, when no call runs any more."""
        ...

    def lead_in(self, epoch: int) -> None:
        """Send later records as those of this epoch."""
        ...


class Follower:
    """A follower of a stream.

    Args:
        task: The ps.
        link: Connection to it.

    Attributes:
        link: Connection to the follower.
        position: Position of the last record that was sent to it.
        acknowledged: The last position that it has acknowledged.
        blocks: Numbers of the blocks whose copy has begun, and of the tables whose copy has ended;
            it gets all records of these.
        claimed: Numbers of the blocks whose copy a thread has taken on or finished.
        copied: Number of elements that it has of each block that is being copied; changed under the
            block's lock. It gets no updates of the others: their tiles have them.
        is_needed: Whether answers wait for it.
        borrowed: Position of the last record that refers to a worker's segment.
        granted_until: Time until which it makes no other ps lead: see ``replica.GRANT_S``.
        checked: The record whose acknowledgement extends that, and when it was sent.
        copied_bytes: Bytes of values and slots that were copied to it.
        broken: Why nothing can be sent to it any more.
        is_read: Whether a thread waits for its acknowledgements.
        has_ended: Whether all that it said has been read, to the end of the link.
        is_removed: Whether nothing is sent to it any more; its link is closed when no thread reads.
    """

    def __init__(self, task: TaskId, link: FollowerLink) -> None:
        self.task = task
        self.position = 0
        self.acknowledged = 0
        self.blocks: set[int] = set()
        self.claimed: set[int] = set()
        self.copied: dict[int, int] = {}
        self.is_needed = False
        self.borrowed = 0
        self.granted_until = 0.0  # by the clock of time.monotonic
        self.checked: tuple[int, float] | None = None  # position, and when it was sent
        self.copied_bytes = 0
        self.broken: BaseException | None = None
        self.is_read = False
        self.has_ended = False
        self.is_removed = False
        self.link = link

    @property
    def may_be_read(self) -> bool:
        """Whether it may have said something, and no thread reads."""
        return not (self.is_read or self.has_ended or self.is_removed)

    @property
    def num_ahead(self) -> int:
        """Records that it has not acknowledged."""
        return self.position - self.acknowledged

    def holds_up(self, position: int) -> bool:
        """Return whether an answer waits for it: one that is not needed has to have read what the
        worker may write over then, if nothing more.

        Args:
            position: Position of the last record that the answer is about.
        """
        if not self.is_needed:
            position = min(position, self.borrowed) if self.broken is None else 0
        return not may_answer(position, (self.acknowledged,))

    def cancel(self) -> None:
        """Break the link. From any thread."""
        self.link.cancel()

    def lead_in(self, epoch: int) -> None:
        """Send later records in this epoch."""
        self.link.lead_in(epoch)

    def send(self, record: Record) -> None:
        """Send a record, if it is for this follower. The caller holds the stream's lock."""
        if isinstance(record, (BlockCopyBegun, TableCopied)):
            self.blocks.add(record.block)
        elif isinstance(record, BLOCK_RECORDS) and record.block not in self.blocks:
            completion = completion_of(record)
            if completion is None:
                return
            record = completion  # the rest comes with the block's copy
        self.position += 1  # also of what it will never get: no answer may leave that out
        if self.broken is not None:
            return
        if isinstance(record, BlockUpdated):
            if record.block in self.copied:
                record = before(record, self.copied[record.block])
            if record.segment is not None:
                self.borrowed = self.position
        try:
            self.link.send(self.position, record)
        except (OSError, RopewalkError) as error:
            self.broken = error
