"""The service that a leader dials: records in, acknowledgements out."""

import time
from collections.abc import Callable
from functools import partial

from ....core.arrays.memory_pool import Lease, MemoryPool
from ....core.errors import FencedError, RefusedError
from ....core.task import TaskId
from ....core.wire import codec
from ....net.connection import Connection
from ....net.dial import parse
from ....net.endpoint import Greeting
from ....net.listener import GREETING_TIMEOUT_S
from ....net.stream import NEVER
from ....proto.v1 import replication_pb2, session_pb2
from ....server.ps.payload import most_segment_bytes
from .leader_records import LeaderRecords
from .record_codec import RecordDecoder, has_arrived
from .record_wire import handed_over
from .records import HandedOver
from .segments import SegmentsReceived
from .share import ReplicatedShare

SERVICE = "follow"
_ACKNOWLEDGE_S = 1.0


Succeed = Callable[[ReplicatedShare, TaskId, HandedOver, Callable[[], None]], None]
"""Leads a share once the leader's last record has been taken, which the last argument does."""


class FollowService:
    """Follows leaders, each on a connection of its own, until that ends. Thread-safe.

    Args:
        share: The share of a number.
        max_record_bytes: Most bytes of arrays of a record.
        succeed: Leads a share in place of the leader that this ps has followed.
        prepare: Called before a leader is answered: what makes this ps slow at first, and with it
            all who push to the leader.
    """

    def __init__(
        self,
        share: Callable[[int], ReplicatedShare],
        max_record_bytes: int,
        succeed: Succeed,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._share = share
        self._succeed = succeed
        self._max_record_bytes = max_record_bytes
        self._prepare = prepare
        self._pool = MemoryPool()

    def serve(self, greeting: Greeting) -> bool:
        """Follow the leader that has greeted.

        Raises:
            RopewalkError: It may not lead, or has sent what is no record.
            OSError: The connection broke.
        """
        self._prepare()
        greeting.welcome()
        connection = greeting.connection
        connection.deadline = time.monotonic() + GREETING_TIMEOUT_S
        data = connection.receive()
        connection.deadline = NEVER
        if data is None:
            return False
        first = parse(replication_pb2.Record, data)
        if first.WhichOneof("kind") != "begin":
            raise RefusedError("a leader begins with the number of its share")
        share = self._share(first.begin.share)
        leader = codec.task_from_wire(first.begin.leader)
        said = codec.sender_of(greeting.hello)
        if said.task != leader:
            raise RefusedError(f"{said.task} cannot lead in the name of {leader}")
        follow = share.follow_on if first.begin.goes_on else share.follow
        records = follow(leader, first.epoch, connection.cancel)
        try:
            self._follow(connection, share, leader, records)
            records.end()
        except FencedError:
            raise  # this ps follows it no more: what is here stays
        except OSError:
            records.end()
            raise
        except BaseException as error:
            records.fail(error)
            raise
        return False

    def _follow(
        self,
        connection: Connection,
        share: ReplicatedShare,
        leader: TaskId,
        records: LeaderRecords,
    ) -> None:
        segments = SegmentsReceived(most_segment_bytes(self._max_record_bytes))
        decoder = RecordDecoder(segments, share.store.table.targets())
        while (data := connection.receive()) is not None:
            message = parse(replication_pb2.Record, data)
            segments.drop(message.gone_segments)
            if message.WhichOneof("kind") == "segment":
                handed_on, descriptor = message.segment, connection.stream.take_descriptor()
                segments.take(handed_on.number, descriptor, handed_on.num_bytes)
                continue
            size = connection.unread_bytes
            if size > self._max_record_bytes:
                raise RefusedError(
                    f"{leader} sent a record of {size} bytes, over {self._max_record_bytes}",
                    task=leader,
                    value=size,
                    limit=self._max_record_bytes,
                )
            with Lease(self._pool) as lease:
                payload = connection.read(size, lease.lend) if size else memoryview(b"")
                decode = partial(decoder.decode, message, payload)
                position, is_here = message.position, has_arrived(message)
                early = partial(_acknowledge, connection, position) if is_here else _nothing
                take = partial(records.take, message.epoch, position, decode, early)
                if message.WhichOneof("kind") == "handed_over":
                    self._succeed(share, leader, handed_over(message.handed_over), take)
                    return
                take()
            if not is_here:
                _acknowledge(connection, position)


def _acknowledge(connection: Connection, position: int) -> None:
    if connection.has_begun_another:  # one acknowledgement will do for both
        return
    said = session_pb2.Acknowledged(position=position)
    answer = session_pb2.ServerMessage(acknowledged=said)
    # The share is locked meanwhile, and must not be for long: this ps may have to lead.
    connection.deadline = time.monotonic() + _ACKNOWLEDGE_S
    connection.send([answer.SerializeToString()])
    connection.deadline = NEVER


def _nothing() -> None:
    """Acknowledge later."""
