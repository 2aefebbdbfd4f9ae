"""The moves of shares that the chief is asked for, for those that ask and those that watch."""

import logging
import threading
from collections.abc import Callable

from ...cluster.replication.moves import Move, MovePhase
from ...core.errors import ConfigurationError
from ...core.task import TaskId

log = logging.getLogger(__name__)

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
