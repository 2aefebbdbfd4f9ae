"""Reading the values of all ps at one moment, while training goes on."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.backoff import Backoff
from ...core.errors import CutVoidError, PeerLostError, RopewalkError
from ...core.task import Incarnation
from ...core.wire.cut_marks import Elements, Marks
from ..chief.calls import ChiefClient
from .step import PsPeer

_CALL_S = 30.0  # the chief retries; a try takes one or two seconds
_MAX_THREADS = 16


@dataclass(frozen=True, slots=True)
class PsSnapshot:
    """All variables of a job at one moment.

    Attributes:
        values: Whole variables by name, read-only. Growing tables are not among them.
        global_step: Global step at that moment.
        pushes: Number of the last push of each task (``"worker:0"``) that is in the values. A push
            is a step that changes variables, an assignment outside of steps, or first values. All
            up to there are in the values, whichever ps they went to, and none beyond.
    """

    values: Mapping[str, Array]
    global_step: int
    pushes: Mapping[str, int]


def take_snapshot(
    chief: ChiefClient,
    who: Incarnation,
    peers: Sequence[PsPeer],
    timeout_s: float,
    check: Callable[[], None] = lambda: None,
) -> PsSnapshot:
    """Have a cut taken, and read its values.

    Args:
        chief: Takes the cut.
        who: The task that reads.
        peers: Sessions of ``who`` with all ps.
        timeout_s: Time to try again after a cut that came to nothing. Unit: seconds.
        check: Called before each attempt; raises to give up.

    Raises:
        CutVoidError: None could be taken and read in time; why the last one was void.
        PeerLostError: The chief, or a ps, does not answer.
    """
    until, backoff = time.monotonic() + timeout_s, Backoff(0.05, 0.5)
    while True:
        check()
        try:
            return _take(chief, who, peers)
        except (CutVoidError, PeerLostError) as error:  # another ps may lead in a moment
            pause_s = backoff.next_s()
            if time.monotonic() + pause_s > until:
                raise type(error)(
                    f"{who.task}: no snapshot in {timeout_s:g} s: {error.message}", task=who.task
                ) from error
            threading.Event().wait(pause_s)


def _take(chief: ChiefClient, who: Incarnation, peers: Sequence[PsPeer]) -> PsSnapshot:
    number, global_step, marks = chief.take_cut(who, timeout_s=_CALL_S)
    values = _Values()
    try:
        with ThreadPoolExecutor(min(_MAX_THREADS, len(peers)), thread_name_prefix="read") as pool:
            for reading in [pool.submit(values.read, peer, number) for peer in peers]:
                reading.result()
    finally:
        _release(chief, who, number)
    return PsSnapshot(values.whole(number), global_step, _pushes(marks))


class _Values:
    """Variables, put together from what the ps have of them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrays: dict[str, Array] = {}
        self._missing: Counter[str] = Counter()

    def read(self, peer: PsPeer, number: int) -> None:
        """Take all values that a ps has."""
        piece = 0
        while parts := peer.read_cut(number, piece, _CALL_S):
            for part in parts:
                self._put(part)
            piece += 1

    def _put(self, part: Elements) -> None:
        with self._lock:
            array = self._arrays.get(part.variable)
            if array is None:
                array = np.empty(part.shape, part.values.dtype)
                self._arrays[part.variable], self._missing[part.variable] = array, array.size
            array.reshape(-1)[part.start : part.start + part.values.size] = part.values
            self._missing[part.variable] -= part.values.size

    def whole(self, number: int) -> dict[str, Array]:
        """Return the variables, read-only.

        Raises:
            CutVoidError: One is there in part.
        """
        for name, count in self._missing.items():
            if count:
                raise CutVoidError(f"cut {number} has {name!r} in part: it was just being made")
        for array in self._arrays.values():
            array.flags.writeable = False
        return self._arrays


def _release(chief: ChiefClient, who: Incarnation, number: int) -> None:
    try:
        chief.release_cut(who, number, timeout_s=_CALL_S)
    except RopewalkError:
        return  # the next cut ends this one, and ps keep nothing for long that is not read


def _pushes(marks: Marks) -> dict[str, int]:
    return {who.task.short: mark.pushes for who, mark in sorted(marks.items(), key=str)}
