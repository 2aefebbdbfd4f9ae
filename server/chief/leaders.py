"""Which ps leads each share, for the tasks that ask the chief."""

import threading

from ...cluster.replication.reports import ShareLeader
from .moves import Moves


class Leaders:
    """The leaders that have obeyed. Thread-safe.

    Args:
        replicas: How many ps are to have each share; 1: each leads its own for ever.

    Attributes:
        replicas: The same.
        failovers: How often another ps has come to lead a share.
        moves: The moves of shares.
    """

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.failovers = 0
        self.moves = Moves()
        self._change = threading.Condition()
        self._changes = 1 if replicas > 1 else 0
        self._leaders: dict[int, ShareLeader] = {}

    def publish(self, leader: ShareLeader) -> None:
        """Tell the tasks that ask from now on, and those that wait."""
        with self._change:
            before = self._leaders.get(leader.share)
            if before == leader:
                return
            if before is not None and before.leader != leader.leader:
                self.failovers += 1
            self._leaders[leader.share] = leader
            self._changes += 1
            self._change.notify_all()

    def watch(self, seen: int, wait_s: float) -> tuple[int, list[ShareLeader]]:
        """All leaders, after a change beyond ``seen`` or after ``wait_s``.

        Returns:
            (number of changes until now; 0 if the job has no replicas, the leaders by share)
        """
        with self._change:
            if self._changes:
                self._change.wait_for(lambda: self._changes != seen, wait_s)
            return self._changes, self.now()

    def now(self) -> list[ShareLeader]:
        """All leaders, by share."""
        leaders = dict(self._leaders)
        return [leaders[share] for share in sorted(leaders)]
