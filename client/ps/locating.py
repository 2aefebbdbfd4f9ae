"""Reaching every ps: who leads a share, as the chief says, and sessions with all, however late."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ...cluster.replication.configuration import ShareLeader
from ...cluster.spec import PS
from ...core.backoff import Backoff, attempts
from ...core.errors import JoinTimeoutError, MovedError, PeerLostError, RopewalkError
from ...core.process.threads import new_thread
from ...core.process.waiting import WaitLog
from ...core.task import Incarnation, TaskId
from ..chief.calls import ChiefClient
from .step import PsPeer

log = logging.getLogger(__name__)

# -- Leaders of shares: they may change while training goes on ---------------------------------

_ANSWER_S = 2.0  # a call waits for a change for half a second
_PAUSE_S = 0.1


def leader_in(error: MovedError, share: int) -> ShareLeader | None:
    """Read who leads a share from the error of a ps that does not any more; None: not said."""
    said = error.fields
    try:
        leader = TaskId(PS, int(said["leader"]))
        return ShareLeader(share, int(said["epoch"]), leader, said["address"])
    except (KeyError, ValueError):
        return None


def _failed(error: BaseException) -> None:
    log.error("the leaders of shares are not asked for any more: %r", error)


class LeaderWatch:
    """Follows the leaders of all shares, in a thread of its own. Thread-safe.

    Without a chief what was heard last stays.

    Args:
        chief: The chief that is asked.
        pause_s: Pause between two questions that the chief answers at once; 0: it answers once
            there is a change, and holds a thread until then. Unit: seconds.
        refused_s: Pause after a refusal, e.g. of a token that is about to be renewed. Unit:
            seconds.

    Attributes:
        shares: Number of shares; 0: they do not move, and each ps serves its own.
    """

    def __init__(self, chief: ChiefClient, pause_s: float = 0.0, *, refused_s: float = 5.0) -> None:
        self._chief = chief
        self._pause_s, self._refused_s = pause_s, refused_s
        self._leaders: dict[int, ShareLeader] = {}
        self._said: dict[int, ShareLeader] = {}  # by the chief
        self._lock = threading.Lock()  # of both
        self._told: list[Callable[[], None]] = []
        self._closing = threading.Event()
        self._changes = 0
        self.shares = 0

    def begin(self, timeout_s: float, check: Callable[[], None] = lambda: None) -> bool:
        """Ask once, and go on asking if the job's shares move; returns whether they do.

        Args:
            timeout_s: Time to go on asking a chief that does not answer. Unit: seconds.
            check: Called before each attempt; raises to give up.

        Raises:
            PeerLostError: The chief does not answer, or does not say how many shares there are.
        """
        for attempt in attempts(timeout_s=timeout_s, stop=self._closing):
            check()  # what it raises is no failure to try again after
            with attempt:
                self._ask()
                if self._changes and not self.shares:
                    self._changes = 0  # the next answer is not to wait for a change
                    raise PeerLostError("the chief does not know the job's shares yet")
        if move := self._changes > 0:
            new_thread("leaders", self._watch, failed=_failed).start()
        return move

    def leader_of(self, share: int) -> ShareLeader | None:
        """Find the ps that leads a share; None: the chief has not said yet."""
        return self._leaders.get(share)

    def tell(self, moved: Callable[[], None]) -> None:
        """Call ``moved`` after each change, from another thread."""
        self._told.append(moved)

    def close(self) -> None:
        """Ask no more, from now on: the chief's channel may be closed."""
        self._closing.set()
        self._chief.end_watch()

    def _ask(self) -> None:
        seen = 0 if self._pause_s else self._changes
        self._changes, shares, leaders = self._chief.watch_leaders(seen, timeout_s=_ANSWER_S)
        self.shares = self.shares or shares
        # A restarted chief says one after the other; what was heard before stays until then. It
        # counts anew, so that its number of changes may be the one that was seen.
        with self._lock:
            news = {each.share: each for each in leaders if self._said.get(each.share) != each}
            self._said |= news
        self._take(news)

    def learn(self, leader: ShareLeader) -> None:
        """Take who leads from a ps that has handed its share over. From any thread.

        That counts until the chief says something else than before, which it may do late.
        """
        known = self.leader_of(leader.share)
        if known is None or leader.epoch > known.epoch:
            self._take({leader.share: leader})

    def _take(self, news: Mapping[int, ShareLeader]) -> None:
        with self._lock:
            before, self._leaders = self._leaders, {**self._leaders, **news}
            if self._leaders == before:
                return
        for moved in self._told:
            moved()

    def _watch(self) -> None:
        while not self._closing.is_set():
            try:
                self._ask()
                self._closing.wait(self._pause_s)
            except PeerLostError as error:
                log.debug("%s", error)
                self._changes = 0  # a restarted chief counts anew
                self._closing.wait(_PAUSE_S)
            except RopewalkError as error:
                log.warning("the chief does not say which ps lead: %s", error)
                self._closing.wait(self._refused_s)


# -- Opening a session with every ps, however late some of them are ----------------------------

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
    missing = list(peers)
    backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    waits = WaitLog(who.task, limit_s=timeout_s, limit="join_timeout_s")

    def attempt(peer: PsPeer) -> PeerLostError | None:
        try:
            peer.connect(min(_ATTEMPT_S, max(_LEAST_ATTEMPT_S, waits.left_s)))
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
            if waits.is_over:
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
