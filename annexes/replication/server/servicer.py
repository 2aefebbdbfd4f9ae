"""Replication as a ps serves it: its shares, the calls about them, and the service that follows."""

from collections.abc import Callable, Mapping

from ....cluster.replication.configuration import CopyTo, GiveUpShare, HandOver, Lead
from ....cluster.replication.reports import ShareState
from ....core.settings import Settings
from ....core.task import TaskId
from ....core.wire import codec
from ....core.wire.bounds import MAX_NAME_BYTES, check_text
from ....core.wire.same_fields import to_message
from ....net.auth.guard import Visitor
from ....net.endpoint import Service
from ....proto.v1 import ps_pb2
from ....server.ps.lease import ChiefLease
from .following import SERVICE, FollowService
from .records import HandedOver
from .share import ReplicatedShare
from .shares import PsShares

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
