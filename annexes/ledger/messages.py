"""Messages about leases: a question with what a worker has to tell, and its answer."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import RefusedError
from ...core.task import Incarnation
from ...core.wire import codec
from ...core.wire.bounds import MAX_COUNT, check_number
from ...proto.v1 import chief_pb2
from .leases import AllLeased, Answer, Leases, Over, RangeLease, Tell
from .plan import RangesProgress


def answer(
    leases: Leases, request: chief_pb2.LeaseRangeRequest, who: Incarnation
) -> chief_pb2.LeaseRangeResponse:
    """Hear what a worker says, and lease it a range if it wants one.

    Raises:
        RefusedError: A number in the message is not possible.
    """
    _hear(leases, request, who)
    return _answer_to_wire(leases.take(who, request.epoch) if request.takes else AllLeased())


def leased_to_wire(leased: Iterable[tuple[int, int]]) -> list[chief_pb2.LeasedRange]:
    """Encode ranges: (epoch, number) each."""
    return [chief_pb2.LeasedRange(epoch=epoch, number=number) for epoch, number in leased]


def progress_to_wire(progress: RangesProgress) -> chief_pb2.LedgerProgress:
    """Encode the progress of all ranges."""
    return chief_pb2.LedgerProgress(
        epoch=progress.epoch, done=_packed(progress.done), begun=_packed(progress.begun)
    )


def _packed(bits: Array) -> bytes:
    return np.packbits(bits, bitorder="little").tobytes()


def _hear(leases: Leases, request: chief_pb2.LeaseRangeRequest, who: Incarnation) -> None:
    """Take over what a worker says.

    Raises:
        RefusedError: A number in it is not possible.
    """
    if request.HasField("progress"):
        leases.learn(_progress_of(request.progress, request.ranges, who))
    check_number(request.epoch, MAX_COUNT, "an epoch", who)
    for each in (*request.done, *request.held, *request.given_back):
        check_number(each.number, request.ranges - 1, "the number of a range", who)
    for each in request.done:
        leases.finish(each.epoch, [each.number])
    for each in request.held:
        leases.hold(each.epoch, each.number, who)
    for each in request.given_back:
        leases.give_back(each.epoch, [each.number], who)


def _progress_of(
    message: chief_pb2.LedgerProgress, ranges: int, who: Incarnation
) -> RangesProgress:
    def bits(packed: bytes) -> Array:
        if len(packed) != -(-ranges // 8):
            raise RefusedError(f"{who}: {len(packed)} bytes say what became of {ranges} ranges")
        unpacked: Array = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
        return unpacked[:ranges].astype(np.bool_)

    return RangesProgress(message.epoch, bits(message.done), bits(message.begun))


def _answer_to_wire(answer: Answer) -> chief_pb2.LeaseRangeResponse:
    fields: dict[str, Any] = {}
    if isinstance(answer, RangeLease):
        leased = chief_pb2.LeasedRange(epoch=answer.epoch, number=answer.number)
        fields = {"range": leased, "begun": answer.begun}
    elif isinstance(answer, Over):
        fields = {"over": True}
    elif isinstance(answer, Tell):
        fields = {"tell": True}
    else:
        tasks = [codec.task_to_wire(who.task) for who in answer.holders]
        fields = {"wait": chief_pb2.Holders(tasks=tasks)}
    return chief_pb2.LeaseRangeResponse(**fields)
