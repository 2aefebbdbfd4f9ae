"""Watches one ps of a job with replicas: its reports, and at once when its process ends."""

import logging
import math
import threading
import time
from collections.abc import Callable

from ...client.ps.control import PsControl
from ...cluster.liveness import Rhythm
from ...cluster.replication.configuration import PsReport
from ...core.errors import PeerLostError, RopewalkError
from ...core.process.events import event
from ...core.process.threads import new_thread
from ...core.task import Incarnation, TaskId

log = logging.getLogger(__name__)

# A call is answered after half a second. A ps that is silent for much longer than it was before
# stands still: for twice its longest answer, within these bounds; 2 seconds until some are known.
_SHORTEST_S, _LONGEST_S, _WATCH_S = 1.0, 10.0, 2.0
_PROBE = 0.4  # of that
_FIRST_ANSWER_S = 3.0
_PAUSE_S = 0.1
_PORT_S = 0.2  # for a machine to refuse a connection
_REFUSED_S = 1.0

SUSPECTED = PsReport(0)
"""Stand-in for a report: the ps does not answer, and may be there still."""

Heard = Callable[[TaskId, PsReport | None], None]
"""Takes a ps's report; None: the ps is lost."""


class PsWatch:
    """A thread that asks one ps what it is to its shares.

    Args:
        control: Calls to the ps.
        who: The chief.
        heard: Called with each report, once when the ps is suspected, and once when it is lost: its
            port is closed, or it was suspected for ``lost_s``. From the thread.
        closing: Set when nothing is to be asked any more.
        was_led: A chief before has led it: so it is suspected if it does not answer soon.
        lost_s: Time that it is suspected before it is lost. Unit: seconds.
        failed: Called if the thread ends by an exception.
    """

    def __init__(
        self,
        control: PsControl,
        who: Incarnation,
        heard: Heard,
        closing: threading.Event,
        *,
        was_led: bool,
        lost_s: float,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._control = control
        self._who = who
        self._heard = heard
        self._closing = closing
        self._was_led = was_led
        self._lost_s = lost_s
        self._rhythm = Rhythm()
        self._thread = new_thread(f"watch-{control.task.short}", self._watch, failed=failed)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait until nothing is asked any more."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _watch(self) -> None:
        control, seen, known = self._control, 0, False
        # A restarted chief knows it from the one before, and may reach it a moment later.
        late_at = time.monotonic() + _FIRST_ANSWER_S if self._was_led else math.inf
        lost_at = math.inf
        while not self._closing.is_set():
            try:
                seen, report = control.watch_shares(
                    self._who, seen, timeout_s=self._limit_s if seen else self._probe_s
                )
            except PeerLostError as error:
                if self._closing.is_set():
                    return
                if seen:
                    silent = event("ps.silent", of=control.task.short, error=error)
                    log.warning("%s does not answer: %s", control.task, error, extra=silent)
                seen = 0
                if (known or time.monotonic() > late_at) and not self._answers():
                    known, late_at = False, math.inf
                    lost_at = time.monotonic() + self._lost_s
                    self._heard(control.task, SUSPECTED)
                if lost_at < math.inf and self._is_lost(lost_at):
                    lost_at = math.inf
                    self._heard(control.task, None)
                self._closing.wait(_PAUSE_S)
            except RopewalkError as error:  # e.g. of another job: the lease says so, too
                log.debug("%s", error)
                self._closing.wait(_REFUSED_S)
            else:
                self._rhythm.heard(time.monotonic())
                known, lost_at = True, math.inf
                self._heard(control.task, report)

    @property
    def _limit_s(self) -> float:
        return self._rhythm.limit_s(_SHORTEST_S, _LONGEST_S, _WATCH_S)

    @property
    def _probe_s(self) -> float:
        return _PROBE * self._limit_s

    def _is_lost(self, lost_at: float) -> bool:
        """Return whether a ps that is suspected is not there any more."""
        return time.monotonic() > lost_at or self._control.has_ended(_PORT_S)

    def _answers(self) -> bool:
        """Return whether a ps whose call broke off answers another one, soon."""
        try:
            self._control.watch_shares(self._who, 0, timeout_s=self._probe_s)
        except RopewalkError:
            return False
        return True
