"""A ps's decisions about one share: when it leads, what it takes, when it answers. Pure.

The position of a record is its number in the stream from leader to follower, from 1. An
acknowledgement of position n means that the follower has all records up to n.

The rules below are needed, each of them: without any one, the model finds a sequence of messages
and losses after which an answered push is lost, applied twice, or read and then gone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...core.task import TaskId
from .configuration import CopyTo, GiveUpShare, HandOver, Lead, ReplicaRole

GRANT_S = 0.5
"""Time that a follower that has heard of its leader lets it answer reads alone. Unit: seconds.

A leader that was cut off does not know that another one has taken its place, and what it reads
would be old. So it answers a read only within this time after it has sent what its followers have
acknowledged; and a follower leads only this long after it has heard of its leader last, unless the
leader's machine has said that the process ended, or the leader itself has said that it answers
nothing more. Both count by their own clocks from an earlier moment to a later one, so they need not
agree.
"""


@dataclass(frozen=True, slots=True)
class Replica:
    """The part of one ps in one share.

    Attributes:
        epoch: The latest it has heard of.
        is_whole: Whether it has all contents; a follower has them once the copy is complete.
        needs: Followers whose acknowledgements answers wait for.
        copies_to: A ps to which the share is being copied, and which is not needed yet.
        leader: The ps that it follows.
    """

    role: ReplicaRole = ReplicaRole.NONE
    epoch: int = 0
    is_whole: bool = False
    needs: tuple[TaskId, ...] = ()
    copies_to: TaskId | None = None
    leader: TaskId | None = None


def may_answer(position: int, acknowledged: Iterable[int]) -> bool:
    """Return whether the state up to a position may be shown to a worker.

    That holds for each kind of answer: to a push, to a push that was applied before (its first
    answer may never have been possible), and to a read.

    Args:
        position: Position of the last record of the blocks that the answer is about.
        acknowledged: Last position acknowledged by each follower that is needed.
    """
    return all(each >= position for each in acknowledged)


def ordered(now: Replica, order: Lead) -> Replica | None:
    """Decide what becomes of a replica by an order to lead; None: it may not obey.

    A leader drops or gets followers by such an order alone: if it dropped one itself, it would go
    on alone while the chief makes that one leader.
    """
    if order.epoch < now.epoch or now.role is ReplicaRole.GONE:
        return None
    if now.role is ReplicaRole.LEADING:
        if order.epoch == now.epoch:
            return now
        return replace(now, epoch=order.epoch, needs=order.followers, copies_to=None)
    is_first = now.role is ReplicaRole.NONE and order.epoch == 1
    if not is_first and not (now.role is ReplicaRole.FOLLOWING and now.is_whole):
        return None
    if now.role is ReplicaRole.FOLLOWING and order.epoch == now.epoch:
        return None  # its leader's epoch
    return Replica(ReplicaRole.LEADING, order.epoch, True, order.followers)


def given_up(now: Replica, order: GiveUpShare) -> Replica | None:
    """Decide what becomes of a replica that is to answer nothing any more; None: the order is not
    for it.

    What is here is of an epoch before the order's. In the order's own epoch this ps has been copied
    to again, and the order was late: obeying it, a follower would lose what it has acknowledged.
    """
    if now.role is ReplicaRole.GONE and now.epoch >= order.epoch:
        return now
    return Replica(ReplicaRole.GONE, order.epoch) if now.epoch < order.epoch else None


def handed_over(now: Replica, order: HandOver) -> Replica | None:
    """Turn a leader that hands over into a follower; None: the order is not for it.

    It has all contents, as a follower whose leader is not there yet.
    """
    after = Replica(ReplicaRole.FOLLOWING, order.epoch, is_whole=True)
    may_obey = now == after or (now.is_whole and now.epoch < order.epoch)
    return after if may_obey else None


def waits_for_reads(order: Lead, *, leader_ended: bool) -> bool:
    """Return whether a follower that is to lead has to wait until its leader answers no reads any
    more.

    Args:
        order: Order to lead.
        leader_ended: The leader's machine has ended the link: nothing is answered there without
            this ps.
    """
    return not (order.leader_ended or leader_ended)


def copy_ended(now: Replica) -> Replica:
    """Drop what has come of a copy whose link broke before it was complete: it is of no use."""
    return Replica(ReplicaRole.GONE, now.epoch)


def told_to_copy(now: Replica, order: CopyTo) -> Replica | None:
    """Decide what becomes of a leader that is to copy its share; None: it may not, or does so
    already.
    """
    if now.role is not ReplicaRole.LEADING or order.epoch != now.epoch:
        return None
    if now.copies_to is not None or order.follower in now.needs:
        return None
    return replace(now, copies_to=order.follower)


def copy_sent(now: Replica) -> Replica:
    """Note that the last of a copy is on the link: from the next record on, answers wait for that
    ps, too.

    Only then may the chief hear of it. If it was counted on before it is needed, a push between
    the two would be answered without it.
    """
    if now.copies_to is None:
        return now
    return replace(now, needs=(*now.needs, now.copies_to), copies_to=None)


def copy_broken(now: Replica) -> Replica:
    """Drop a copy that broke off: a ps that is not needed yet may be dropped without the chief. A
    ps that is not needed yet may be dropped without the chief.
    """
    return replace(now, copies_to=None)


def followed(now: Replica, leader: TaskId, epoch: int) -> Replica | None:
    """Decide whether a leader may begin to copy its share here; None: it is refused.

    All contents are thrown away first: a former leader may have pushes that were answered to
    nobody.
    """
    if epoch < now.epoch or (now.role is ReplicaRole.LEADING and epoch == now.epoch):
        return None
    return Replica(ReplicaRole.FOLLOWING, epoch, leader=leader)


def followed_on(
    now: Replica, leader: TaskId, epoch: int, successor: TaskId | None
) -> Replica | None:
    """Follow the ps that this one has handed its share over to, which copies nothing; None:
    refused.

    Args:
        now: Part of this ps, which has handed over in that epoch and kept what it has.
        leader: The ps that leads now.
        epoch: Epoch in which it leads.
        successor: The ps to which the last record has gone: it leads only if it had all of them.
    """
    if now != Replica(ReplicaRole.FOLLOWING, epoch, is_whole=True) or leader != successor:
        return None
    return replace(now, leader=leader)


def copied_whole(now: Replica) -> Replica:
    """Note that the copy is complete."""
    return replace(now, is_whole=True)


def takes_record(now: Replica, leader: TaskId, epoch: int, position: int, have: int) -> bool:
    """Return whether a follower takes a record.

    Args:
        now: The follower.
        leader: Sender of the record.
        epoch: Epoch of the leader.
        position: Position of the record.
        have: Position of the last record that the follower has.
    """
    return (
        now.role is ReplicaRole.FOLLOWING
        and now.leader == leader
        and epoch >= now.epoch
        and position == have + 1
    )


def took_record(now: Replica, epoch: int) -> Replica:
    """Note that a record was taken: its epoch is known from now on."""
    return now if epoch == now.epoch else replace(now, epoch=epoch)
