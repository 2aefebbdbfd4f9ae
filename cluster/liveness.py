"""Whether a peer that is silent is lost: a limit that its own signs of life set, and evidence.

Silence alone says little: a machine with more to do than it can delays everything, and a program
may keep all threads of its process from running. So silence only has a peer *looked at*, and what
its machine says decides: a closed connection, a signal that stops it, a process that answers no
ping. How long the silence must last for that follows from the longest intervals between the peer's
last signs of life, which grow when either machine is busy. Without evidence nothing is decided
before the lease is over.

Pure: time is an argument, on a clock that never jumps (``core/clock.py``).
"""

from collections import deque
from enum import Enum, StrEnum, auto

_WINDOW = 100  # intervals: 50 seconds of heartbeats
_FIRST = 5  # intervals until a limit follows from them
_FACTOR = 2.0  # of the longest one
_GROWTH = 2.0  # of the longest one, by one interval: a process that was stopped was not busy
_ASK = 0.6  # of the limit: from then on a silent peer is asked whether it is there
_ANSWER = 0.25  # of the limit: time for an answer


class Rhythm:
    """The intervals between the signs of life of one peer, and the silence that they allow.

    The longest of the last hundred intervals, twice, within bounds: no distribution is assumed, as
    the phi-accrual detector does. One interval at most doubles the limit.
    """

    def __init__(self) -> None:
        self._intervals: deque[float] = deque(maxlen=_WINDOW)
        self._heard: float | None = None

    def heard(self, now: float) -> None:
        """Note a sign of life."""
        if self._heard is not None:
            interval = max(0.0, now - self._heard)
            if len(self._intervals) >= _FIRST:
                interval = min(interval, _GROWTH * max(self._intervals))
            self._intervals.append(interval)
        self._heard = now

    def skip(self, seconds: float, now: float) -> None:
        """Leave out a time in which nobody listened: it is no silence of the peer."""
        if self._heard is not None:
            self._heard = min(now, self._heard + seconds)

    def limit_s(self, shortest_s: float, longest_s: float, unknown_s: float | None = None) -> float:
        """Compute the longest silence of a peer of which something else says that it is gone.

        Args:
            shortest_s: Least limit, on a machine that has nothing else to do. Unit: seconds.
            longest_s: Greatest limit. Unit: seconds.
            unknown_s: Limit until enough is known; None: the greatest. Unit: seconds.
        """
        if len(self._intervals) < _FIRST:
            return longest_s if unknown_s is None else unknown_s
        return min(longest_s, max(shortest_s, _FACTOR * max(self._intervals)))


class Evidence(StrEnum):
    """Evidence about the process of a peer, beside its silence."""

    NONE = "nothing is known of its process"
    THERE = "its process is there"
    ENDED = "its connection is closed"
    REFUSED = "nothing listens at its port any more"
    STOPPED = "a signal keeps it from running (SIGSTOP)"
    UNANSWERED = "its process answers no ping, though its connection is open"

    @property
    def says_gone(self) -> bool:
        """Whether the process has ended, does not run, or cannot be reached."""
        return self not in (Evidence.NONE, Evidence.THERE)


class Judgement(Enum):
    """Judgement of a peer."""

    WELL = auto()
    LATE = auto()
    LOST = auto()


def is_to_be_asked(silent_s: float, limit_s: float) -> bool:
    """Return whether a silent peer is to be asked whether it is there."""
    return silent_s > _ASK * limit_s


def answer_s(limit_s: float) -> float:
    """Compute the time that the answer to a ping may take. Unit: seconds."""
    return _ANSWER * limit_s


def judge(
    silent_s: float,
    evidence: Evidence,
    *,
    limit_s: float,
    lease_s: float,
    late_s: float,
) -> Judgement:
    """Decide what becomes of a silent peer.

    Args:
        silent_s: Time since its last sign of life, as far as it was listened for. Unit: seconds.
        evidence: Evidence about its process.
        limit_s: Silence after which evidence that it is gone counts. Unit: seconds.
        lease_s: Silence after which it is lost without any. Unit: seconds.
        late_s: Longest time that one whose process is there may be late; 0: not at all. Unit:
            seconds.
    """
    if silent_s <= min(limit_s, lease_s):
        return Judgement.WELL
    if evidence.says_gone:
        return Judgement.LOST
    if silent_s <= lease_s:
        return Judgement.WELL
    is_late = evidence is Evidence.THERE and silent_s <= late_s
    return Judgement.LATE if is_late else Judgement.LOST
