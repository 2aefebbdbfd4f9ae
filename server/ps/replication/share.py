"""One share on one ps: its store, and this ps's part in it."""

import threading
from collections.abc import Callable

from ....cluster.replication import replica
from ....cluster.replication.configuration import Lead
from ....cluster.replication.replica import Replica
from ....core.errors import FencedError, RefusedError
from ....core.settings import Settings
from ....core.task import TaskId
from ..store import Store
from .records import Record
from .replaying import Replayer


class ReplicatedShare:
    """A share that this ps leads, follows, or does not hold. Thread-safe.

    Args:
        number: Number of the share.
        task: This ps.
        settings: Settings of this ps, for the store's bounds.

    Attributes:
        store: The share's content; replaced when this ps follows another leader.
        replica: Role and state of this ps in the share.
    """

    def __init__(self, number: int, task: TaskId, settings: Settings) -> None:
        self.number = number
        self.store = Store(task, settings)
        self.replica = Replica()
        self._task = task
        self._settings = settings
        self._lock = threading.Lock()
        self._replayer = Replayer(self.store)
        self._position = 0
        self._break_link: Callable[[], None] = lambda: None

    def lead(self, order: Lead) -> None:
        """Obey an order to lead: answers wait for exactly the followers that it names.

        What a link has brought until now is carried out, and nothing more is taken from it.

        Raises:
            FencedError: This ps may not: it has heard of a later epoch, or has not everything.
        """
        with self._lock:
            after = replica.ordered(self.replica, order)
            if after is None:
                raise FencedError(
                    f"{self._task} cannot lead share {self.number} in epoch {order.epoch}: "
                    f"{self._described()}",
                    task=self._task,
                    share=self.number,
                )
            self.replica = after
            self._break_link()
            self._break_link = lambda: None
            self.store.records.need(after.needs)

    def follow(self, leader: TaskId, epoch: int, break_link: Callable[[], None]) -> None:
        """Follow a leader from now on; everything that is here is thrown away.

        Args:
            leader: That copies its share here.
            epoch: In which it leads.
            break_link: Ends its link. From any thread.

        Raises:
            FencedError: This ps leads the share, or knows of a later epoch.
        """
        with self._lock:
            after = replica.followed(self.replica, leader, epoch)
            if after is None:
                raise FencedError(
                    f"{self._task} does not follow {leader} in epoch {epoch} of share "
                    f"{self.number}: {self._described()}",
                    task=self._task,
                    share=self.number,
                )
            self._break_link()
            self._break_link = break_link
            self.replica = after
            self.store = Store(self._task, self._settings)
            self._replayer = Replayer(self.store)
            self._position = 0

    def take(self, leader: TaskId, epoch: int, position: int, record: Record) -> None:
        """Carry out a record of the leader.

        Raises:
            FencedError: This ps follows another leader, or none, by now.
            RefusedError: A record is missing.
        """
        with self._lock:
            if not replica.takes_record(self.replica, leader, epoch, position, self._position):
                if position != self._position + 1:
                    raise RefusedError(
                        f"{leader} sent record {position} of share {self.number} after "
                        f"{self._position}",
                        task=leader,
                    )
                raise FencedError(
                    f"{self._task} does not follow {leader} in epoch {epoch} of share "
                    f"{self.number} any more: {self._described()}",
                    task=self._task,
                    share=self.number,
                )
            self._replayer.take(record)
            self._position = position
            self.replica = replica.took_record(self.replica, epoch)
            if self._replayer.is_whole and not self.replica.is_whole:
                self.replica = replica.copied_whole(self.replica)

    def _described(self) -> str:
        now = self.replica
        whole = "" if now.is_whole else ", without all of its contents"
        return f"it is {now.role} in epoch {now.epoch}{whole}"
