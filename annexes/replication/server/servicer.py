"""Replication as a ps serves it: its shares, the calls about them, and the service that follows."""

import time
from collections.abc import Callable, Mapping
from functools import partial

from ....cluster.replication.configuration import CopyTo, GiveUpShare, HandOver, Lead, ShareState
from ....core.arrays.buffers import Lease, MemoryPool
from ....core.errors import FencedError, RefusedError
from ....core.settings import Settings
from ....core.task import TaskId
from ....core.wire import codec
from ....core.wire.bounds import MAX_NAME_BYTES, check_text
from ....core.wire.same_fields import to_message
from ....net.auth.guard import Visitor
from ....net.connection import Connection
from ....net.dial import parse
from ....net.endpoint import Greeting, Service
from ....net.listener import GREETING_TIMEOUT_S
from ....net.stream import NEVER
from ....proto.v1 import ps_pb2, replication_pb2, session_pb2
from ....server.ps.lease import ChiefLease
from ....server.ps.payload import most_segment_bytes
from .follower import SegmentsReceived
from .leader_records import LeaderRecords
from .record_codec import RecordDecoder, has_arrived
from .record_wire import handed_over
from .records import HandedOver
from .share import ReplicatedShare
from .share_part import SERVICE
from .shares import PsShares

# -- The service that a leader dials: records in, acknowledgements out -------------------------

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


# -- The calls -----------------------------------------------------------------------------------

_WATCH_S = 0.5
"""A call that waits for a change is answered after this long. Unit: seconds."""


class ReplicationCalls:
    """Serves the calls about shares that move. Thread-safe.

    Args:
        task: Task of the ps.
        settings: Settings of the ps.
        process: Identity of this process.
        lease: Lease of the job's chief.
        prepare: Called before a leader is answered; see :class:`FollowService`.

    Attributes:
        shares: Shares of the ps.
        services: Service that leaders dial, by name.
    """

    def __init__(
        self,
        task: TaskId,
        settings: Settings,
        process: int,
        lease: ChiefLease,
        prepare: Callable[[], object],
    ) -> None:
        self._task = task
        self._lease = lease
        self.shares = PsShares(task, settings, process, lambda: lease.job)
        follow = FollowService(self.shares.at, settings.max_step_bytes, self._succeed, prepare)
        self.services: Mapping[str, Service] = {SERVICE: follow.serve}

    def _succeed(
        self, share: ReplicatedShare, leader: TaskId, said: HandedOver, take: Callable[[], None]
    ) -> None:
        self._lease.check_chief(said.chief)
        self.shares.succeed(share, leader, said, take)

    def LeadShare(self, request: ps_pb2.LeadShareRequest, _: Visitor) -> ps_pb2.LeadShareResponse:
        """Lead a share, or learn who follows. Idempotent by epoch."""
        self._lease.check_chief(codec.incarnation_from_wire(request.chief))
        followers = tuple(codec.task_from_wire(task) for task in request.followers)
        order = Lead(request.share, request.epoch, self._task, followers, request.leader_ended)
        self.shares.at(request.share).lead(order)
        return ps_pb2.LeadShareResponse()

    def HandOverShare(
        self, request: ps_pb2.HandOverShareRequest, _: Visitor
    ) -> ps_pb2.HandOverShareResponse:
        """Have another ps lead a share, and answer nothing else of it any more."""
        chief = codec.incarnation_from_wire(request.chief)
        self._lease.check_chief(chief)
        successor = codec.task_from_wire(request.successor)
        for address in (request.successor_address, request.address):
            check_text(address, MAX_NAME_BYTES, "an address", self._task)
        order = HandOver(request.share, request.epoch, self._task, successor)
        said = HandedOver(request.epoch, chief, request.address)
        self.shares.at(request.share).hand_over(order, request.successor_address, said)
        return ps_pb2.HandOverShareResponse()

    def GiveUpShare(
        self, request: ps_pb2.GiveUpShareRequest, _: Visitor
    ) -> ps_pb2.GiveUpShareResponse:
        """Give up a share, and answer nothing else of it any more. Idempotent by epoch."""
        self._lease.check_chief(codec.incarnation_from_wire(request.chief))
        order = GiveUpShare(request.share, request.epoch, self._task)
        self.shares.at(request.share).give_up(order)
        return ps_pb2.GiveUpShareResponse()

    def CopyShare(self, request: ps_pb2.CopyShareRequest, _: Visitor) -> ps_pb2.CopyShareResponse:
        """Begin to copy a share to another ps. Idempotent."""
        self._lease.check_chief(codec.incarnation_from_wire(request.chief))
        follower = codec.task_from_wire(request.follower)
        check_text(request.address, MAX_NAME_BYTES, "the address of a follower", follower)
        order = CopyTo(request.share, request.epoch, self._task, follower)
        self.shares.copy(order, request.address)
        return ps_pb2.CopyShareResponse()

    def WatchShares(
        self, request: ps_pb2.WatchSharesRequest, _: Visitor
    ) -> ps_pb2.WatchSharesResponse:
        """Return the roles of this ps in its shares, after a change or a while."""
        self._lease.check_chief(codec.incarnation_from_wire(request.chief))
        changes, report = self.shares.watch(request.seen, _WATCH_S)
        return ps_pb2.WatchSharesResponse(
            changes=changes,
            ps_generation=report.process,
            draining=report.draining,
            shares=[_state_to_wire(state) for state in report.shares],
        )


def _state_to_wire(state: ShareState) -> ps_pb2.ShareState:
    role = getattr(ps_pb2, f"REPLICA_ROLE_{state.role.name}")
    followers = [
        to_message(ps_pb2.FollowerState, each, task=codec.task_to_wire(each.task))
        for each in state.followers
    ]
    return to_message(ps_pb2.ShareState, state, role=role, followers=followers)
