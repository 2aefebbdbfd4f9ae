"""A worker's part in cuts: it hears of one, waits until all ps hold, and marks.

A worker that could not mark soon takes no part, e.g. while it waits for variables to be created.
Then no push waits for it, and the chief tries another cut later.
"""

import logging
import threading
from collections.abc import Callable

from ...client.chief.calls import ChiefClient
from ...client.ps.parameter_session import ParameterSession
from ...core.errors import RopewalkError
from ...core.process.threads import new_thread
from ...core.task import Incarnation
from ...proto.v1.chief_pb2 import HeartbeatResponse

log = logging.getLogger(__name__)

_ANSWER_S = 2.0
_BUSY_S = 0.5


def _failed(error: BaseException) -> None:
    log.error("a cut was not marked: %r", error)


class CutMarker:
    """Takes part in the cuts of a job, each in a thread of its own. Thread-safe.

    Args:
        chief: Says when to mark.
        who: Incarnation of the calling worker.
        session: Returns the worker's session; None: it has none yet, and takes no part.
    """

    def __init__(
        self, chief: ChiefClient, who: Incarnation, session: Callable[[], ParameterSession | None]
    ) -> None:
        self._chief = chief
        self._who = who
        self._session = session
        self._last = 0
        self._closing = threading.Event()

    def hear(self, answer: HeartbeatResponse) -> None:
        """Take part in the cut that an answer tells of, if that is not so yet. Called by one
        thread.
        """
        number, session = answer.cut, self._session()
        if number <= self._last or session is None or self._closing.is_set():
            return
        self._last = number
        new_thread(f"cut-{number}", lambda: self._join(session, number), failed=_failed).start()

    def _join(self, session: ParameterSession, number: int) -> None:
        # The others' pushes would wait for a mark that does not come.
        if not session.is_free(_BUSY_S):
            log.debug("takes no part in cut %d: the session is busy", number)
            return
        try:
            while not self._closing.is_set():
                marks, again_s = self._chief.join_cut(self._who, number, timeout_s=_ANSWER_S)
                if marks:
                    session.mark_cut(number)
                if marks or not again_s:
                    return
                self._closing.wait(again_s)
        except RopewalkError as error:
            log.debug("cut %d: %s", number, error)

    def close(self) -> None:
        """Take part in no more."""
        self._closing.set()
