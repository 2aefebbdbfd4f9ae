"""Opening a session with every ps, however late some of them are."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ...core.backoff import Backoff
from ...core.errors import JoinTimeoutError, PeerLostError
from ...core.process.waiting import WaitLog
from ...core.task import Incarnation
from .peer import PsPeer

_ATTEMPT_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.2
_LEAST_ATTEMPT_S = 0.1
_MAX_THREADS = 16


def connect_all(
    peers: Sequence[PsPeer],
    who: Incarnation,
    timeout_s: float,
    closed: threading.Event,
    *,
    still_wanted: Callable[[], None] = lambda: None,
    on_wait: Callable[[list[str]], None] | None = None,
) -> None:
    """Open a session with every ps, waiting for late ones.

    Args:
        peers: The ps.
        who: Incarnation of the calling task.
        timeout_s: Longest time to wait. Unit: seconds.
        closed: Ends the waiting when the session is closed.
        still_wanted: Called between attempts; raises to give up.
        on_wait: Called after every attempt with the names of the missing ps.

    Raises:
        JoinTimeoutError: Names the ps that did not answer, and the last reason.
    """
    deadline = time.monotonic() + timeout_s
    missing = list(peers)
    backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    waits = WaitLog(who.task, limit_s=timeout_s, limit="join_timeout_s")

    def attempt(peer: PsPeer) -> PeerLostError | None:
        try:
            peer.connect(min(_ATTEMPT_S, max(_LEAST_ATTEMPT_S, deadline - time.monotonic())))
        except PeerLostError as error:
            return error
        return None

    with ThreadPoolExecutor(min(_MAX_THREADS, len(missing)) or 1) as pool:
        while missing:
            results = list(pool.map(attempt, missing))
            late = [(p, e) for p, e in zip(missing, results, strict=True) if e is not None]
            missing = [peer for peer, _ in late]
            still_wanted()
            if not missing:
                waits.done()
                return
            names = [str(peer.task) for peer in missing]
            now = time.monotonic()
            if now >= deadline:
                raise JoinTimeoutError(
                    f"{who.task} waited {timeout_s:g} s (join_timeout_s) for "
                    f"{', '.join(names)}; the last answer: {late[0][1]}. Is it started, and can "
                    "this machine reach its address?",
                    task=who.task,
                    missing=",".join(names),
                ) from late[0][1]
            waits.tick(", ".join(names), late[0][1])
            if on_wait is not None:
                on_wait(names)
            closed.wait(backoff.next_s())
