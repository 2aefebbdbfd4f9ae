"""Shares and who leads them: the chief's decisions, moves, and what ps report. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ...core.task import TaskId

# -- The chief's decisions: who leads and who follows a share. Pure ----------------------------
# A decision is a new configuration with the next epoch. It is written down before anybody hears of
# it (:class:`Reconfiguration` says what to write, then whom to tell): a chief that restarts and
# has forgotten what it told one ps would tell another the opposite.


@dataclass(frozen=True, slots=True)
class Configuration:
    """The leader and the followers of a share in one epoch.

    Attributes:
        share: Number of the share, from 0.
        epoch: Number of the configuration, from 1; a later one of the share has a higher one.
        leader: Answers workers.
        followers: Have everything that was answered, and may lead next.
    """

    share: int
    epoch: int
    leader: TaskId
    followers: tuple[TaskId, ...] = ()

    @property
    def replicas(self) -> tuple[TaskId, ...]:
        """All that have the whole share."""
        return (self.leader, *self.followers)


@dataclass(frozen=True, slots=True)
class Lead:
    """An order: lead the share in this epoch, and answer when these followers have it.

    A ps that leads already learns its followers by it. Repeating it changes nothing.

    Attributes:
        leader_ended: The ps that led before has obeyed a :class:`HandOver`: it answers no read any
            more, and none has to be waited for.
    """

    share: int
    epoch: int
    to: TaskId
    followers: tuple[TaskId, ...] = ()
    leader_ended: bool = False


@dataclass(frozen=True, slots=True)
class CopyTo:
    """An order to a leader: copy the share to another ps while training goes on."""

    share: int
    epoch: int
    to: TaskId
    follower: TaskId


@dataclass(frozen=True, slots=True)
class GiveUpShare:
    """An order to answer nothing of the share any more, in this epoch, and to keep nothing."""

    share: int
    epoch: int
    to: TaskId


@dataclass(frozen=True, slots=True)
class HandOver:
    """An order to a leader: answer nothing of the share any more, and have a follower lead it.

    The leader passes the order to lead on, as its last record. It keeps what it has: the chief
    counts on it as a follower of its successor.
    """

    share: int
    epoch: int
    to: TaskId
    successor: TaskId

    @property
    def lead(self) -> Lead:
        """The order that the leader passes on. The chief gives it, too: the link between the two
        may break.
        """
        return Lead(self.share, self.epoch, self.successor, (self.to,))


Order = Lead | CopyTo | GiveUpShare | HandOver


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """The steps of a change of configuration, in order.

    Attributes:
        write: The configuration to write down first; None: it is written already.
        tell: Orders to send afterwards, again and again until they are answered.
    """

    write: Configuration | None = None
    tell: tuple[Order, ...] = ()


NOTHING = Reconfiguration()


def orders(now: Configuration) -> tuple[Lead, ...]:
    """List the orders of a configuration; a restarted chief sends them again."""
    return (Lead(now.share, now.epoch, now.leader, now.followers),)


def first_leaders(shares: int, servers: Sequence[TaskId]) -> dict[int, TaskId]:
    """Choose the first leader of each share: the ps take turns.

    Args:
        shares: Number of shares; 0: one for each ps.
        servers: The ps that the job has at its start.
    """
    return {share: servers[share % len(servers)] for share in range(shares or len(servers))}


def first(share: int, leader: TaskId) -> Reconfiguration:
    """Make the first configuration of a share, which is empty."""
    return _change(Configuration(share, 1, leader))


def without(now: Configuration, lost: TaskId) -> Reconfiguration | None:
    """Leave out a ps that is lost, or cut off, or suspected to be.

    The chief asks for nothing more than a suspicion: a ps that is wrongly suspected can answer
    nobody any more, since its followers acknowledge nothing to it in a later epoch.

    Returns:
        Change of the configuration; None: it was the only one that had the share, whose variables
        are gone.
    """
    if lost not in now.replicas:
        return NOTHING
    left = [task for task in now.replicas if task != lost]
    if not left:
        return None
    return _change(replace(now, epoch=now.epoch + 1, leader=left[0], followers=tuple(left[1:])))


def handed_over(now: Configuration, to: TaskId) -> Reconfiguration:
    """Have a follower lead from now on; the leader, which lives, follows it.

    Both are counted on: if ``to`` is lost before it leads, the leader leads again. Others are left
    out, since ``to`` has no links to them and would have to wait until the chief says so.
    """
    after = Configuration(now.share, now.epoch + 1, to, (now.leader,))
    return Reconfiguration(after, (HandOver(now.share, after.epoch, now.leader, to),))


def with_follower(now: Configuration, epoch: int, follower: TaskId) -> Reconfiguration:
    """Count on a ps from now on: the leader of an epoch says that it has everything.

    A report from an earlier epoch means nothing: since then, the leader may have answered pushes
    without this ps.
    """
    if epoch != now.epoch or follower in now.replicas:
        return NOTHING
    return _change(replace(now, epoch=now.epoch + 1, followers=(*now.followers, follower)))


def anew(now: Configuration) -> Reconfiguration:
    """Repeat the configuration in the next epoch: a leader forgets by it whom the chief does not
    count on.

    Needed where a new follower is lost, or stands still, after its leader has begun to wait for it
    and before the chief has heard that it had joined.
    """
    return _change(replace(now, epoch=now.epoch + 1))


def copied(now: Configuration, wanted: int, candidates: Iterable[TaskId]) -> Reconfiguration:
    """Have the share copied if it has fewer replicas than wanted.

    Args:
        now: The configuration.
        wanted: Replicas of each share, the leader included.
        candidates: Other ps with room, best first.
    """
    if len(now.replicas) >= wanted:
        return NOTHING
    for task in candidates:
        if task not in now.replicas:
            return Reconfiguration(tell=(CopyTo(now.share, now.epoch, now.leader, task),))
    return NOTHING


def _change(configuration: Configuration) -> Reconfiguration:
    return Reconfiguration(configuration, orders(configuration))


# -- A move of a share to another ps: what was asked for, and what has become of it. Pure ------


class MovePhase(StrEnum):
    """The progress of a move."""

    COPYING = "copying"
    HANDING_OVER = "handing over"  # the other ps has everything, and is told to lead
    DONE = "done"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens."""
        return self in (MovePhase.DONE, MovePhase.FAILED)


@dataclass(frozen=True, slots=True)
class Move:
    """A share is to be led by another ps.

    Attributes:
        number: Number of this move, from 1 for the first one that a chief is asked for.
        share: Number of the share.
        source: The ps that led when the move was asked for.
        to: The ps that is to lead.
        phase: Progress of the move.
        reason: Why it failed; empty otherwise.
        copied_bytes: Bytes of values and slots that were sent to ``to``.
        total_bytes: Bytes of the share; 0: not known yet.
        seconds: Time that it has taken until now, or until it was over. Unit: seconds.
    """

    number: int
    share: int
    source: TaskId
    to: TaskId
    phase: MovePhase = MovePhase.COPYING
    reason: str = ""
    copied_bytes: int = 0
    total_bytes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"the move of share {self.share} from {self.source.short} to {self.to.short}"


# -- Reports of a ps to the chief about its shares. Pure ---------------------------------------


class ReplicaRole(StrEnum):
    """The role of a ps in a share."""

    NONE = "none"
    FOLLOWING = "following"
    LEADING = "leading"
    GONE = "gone"  # left out by the chief: there is nothing here any more


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
