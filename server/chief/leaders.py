"""Leaders of the shares, for the tasks that ask the chief."""

import threading

from ...cluster.replication.reports import ShareLeader


class Leaders:
    """The leaders that have obeyed. Thread-safe.

    Args:
        replicas: Number of ps that are to have each share.
        shares_move: Whether another ps may come to lead a share; else each leads its own for ever.

    Attributes:
        replicas: Number of ps that are to have each share.
        shares: Number of shares; 0: the chief has not begun to lead, or shares do not move.
        failovers: Number of times that another ps has come to lead a share because its leader was
            lost.
        last_failover_s: Duration of the last failover, from when the loss was known until the other
            ps led. Unit: seconds.
        handovers: Number of times that another ps has come to lead a share in order.
    """

    def __init__(self, replicas: int, *, shares_move: bool) -> None:
        self.replicas = replicas
        self.shares = 0
        self.failovers = self.handovers = 0
        self.last_failover_s = 0.0
        self._change = threading.Condition()
        self._changes = 1 if shares_move else 0
        self._leaders: dict[int, ShareLeader] = {}

    def publish(self, leader: ShareLeader, failover_s: float | None = None) -> None:
        """Tell the tasks that ask from now on, and those that wait.

        Args:
            leader: Leader of a share.
            failover_s: Time since the ps that led before was lost; None: it was not lost.
        """
        with self._change:
            before = self._leaders.get(leader.share)
            if before == leader:
                return
            if before is not None and before.leader != leader.leader:
                if failover_s is None:
                    self.handovers += 1
                else:
                    self.failovers, self.last_failover_s = self.failovers + 1, failover_s
            self._leaders[leader.share] = leader
            self._changes += 1
            self._change.notify_all()

    def watch(self, seen: int, wait_s: float) -> tuple[int, list[ShareLeader]]:
        """Wait for a change beyond ``seen``, or for ``wait_s``; returns the number of changes and
        all leaders.

        Returns:
            (number of changes until now; 0 if shares do not move, the leaders by share)
        """
        with self._change:
            if self._changes:
                self._change.wait_for(lambda: self._changes != seen, wait_s)
            return self._changes, self.now()

    def now(self) -> list[ShareLeader]:
        """List all leaders, by share."""
        leaders = dict(self._leaders)
        return [leaders[share] for share in sorted(leaders)]
