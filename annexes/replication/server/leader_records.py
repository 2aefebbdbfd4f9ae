"""Records of a leader, carried out in order, until its link ends."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from ....cluster.replication import replica
from ....cluster.replication.replica import ReplicaRole
from ....core.errors import RefusedError
from ....core.task import TaskId
from .records import Record
from .replaying import Replayer
from .share_part import SharePart

log = logging.getLogger(__name__)


class LeaderRecords:
    """The records of one leader on one link. Thread-safe.

    A leader may come again on another link; what the old one brings then is refused.

    Args:
        part: Part of this ps in the share.
        leader: Sends the records.
        cancel: Ends the link. From any thread.
        is_whole: Whether this ps has all that the leader has, and gets no copy.

    Attributes:
        heard: Time at which it has heard of the leader last, by the clock of ``time.monotonic``.
        has_ended: Whether the leader has ended the link.
    """

    def __init__(
        self,
        part: SharePart,
        leader: TaskId,
        cancel: Callable[[], None],
        *,
        is_whole: bool = False,
    ) -> None:
        self._part = part
        self._leader = leader
        self._cancel = cancel
        self._replayer = Replayer(part.store, is_whole=is_whole)
        self._position = 0
        self.heard = 0.0
        self.has_ended = False

    def cancel(self) -> None:
        """End the link. From any thread; a second time does nothing."""
        cancel, self._cancel = self._cancel, lambda: None
        cancel()

    def take(
        self,
        epoch: int,
        position: int,
        record: Callable[[], Record],
        accepted: Callable[[], None] = lambda: None,
    ) -> None:
        """Carry out a record of the leader.

        Args:
            epoch: Epoch in which it leads.
            position: Position of the record, on its link.
            record: Returns the record.
            accepted: Called before that and before the record is carried out, when it is sure that
                it will be before this ps leads. Briefly: the share is locked.

        Raises:
            FencedError: This ps follows another leader or link, or none, by now.
            RefusedError: A record is missing.
        """
        part, leader, number = self._part, self._leader, self._part.number
        with part.lock:
            have = self._position
            is_current = part.link is self
            if not is_current or not replica.takes_record(
                part.replica, leader, epoch, position, have
            ):
                if is_current and position != have + 1:
                    raise RefusedError(
                        f"{leader} sent record {position} of share {number} after {have}",
                        task=leader,
                    )
                raise part.fenced(
                    f"does not follow {leader} in epoch {epoch} of share {number} any more"
                )
            self.heard = time.monotonic()
            accepted()
            try:
                self._replayer.take(record())
            except BaseException as error:
                part.replica = replace(part.replica, is_whole=False)  # before it may lead
                raise RefusedError(
                    f"record {position} of share {number} of {leader} could not be carried out: "
                    f"{error!r}",
                    task=leader,
                ) from error
            self._position = position
            part.replica = replica.took_record(part.replica, epoch)
            became_whole = self._replayer.is_whole and not part.replica.is_whole
            if became_whole:
                part.replica = replica.copied_whole(part.replica)
        if became_whole:
            part.changed()

    def end(self) -> None:
        """End the link: without this ps the leader answers nothing any more.

        A copy that was not complete is thrown away.
        """
        part = self._part
        with part.lock:
            if part.link is not self or part.replica.leader is None:
                return
            self.has_ended = True
            if part.replica.is_whole:
                return
            part.become(replica.copy_ended(part.replica), "it was copied to in part")
        part.changed()

    def fail(self, error: BaseException) -> None:
        """Note that a record could not be carried out: this ps has not what the leader has."""
        part = self._part
        with part.lock:
            if part.link is not self or part.replica.role is not ReplicaRole.FOLLOWING:
                return
            part.replica = replace(part.replica, is_whole=False)
        log.error("does not follow %s in share %d any more: %s", self._leader, part.number, error)
        part.changed()
