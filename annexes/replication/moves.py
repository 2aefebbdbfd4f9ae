"""Requests to the chief about shares that move: moves, and the number of ps."""

import logging
import threading
from collections.abc import Callable

from ...cluster.replication.configuration import Move, MovePhase
from ...core.errors import ConfigurationError, PeerLostError, RefusedError
from ...core.task import TaskId

log = logging.getLogger(__name__)

# -- Moves -------------------------------------------------------------------------------------

BeginMove = Callable[[int, TaskId], Move]


def _refuse(share: int, to: TaskId) -> Move:
    raise ConfigurationError(
        f"share {share} cannot move to {to.short}: the shares of this job do not move; start it "
        "with ROPEWALK_PS_SHARES or ROPEWALK_PS_REPLICAS=2 on the chief and all ps",
        task=to,
    )


class Moves:
    """Thread-safe.

    Attributes:
        begin: Begins a move; set by what leads the ps.
        last: The last move; None: there was none.
        done: Number of moves that were made.
        failed: Number of moves that failed.
    """

    def __init__(self) -> None:
        self.begin: BeginMove = _refuse
        self.last: Move | None = None
        self.done = self.failed = 0
        self._lock = threading.Lock()

    def publish(self, move: Move) -> None:
        """Tell how far a move has come, and count it once when it is over."""
        with self._lock:
            before = self.last
            if before is not None and before.number == move.number and before.phase.is_over:
                return
            self.last = move
            if not move.phase.is_over:
                return
            if move.phase is MovePhase.DONE:
                self.done += 1
                log.info("%s took %.2f s", move, move.seconds)
            else:
                self.failed += 1
                log.error("%s failed after %.2f s: %s", move, move.seconds, move.reason)


# -- The ps that come to a running job, and how many it is to have -----------------------------

JoinPs = Callable[[TaskId, str], None]
"""Takes a ps and its address."""


def _not_yet(task: TaskId, address: str) -> None:
    raise PeerLostError(f"{task} at {address}: the chief does not lead the ps yet", task=task)


class Servers:
    """Requests to the chief about the number of ps. Thread-safe.

    Attributes:
        join: Takes a ps into the job; set by what leads the ps.
        wanted: Number of ps that the job is to have; 0: as many as it began with.
        shares: Number of shares; 0: not known yet.
    """

    def __init__(self) -> None:
        self.join: JoinPs = _not_yet
        self.wanted = 0
        self.shares = 0

    def check(self, ps: TaskId) -> None:
        """Check that a ps of this index may come: the chief asks all of them, again and again.

        Raises:
            RefusedError: There is no share for it, nor may it replace one that has.
        """
        most = 2 * self.shares
        if self.shares and ps.index >= most:
            raise RefusedError(
                f"{ps} cannot come as a ps: ps:0 to ps:{most - 1} can, as there are {self.shares} "
                "shares (ps_shares)",
                task=ps,
            )

    def scale(self, count: int, *, replicas: int, shares: int) -> None:
        """Say how many ps there are to be.

        Args:
            count: The number.
            replicas: Number of ps that are to have each share.
            shares: Number of shares; 0: they do not move.

        Raises:
            ConfigurationError: No ps can come or leave in this job.
            RefusedError: It cannot have so many, or so few.
        """
        if not shares:
            raise ConfigurationError(
                "the ps of this job cannot become more or fewer, since its shares do not move; "
                "start it with ROPEWALK_PS_SHARES on the chief and all ps, at least as many as the "
                "most ps that it is to have"
            )
        if not replicas <= count <= shares:
            raise RefusedError(
                f"this job can have {replicas} to {shares} ps, not {count}: each of its {shares} "
                f"shares (ps_shares) is led by one, and on {replicas} of them (ps_replicas)",
                value=count,
                limit="ps_shares" if count > shares else "ps_replicas",
            )
        self.wanted = count
