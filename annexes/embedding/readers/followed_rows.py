"""Questions of a reader about rows that changed, and the answers of a ps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....core.arrays.dtypes import Array
from ....core.errors import RopewalkError
from ....core.wire import error_table
from ....core.wire.bounds import MAX_NAME_BYTES, check_count, check_text
from ....proto.v1 import session_pb2

MAX_RANGES = 64
"""Most ranges of keys in one question."""
_WHO = "a reader"


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where a reader knows the changes of a shard.

    Attributes:
        log: Identity of the changes; 0: none are known.
        since: Position from which on changes are asked for; 0: all rows that are there.
    """

    log: int = 0
    since: int = 0


@dataclass(frozen=True, slots=True)
class FollowRequest:
    """Asks which rows of a shard changed.

    Attributes:
        variable: The array, or table.
        part: Number of the shard in it.
        position: Position from which changes are asked for.
        cursor: Place at which to go on; 0: begin.
        ranges: (first, last) of the keys that are asked for, ``last`` included; empty: all keys.
    """

    variable: str
    part: int
    position: Position
    cursor: int = 0
    ranges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class FollowAnswer:
    """An answer about rows that changed. Their keys are the payload.

    Attributes:
        position: Position from which later changes are; of the first answer to a question.
        next: Place at which to go on; 0: that was all.
        unknown: Not all changes are known: any row may have changed.
        payload_bytes: Size of the keys.
        error: Why there is no answer; None: there is one.
    """

    position: Position = Position()
    next: int = 0
    unknown: bool = False
    payload_bytes: int = 0
    error: RopewalkError | None = None


def within(keys: Array, ranges: Sequence[tuple[int, int]]) -> Array:
    """Find the keys that are in one of some ranges, if there are any ranges.

    Args:
        keys: int64, shape ``(n,)``.
        ranges: (first, last), ``last`` included.

    Returns:
        bool, shape ``(n,)``.
    """
    inside: Array = np.full(keys.size, not ranges)
    for first, last in ranges:
        inside |= (keys >= first) & (keys <= last)
    return inside


def request_to_wire(request: FollowRequest) -> session_pb2.FollowRows:
    """Encode a question as a message."""
    return session_pb2.FollowRows(
        variable=request.variable,
        part=request.part,
        log=request.position.log,
        since=request.position.since,
        cursor=request.cursor,
        ranges=[session_pb2.KeyRange(first=first, last=last) for first, last in request.ranges],
    )


def request_from_wire(message: session_pb2.FollowRows) -> FollowRequest:
    """Decode the question in a message.

    Raises:
        RefusedError: Its name is too long, or it has too many ranges.
    """
    check_text(message.variable, MAX_NAME_BYTES, "the name of a variable", _WHO)
    check_count(message.ranges, MAX_RANGES, "ranges of keys", _WHO)
    return FollowRequest(
        message.variable,
        message.part,
        Position(message.log, message.since),
        message.cursor,
        tuple((span.first, span.last) for span in message.ranges),
    )


def answer_to_wire(answer: FollowAnswer) -> session_pb2.FollowedRows:
    """Encode an answer as a message."""
    return session_pb2.FollowedRows(
        log=answer.position.log,
        position=answer.position.since,
        next=answer.next,
        unknown=answer.unknown,
        payload_bytes=answer.payload_bytes,
        error=error_table.to_detail(answer.error) if answer.error is not None else None,
    )


def answer_from_wire(message: session_pb2.FollowedRows) -> FollowAnswer:
    """Decode the answer in a message."""
    return FollowAnswer(
        Position(message.log, message.position),
        message.next,
        message.unknown,
        message.payload_bytes,
        error_table.from_detail(message.error) if message.HasField("error") else None,
    )
