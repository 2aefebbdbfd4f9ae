"""Answers that a ps leaves in a worker's segment."""

from typing import Any

import numpy as np
import pytest

from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import RefusedError
from ropewalk.core.wire.steps import StepReply
from ropewalk.proto.v1 import session_pb2
from ropewalk.server.ps.session_service import SegmentAnswer


class Sent:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.replies: list[session_pb2.StepReply] = []

    def send(self, messages: list[bytes]) -> None:
        for message in messages:
            self.replies.append(session_pb2.ServerMessage.FromString(message).step)


def answer(room: Array) -> tuple[SegmentAnswer, Sent]:
    sent: Any = Sent()
    return SegmentAnswer(sent, room), sent


def test_values_stand_one_after_another_and_the_reply_comes_after_them() -> None:
    room = np.zeros(64, np.uint8)
    own, sent = answer(room)
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    own.begin(StepReply(3, payload_bytes=40))
    read = own.room(16)
    assert read is not None
    read[:] = 7  # a table has put its rows there
    own.copy(read)
    own.copy(table, np.array([5, 0]))
    own.copy(np.ones(2, np.float32))
    assert not sent.replies
    own.finish()
    assert [(each.payload_bytes, each.values_in_segment) for each in sent.replies] == [(40, True)]
    assert (room[:16] == 7).all()
    assert not room[40:].any()
    np.testing.assert_array_equal(room[16:40].view(np.float32), [10, 11, 0, 1, 1, 1])


def test_an_answer_without_values_says_nothing_of_the_segment() -> None:
    own, sent = answer(np.zeros(64, np.uint8))
    own.begin(StepReply(3))
    own.finish()
    assert not sent.replies[0].values_in_segment


def test_a_room_that_is_too_small_ends_the_session() -> None:
    own, _ = answer(np.zeros(64, np.uint8))
    with pytest.raises(RefusedError, match="values of 65 bytes in a room of 64"):
        own.begin(StepReply(3, payload_bytes=65))
