"""Reports of a ps to the chief about its shares. Pure."""

from dataclasses import dataclass

from ...core.task import TaskId
from .replica import ReplicaRole


@dataclass(frozen=True, slots=True)
class FollowerState:
    """A follower that a leader sends records to.

    Attributes:
        task: The follower.
        has_joined: Answers wait for it, and it has acknowledged everything before that.
        is_lost: The link to it broke.
        is_needed: Answers wait for it.
        position: Position of the last record sent to it.
        acknowledged: Position of the last record that it has.
        copied_bytes: Bytes of values and slots that were copied to it, of those it joined with.
    """

    task: TaskId
    has_joined: bool = False
    is_lost: bool = False
    is_needed: bool = False
    position: int = 0
    acknowledged: int = 0
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ShareState:
    """The state of a share on a ps.

    Attributes:
        share: Number of the share.
        role: Whether the ps leads or follows it.
        epoch: The latest that the ps has heard of.
        is_whole: Whether it has all contents.
        followers: Followers of a leader.
        held_bytes: Bytes of its values and slots, at the leader.
        pushes: Pushes that were applied since the ps began to lead.
        received_bytes: Payload received from workers since then.
    """

    share: int
    role: ReplicaRole
    epoch: int
    is_whole: bool
    followers: tuple[FollowerState, ...] = ()
    held_bytes: int = 0
    pushes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ShareLeader:
    """The leader of a share, as the chief tells it to those that have sessions with ps.

    Attributes:
        share: Number of the share.
        epoch: Epoch in which it is led.
        leader: The ps that answers.
        address: Address of the leader.
        followers: The ps that have it, too.
    """

    share: int
    epoch: int
    leader: TaskId
    address: str
    followers: tuple[TaskId, ...] = ()


@dataclass(frozen=True, slots=True)
class PsReport:
    """A report of a ps.

    Attributes:
        process: Identity of the process: one that is started again has another.
        draining: Whether it was asked to leave.
        shares: States of the shares that it leads or follows.
    """

    process: int
    draining: bool = False
    shares: tuple[ShareState, ...] = ()
