"""The tasks of a job begin together: whoever has made its first step waits for those of the others.

What is compiled at first may take longer than all steps of a short job, which those that are ready
would make alone. A job whose chief waits for workers begins so; the setting is
``wait_for_workers``.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..core.process.waiting import FIRST_S
from ..core.states import LONGEST_FIRST_STEP_S

if TYPE_CHECKING:
    from ..client.chief.membership import Membership
    from .lead.leader import JobLeader

log = logging.getLogger(__name__)

_POLL_S = 0.02


class FirstSteps:
    """The wait of one task. Its program begins when this is made.

    Args:
        membership: Says whether the task is held.
        leader: Leader of the job, if this is its chief; shows for whom it waits.
        least_s: Least time that others have. Unit: seconds.
    """

    def __init__(
        self, membership: "Membership", leader: "JobLeader | None", least_s: float = 10.0
    ) -> None:
        self._least_s = least_s
        self._membership = membership
        self._leader = leader
        self._began = time.monotonic()

    def wait(self, check: Callable[[], None]) -> None:
        """Wait, after this task's first step, until all that are here have made theirs.

        A task need not make any, so this takes no longer than ten seconds and twice the time that
        this task needed, and a minute at most.

        Args:
            check: Called while waiting; raises to give up.
        """
        now = time.monotonic()
        limit_s = min(LONGEST_FIRST_STEP_S, self._least_s + 2 * (now - self._began))
        tells_at, until = now + FIRST_S, now + limit_s
        others = "others"
        try:
            while self._membership.is_held:
                check()
                if self._leader is not None:
                    others = self._leader.tell_first_steps() or others
                if time.monotonic() >= until:
                    log.info("goes on though %s made no step within %.3g s", others, limit_s)
                    return
                if time.monotonic() >= tells_at:
                    tells_at = until
                    log.info("waiting for the first step of %s, %.3g s at most", others, limit_s)
                time.sleep(_POLL_S)
        finally:
            if self._leader is not None:
                self._leader.end_first_steps()
