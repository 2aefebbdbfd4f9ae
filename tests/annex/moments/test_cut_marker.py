"""A worker's part in cuts: it asks until it should mark, once for each; not without a session."""

import threading
from typing import cast

from helpers.waiting import wait_until
from ropewalk.annexes.moments.cut_marker import CutMarker
from ropewalk.client.chief.calls import ChiefClient
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.core.errors import PeerLostError, RopewalkError
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.proto.v1.chief_pb2 import HeartbeatResponse

WHO = Incarnation(TaskId("worker", 0), 3)


class Played:
    """A chief that answers from a script, and a session that notes its marks."""

    def __init__(self, *answers: tuple[bool, float] | RopewalkError) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []
        self.marked: list[int] = []
        self.has_session = self.is_idle = True
        self.marker = CutMarker(cast(ChiefClient, self), WHO, self._session)

    def hear(self, number: int) -> None:
        self.marker.hear(HeartbeatResponse(cut=number))

    def _session(self) -> ParameterSession | None:
        return cast(ParameterSession, self) if self.has_session else None

    def join_cut(self, who: Incarnation, number: int, *, timeout_s: float) -> tuple[bool, float]:
        assert (who, timeout_s > 0) == (WHO, True)
        self.asked.append(number)
        answer = self.answers.pop(0)
        if isinstance(answer, RopewalkError):
            raise answer
        return answer

    def is_free(self, timeout_s: float) -> bool:
        assert timeout_s > 0
        return self.is_idle

    def mark_cut(self, number: int) -> bool:
        self.marked.append(number)
        return True


def test_it_asks_until_it_should_mark() -> None:
    played = Played((False, 0.001), (False, 0.001), (True, 0.001))
    played.hear(4)
    wait_until(lambda: played.marked == [4], 10)
    assert played.asked == [4, 4, 4]


def test_a_cut_is_joined_once_however_often_it_is_heard_of() -> None:
    played = Played((True, 0.001), (True, 0.001))
    for number in (4, 4, 3, 4, 5, 4):
        played.hear(number)
    wait_until(lambda: sorted(played.marked) == [4, 5], 10)
    assert not played.answers


def test_a_cut_that_is_over_is_not_marked() -> None:
    played = Played((False, 0.001), (False, 0.0))
    played.hear(4)
    wait_until(lambda: not played.answers, 10)
    threading.Event().wait(0.05)
    assert played.asked == [4, 4]
    assert not played.marked


def test_a_worker_without_a_session_takes_part_later() -> None:
    played = Played((True, 0.001))
    played.has_session = False
    played.hear(4)
    played.has_session = True
    played.hear(4)
    wait_until(lambda: played.marked == [4], 10)
    assert played.asked == [4]


def test_a_worker_that_is_busy_for_long_does_not_join() -> None:
    played = Played((True, 0.001))
    played.is_idle = False
    played.hear(4)
    threading.Event().wait(0.05)
    assert not played.asked
    played.is_idle = True
    played.hear(5)
    wait_until(lambda: played.marked == [5], 10)
    assert played.asked == [5]


def test_a_chief_that_does_not_answer_ends_its_part() -> None:
    played = Played(PeerLostError("gone"), (True, 0.001))
    played.hear(4)
    wait_until(lambda: len(played.answers) == 1, 10)
    played.hear(5)
    wait_until(lambda: played.marked == [5], 10)


def test_one_that_is_closed_takes_no_part() -> None:
    played = Played()
    played.marker.close()
    played.hear(4)
    assert not played.asked
