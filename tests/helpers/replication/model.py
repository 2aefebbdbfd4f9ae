"""An explicit-state model of replication: every order of messages, losses and suspicions.

A state is: what each ps is and has, the chief (what it has in mind, and what it has written down),
which pushes were answered to workers, what reads have shown, and all messages that were ever sent.
A message may be taken at any later time, again, or never: so loss, repetition, delay and
reordering are all in it. The decisions are the product's own functions, in :class:`Rules`; a test
replaces one of them by what it would be without the rule, and the search must find what goes
wrong.

After each move the invariants are checked:

1. the leader of the latest epoch has every push that was answered, and all that reads have shown;
2. no log has a push twice, or pushes of a worker out of order;
3. one ps leads in an epoch;
4. the log of a follower that a leader needs is a beginning of the leader's;
5. nothing gets stuck: from each state, all pushes can be answered yet, or the share is lost;
6. a living ps that the chief counts on has every push that was answered;
7. a read has what was answered before it;
8. a handover needs no chief once its leader has obeyed: while both ps live, all pushes can be
   answered without one.

A leader answers reads alone for a while after a follower has let it (``replica.GRANT_S``). Here a
grant lasts until time has passed, which may be at any moment; a follower that leads waits for that
moment unless it need not.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from ropewalk.cluster.replication import configuration, replica
from ropewalk.cluster.replication.configuration import (
    Configuration,
    CopyTo,
    GiveUpShare,
    HandOver,
    Lead,
    ReplicaRole,
)
from ropewalk.cluster.replication.replica import Replica
from ropewalk.core.task import TaskId

SHARE = 0


class Push(NamedTuple):
    """A worker's push, by its number from 1."""

    worker: int
    number: int


# Tuples of other types with the same values are equal: each message says of what kind it is.


class Record(NamedTuple):
    """From a leader to one follower."""

    link: int
    leader: TaskId
    to: TaskId
    epoch: int
    position: int
    push: Push
    kind: str = "record"


class Acknowledged(NamedTuple):
    """From a follower: it has all up to a position."""

    link: int
    to: TaskId
    by: TaskId
    position: int
    kind: str = "acknowledged"


class Begin(NamedTuple):
    """From a leader: a copy follows."""

    link: int
    leader: TaskId
    to: TaskId
    epoch: int
    kind: str = "begin"


class Copy(NamedTuple):
    """The contents at one moment, with the marks of pushes in them."""

    link: int
    leader: TaskId
    to: TaskId
    log: tuple[Push, ...]
    marks: tuple[int, ...]
    kind: str = "copy"


class CaughtUp(NamedTuple):
    """From a leader to the chief."""

    epoch: int
    follower: TaskId
    kind: str = "caught up"


class HasHandedOver(NamedTuple):
    """From a ps to the chief: it answers nothing any more."""

    epoch: int
    by: TaskId
    kind: str = "has handed over"


class PassedOn(NamedTuple):
    """From a leader to its successor, after all records: the order to lead."""

    link: int
    leader: TaskId
    to: TaskId
    epoch: int
    position: int
    order: Lead
    kind: str = "passed on"


class GoOn(NamedTuple):
    """From a leader to the ps that led before, which has what this one has."""

    link: int
    leader: TaskId
    to: TaskId
    epoch: int
    kind: str = "go on"


class LinkLost(NamedTuple):
    """From a leader to the chief."""

    epoch: int
    leader: TaskId
    follower: TaskId
    kind: str = "link lost"


@dataclass(frozen=True, slots=True)
class Ps:
    """One ps.

    Attributes:
        log: Pushes in its values, in order.
        marks: Per worker the last push it knows to have.
        links: Per ps it sends to or takes from: the number of the link.
        heard: Positions acknowledged, per follower.
        waiting: Pushes to be answered once a position is acknowledged.
        caught_up: The position from which a new follower is needed, until the chief was told.
        lets_read: The leader that may answer reads alone, as far as this follower is concerned.
        successor: The ps that this one has handed over to, and had a link to.
    """

    is_alive: bool = True
    replica: Replica = field(default_factory=Replica)
    log: tuple[Push, ...] = ()
    marks: tuple[int, ...] = ()
    links: tuple[tuple[TaskId, int], ...] = ()
    heard: tuple[tuple[TaskId, int], ...] = ()
    waiting: frozenset[tuple[Push, int]] = frozenset()
    caught_up: tuple[TaskId, int] | None = None
    lets_read: TaskId | None = None
    successor: TaskId | None = None


@dataclass(frozen=True, slots=True)
class State:
    """One state of all.

    Attributes:
        ends: The ps that is to hand over to the leader of ``mind``; None: none is asked.
        is_old: A read was answered that lacks a push which had been answered before it.
    """

    ps: tuple[Ps, ...]
    mind: Configuration | None
    written: Configuration
    told: bool
    answered: frozenset[Push] = frozenset()
    shown: frozenset[Push] = frozenset()
    messages: frozenset[Any] = frozenset()
    crashes: int = 0
    restarts: int = 0
    copies: int = 0
    is_lost: bool = False
    ends: TaskId | None = None
    is_old: bool = False


@dataclass(frozen=True)
class Rules:
    """The decisions that the product makes. A planted defect is another function."""

    may_answer: Callable[[int, Iterable[int]], bool] = replica.may_answer
    may_repeat: Callable[[int, Iterable[int]], bool] = replica.may_answer
    may_show: Callable[[int, Iterable[int]], bool] = replica.may_answer
    ordered: Callable[[Replica, Lead], Replica | None] = replica.ordered
    copy_sent: Callable[[Replica], Replica] = replica.copy_sent
    followed: Callable[[Replica, TaskId, int], Replica | None] = replica.followed
    keeps_contents: bool = False
    keeps_links: bool = False
    takes_record: Callable[[Replica, TaskId, int, int, int], bool] = replica.takes_record
    link_lost: Callable[[Replica, TaskId], Replica] = field(default=lambda now, lost: now)
    copies_marks: bool = True
    writes_first: bool = True
    needed_first: bool = True
    counted_when_whole: bool = True
    without: Callable[[Configuration, TaskId], Any] = configuration.without
    with_follower: Callable[[Configuration, int, TaskId], Any] = configuration.with_follower
    given_up: Callable[[Replica, GiveUpShare], Replica | None] = replica.given_up
    keeps_answering: bool = False
    keeps_until_led: bool = True
    waits_for_reads: Callable[..., bool] = replica.waits_for_reads
    waits_for_the_answer: bool = True
    handed_over: Callable[[Replica, HandOver], Replica | None] = replica.handed_over
    passes_on: bool = True
    succeeds: Callable[[Replica, TaskId, int, int, int], bool] = replica.takes_record
    followed_on: Callable[[Replica, TaskId, int, TaskId | None], Replica | None] = (
        replica.followed_on
    )


@dataclass(frozen=True)
class Bounds:
    """How much is searched.

    Attributes:
        pushes: Number of pushes of each worker.
        followers: At the start.
        copies: That the chief orders.
        crashes: Number of crashes of ps.
        restarts: Number of restarts of the chief.
        epochs: The last epoch that the chief may decide on.
        gives_up: The chief tells those that it leaves out.
        hands_over: The chief makes a follower lead though the leader lives.
        grants: Leaders answer reads alone.
    """

    servers: int = 2
    pushes: tuple[int, ...] = (2,)
    copies: int = 0
    crashes: int = 0
    restarts: int = 0
    epochs: int = 3
    followers: int = 1
    gives_up: bool = False
    hands_over: bool = False
    grants: bool = False
    states: int = 1_000_000


@dataclass
class Found:
    """What a search found.

    Attributes:
        states: That were seen.
        violation: What is wrong; empty: nothing.
        trace: The moves that lead there, the fewest.
    """

    states: int
    violation: str = ""
    trace: tuple[str, ...] = ()


@cache
def ps(index: int) -> TaskId:
    """A ps by its number."""
    return TaskId("ps", index)


class Model:
    """The moves of one search."""

    def __init__(self, bounds: Bounds, rules: Rules | None = None) -> None:
        self.bounds = bounds
        self.rules = rules or Rules()

    def initial(self) -> State:
        """A share that ps 0 leads, and the next ones follow."""
        marks = (0,) * len(self.bounds.pushes)
        followers = tuple(ps(index + 1) for index in range(self.bounds.followers))
        links, heard = (tuple((each, 0) for each in followers) for _ in range(2))
        leading = Replica(ReplicaRole.LEADING, 1, True, followers)
        following = Replica(ReplicaRole.FOLLOWING, 1, True, leader=ps(0))
        servers = [Ps(marks=marks) for _ in range(self.bounds.servers)]
        servers[0] = replace(servers[0], replica=leading, links=links, heard=heard)
        for each in followers:
            servers[each.index] = replace(
                servers[each.index], replica=following, links=((ps(0), 0),)
            )
        now = Configuration(SHARE, 1, ps(0), followers)
        return State(tuple(servers), now, now, True)

    # -- moves -----------------------------------------------------------------------------------

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        """All that may happen next, with what it is called."""
        for index, server in enumerate(state.ps):
            if server.is_alive:
                yield from self._of_ps(state, index, server)
        yield from self._of_chief(state)

    def _of_ps(self, state: State, index: int, server: Ps) -> Iterator[tuple[str, State]]:
        me = ps(index)
        if self.bounds.grants:
            yield from self._lets_read(state, index, server)
        if server.replica.role is ReplicaRole.LEADING:
            yield from self._pushes(state, index, server)
            yield from self._answers(state, index, server)
            yield from self._copying(state, index, server)
        for message in state.messages:
            if getattr(message, "to", None) != me:
                continue
            after = self._taken(state, index, server, message)
            if after is not None and after != state:
                yield f"{me.short} takes {message}", after
        if state.crashes < self.bounds.crashes:
            dead = Ps(False, server.replica, marks=server.marks)
            yield (
                f"{me.short} dies",
                replace(self._with(state, index, dead), crashes=state.crashes + 1),
            )

    def _lets_read(self, state: State, index: int, server: Ps) -> Iterator[tuple[str, State]]:
        leader = server.replica.leader
        if server.lets_read is not None:
            after = self._with(state, index, replace(server, lets_read=None))
            yield f"time passes for ps:{index}", after
        elif leader is not None and server.replica.is_whole and self._is_linked(state, index):
            after = self._with(state, index, replace(server, lets_read=leader))
            yield f"ps:{index} lets {leader.short} answer reads", after

    @staticmethod
    def _is_linked(state: State, index: int) -> bool:
        """Whether what a follower says now is heard by its leader."""
        server = state.ps[index]
        leader = server.replica.leader
        if leader is None or not state.ps[leader.index].is_alive:
            return False
        return (ps(index), dict(server.links).get(leader)) in state.ps[leader.index].links

    def _may_read(self, state: State, index: int, server: Ps) -> bool:
        if not self._may(self.rules.may_show, server, len(server.log)):
            return False
        needed = [state.ps[each.index] for each in server.replica.needs]
        return not self.bounds.grants or all(each.lets_read == ps(index) for each in needed)

    def _pushes(self, state: State, index: int, server: Ps) -> Iterator[tuple[str, State]]:
        """A worker's next push, which any leader may take at any time; or one sent before."""
        for worker, most in enumerate(self.bounds.pushes):
            mark = server.marks[worker]
            # A worker sends its next push once the one before was answered.
            goes_on = not mark or Push(worker, mark) in state.answered
            if mark < most and goes_on:
                yield self._new_push(state, index, server, Push(worker, mark + 1))
            if mark:
                push = Push(worker, mark)
                if push not in state.answered and self._may(
                    self.rules.may_repeat, server, len(server.log)
                ):
                    yield (
                        f"ps:{index} answers the repeated {push}",
                        replace(state, answered=state.answered | {push}),
                    )
        seen = frozenset(server.log)
        is_old = self.bounds.grants and not state.answered <= seen
        if (is_old or not seen <= state.shown) and self._may_read(state, index, server):
            after = replace(state, shown=state.shown | seen, is_old=is_old)
            yield f"ps:{index} is read", after

    def _new_push(self, state: State, index: int, server: Ps, push: Push) -> tuple[str, State]:
        log = (*server.log, push)
        after = replace(
            server,
            log=log,
            marks=_marked(server.marks, push),
            waiting=server.waiting | {(push, len(log))},
        )
        records = {
            Record(number, ps(index), to, server.replica.epoch, len(log), push)
            for to, number in server.links
            if to in server.replica.needs
        }
        moved = self._with(state, index, after)
        return f"ps:{index} takes {push}", replace(moved, messages=state.messages | records)

    @staticmethod
    def _may(rule: Callable[[int, Iterable[int]], bool], server: Ps, position: int) -> bool:
        heard = dict(server.heard)
        return rule(position, [heard.get(each, -1) for each in server.replica.needs])

    def _answers(self, state: State, index: int, server: Ps) -> Iterator[tuple[str, State]]:
        for push, position in server.waiting:
            if self._may(self.rules.may_answer, server, position):
                after = replace(server, waiting=server.waiting - {(push, position)})
                yield (
                    f"ps:{index} answers {push}",
                    replace(self._with(state, index, after), answered=state.answered | {push}),
                )
        for follower in server.replica.needs:
            # A link may break for no reason that the leader knows.
            after = replace(server, replica=self.rules.link_lost(server.replica, follower))
            lost = LinkLost(server.replica.epoch, ps(index), follower)
            if lost not in state.messages or after != server:
                yield (
                    f"ps:{index} loses its link to {follower.short}",
                    replace(self._with(state, index, after), messages=state.messages | {lost}),
                )

    def _copying(self, state: State, index: int, server: Ps) -> Iterator[tuple[str, State]]:
        me, now = ps(index), server.replica
        if now.copies_to is not None:
            to, number = now.copies_to, dict(server.links)[now.copies_to]
            # All that was sent before counts as acknowledged once the copy is.
            after = replace(
                server, replica=self.rules.copy_sent(now), caught_up=(to, len(server.log))
            )
            copy = Copy(number, me, to, server.log, server.marks)
            messages = state.messages | {copy}
            if not self.rules.counted_when_whole:
                messages |= {CaughtUp(now.epoch, to)}
            if not self.rules.needed_first:
                after = replace(after, replica=replica.copy_broken(now))
            yield (
                f"ps:{index} has copied to {to.short}",
                replace(self._with(state, index, after), messages=messages),
            )
        if server.caught_up is not None:
            to, position = server.caught_up
            if dict(server.heard).get(to, -1) >= position:
                after = replace(server, caught_up=None)
                yield (
                    f"ps:{index} reports that {to.short} has caught up",
                    replace(
                        self._with(state, index, after),
                        messages=state.messages | {CaughtUp(now.epoch, to)},
                    ),
                )

    def _taken(self, state: State, index: int, server: Ps, message: Any) -> State | None:
        """The state after a ps has taken a message; None: it does nothing with it."""
        me, now, rules = ps(index), server.replica, self.rules
        if isinstance(message, Lead):
            after = rules.ordered(now, message)
            if after is None or after == now:
                return None
            lets_read = now.role is ReplicaRole.FOLLOWING and server.lets_read is not None
            if lets_read and rules.waits_for_reads(message, leader_ended=False):
                return None
            waiting = server.waiting if now.role is ReplicaRole.LEADING else frozenset()
            keeps = now.role is ReplicaRole.LEADING or rules.keeps_links
            links = server.links if keeps else ()
            caught_up = server.caught_up
            if caught_up is not None and caught_up[0] not in after.needs:
                caught_up = None
            leading = replace(
                server,
                replica=after,
                waiting=waiting,
                links=links,
                caught_up=caught_up,
                successor=None,
            )
            return self._with(state, index, leading)
        if isinstance(message, GiveUpShare):
            after = rules.given_up(now, message)
            if after is None:
                return None
            # A follower's grant outlasts what it has.
            emptied = Ps(replica=after, marks=(0,) * len(server.marks), lets_read=server.lets_read)
            return self._with(state, index, emptied)
        if isinstance(message, HandOver):
            return self._handed_over(state, index, server, message)
        if isinstance(message, PassedOn):
            return self._succeeded(state, index, server, message)
        if isinstance(message, CopyTo):
            after = replica.told_to_copy(now, message)
            if after is None or state.copies > self.bounds.copies:
                return None
            number = self._next_link(state)
            links = (*((to, n) for to, n in server.links if to != message.follower),
                     (message.follower, number))  # fmt: skip
            begin = Begin(number, me, message.follower, now.epoch)
            heard = tuple(each for each in server.heard if each[0] != message.follower)
            # An order is carried out once: what repeats it would begin a copy for ever.
            left = (state.messages - {message}) | {begin}
            if not rules.counted_when_whole:
                left |= {CaughtUp(now.epoch, message.follower)}
            changed = replace(server, replica=after, links=links, heard=heard)
            return replace(self._with(state, index, changed), messages=left)
        if isinstance(message, Begin):
            after = rules.followed(now, message.leader, message.epoch)
            if after is None or (message.leader, message.link) in server.links:
                return None
            if any(each >= message.link for _, each in server.links):
                return None
            emptied = Ps(
                replica=after,
                marks=(0,) * len(server.marks),
                links=((message.leader, message.link),),
                lets_read=server.lets_read,
            )
            if rules.keeps_contents:
                emptied = replace(emptied, log=server.log, marks=server.marks)
            return self._with(state, index, emptied)
        if isinstance(message, GoOn):
            after = rules.followed_on(now, message.leader, message.epoch, server.successor)
            if after is None:
                return None
            links = ((message.leader, message.link),)
            following = replace(server, replica=after, links=links, heard=(), successor=None)
            return self._with(state, index, following)
        if (getattr(message, "leader", None), getattr(message, "link", 0)) in server.links:
            if isinstance(message, Copy):
                if now.role is not ReplicaRole.FOLLOWING or now.is_whole:
                    return None
                marks = message.marks if rules.copies_marks else (0,) * len(server.marks)
                log = message.log
                if rules.keeps_contents and len(server.log) >= len(log):
                    log, marks = server.log, server.marks
                whole = replace(server, replica=replica.copied_whole(now), log=log, marks=marks)
                said = Acknowledged(message.link, message.leader, me, len(log))
                return replace(self._with(state, index, whole), messages=state.messages | {said})
            if isinstance(message, Record):
                taking = rules.takes_record(
                    now, message.leader, message.epoch, message.position, len(server.log)
                )
                if not taking or not (now.is_whole or now.role is ReplicaRole.LEADING):
                    return None
                took = replace(
                    server,
                    replica=replica.took_record(now, message.epoch),
                    log=(*server.log, message.push),
                    marks=_marked(server.marks, message.push),
                )
                said = Acknowledged(message.link, message.leader, me, message.position)
                return replace(self._with(state, index, took), messages=state.messages | {said})
        if isinstance(message, Acknowledged) and (message.by, message.link) in server.links:
            known = dict(server.heard)
            if known.get(message.by, -1) >= message.position:
                return None
            known[message.by] = message.position
            return self._with(state, index, replace(server, heard=tuple(sorted(known.items()))))
        return None

    def _handed_over(self, state: State, index: int, server: Ps, order: HandOver) -> State | None:
        """The state after a leader has handed over: its last record is under way."""
        me, now = ps(index), server.replica
        after = self.rules.handed_over(now, order)
        if after is None:
            return None
        messages = state.messages | {HasHandedOver(order.epoch, me)}
        leads = now.role is ReplicaRole.LEADING and order.successor in now.needs
        link = dict(server.links).get(order.successor) if leads else None
        if link is not None and self.rules.passes_on:
            lead = replace(order.lead, leader_ended=True)
            position = len(server.log) + 1
            messages |= {PassedOn(link, me, order.successor, now.epoch, position, lead)}
        ended = replace(
            server,
            replica=after,
            links=(),
            heard=(),
            waiting=frozenset(),
            caught_up=None,
            successor=None if link is None else order.successor,
        )
        ended = server if self.rules.keeps_answering else ended
        return replace(self._with(state, index, ended), messages=messages)

    def _succeeded(self, state: State, index: int, server: Ps, said: PassedOn) -> State | None:
        """The state after a follower has taken the last record of its leader, and leads."""
        now, have = server.replica, len(server.log)
        if (said.leader, said.link) not in server.links:
            return None
        after = self.rules.ordered(now, said.order)
        if after is None or not self.rules.succeeds(
            now, said.leader, said.epoch, said.position, have
        ):
            return None
        number = self._next_link(state)
        leading = replace(
            server,
            replica=after,
            waiting=frozenset(),
            links=((said.leader, number),),
            heard=((said.leader, have),),
            successor=None,
        )
        goes_on = GoOn(number, ps(index), said.leader, after.epoch)
        return replace(self._with(state, index, leading), messages=state.messages | {goes_on})

    def _of_chief(self, state: State) -> Iterator[tuple[str, State]]:
        if state.is_lost:
            return
        now = state.mind
        if now is None:
            yield "the chief is back", replace(state, mind=state.written, told=False)
            return
        if state.restarts < self.bounds.restarts:
            gone = replace(state, mind=None, ends=None, restarts=state.restarts + 1)
            yield "the chief dies", gone
        is_written = state.written == now
        if not is_written:
            yield f"the chief writes {now.epoch}", replace(state, written=now)
        if not state.told and (is_written or not self.rules.writes_first):
            said: frozenset[Any] = frozenset(configuration.orders(now))
            if self.bounds.gives_up:
                everybody = {ps(index) for index in range(len(state.ps))}
                said |= {
                    GiveUpShare(SHARE, now.epoch, each) for each in everybody - {*now.replicas}
                }
            if state.ends is not None:
                hand_over = HandOver(SHARE, now.epoch, state.ends, now.leader)
                keeps = self.rules.keeps_until_led
                said |= {hand_over if keeps else GiveUpShare(SHARE, now.epoch, state.ends)}
            yield (
                f"the chief tells {now.epoch}",
                replace(state, told=True, messages=state.messages | said),
            )
        if not is_written or not state.told:
            return
        if state.ends is not None:
            answer = HasHandedOver(now.epoch, state.ends)
            if answer in state.messages or not self.rules.waits_for_the_answer:
                [lead] = configuration.orders(now)
                ended = replace(lead, leader_ended=True)
                yield (
                    f"the chief hears {answer}",
                    replace(state, ends=None, messages=state.messages | {ended}),
                )
        if now.epoch < self.bounds.epochs:
            for index in range(len(state.ps)):
                yield from self._decided(
                    state, f"the chief gives up ps:{index}", self.rules.without(now, ps(index))
                )
            if self.bounds.hands_over:
                for follower in now.followers:
                    yield from self._decided(
                        state,
                        f"the chief hands over to {follower.short}",
                        configuration.handed_over(now, follower),
                        ends=now.leader,
                    )
            for message in state.messages:
                if isinstance(message, CaughtUp):
                    decision = self.rules.with_follower(now, message.epoch, message.follower)
                    yield from self._decided(state, f"the chief hears {message}", decision)
        if state.copies < self.bounds.copies:
            others = [ps(index) for index in range(len(state.ps))]
            for other in others:
                for order in configuration.copied(now, 2, [other]).tell:
                    yield (
                        f"the chief orders {order}",
                        replace(state, copies=state.copies + 1, messages=state.messages | {order}),
                    )

    @staticmethod
    def _decided(
        state: State, name: str, decision: Any, ends: TaskId | None = None
    ) -> Iterator[tuple[str, State]]:
        if decision is None:
            yield name, replace(state, is_lost=True)
        elif decision.write is not None:
            yield name, replace(state, mind=decision.write, told=False, ends=ends)

    @staticmethod
    def _next_link(state: State) -> int:
        numbers = [each.link for each in state.messages if isinstance(each, (Begin, GoOn))]
        return 1 + max(numbers, default=0)

    @staticmethod
    def _with(state: State, index: int, server: Ps) -> State:
        return replace(state, ps=(*state.ps[:index], server, *state.ps[index + 1 :]))

    # -- invariants ------------------------------------------------------------------------------

    def violation(self, state: State) -> str:
        """Which invariant does not hold; empty: all do."""
        leaders = [each for each in state.ps if each.replica.role is ReplicaRole.LEADING]
        epochs = [each.replica.epoch for each in leaders]
        if len(set(epochs)) < len(epochs):
            return "two ps lead in one epoch"
        for server in state.ps:
            for worker in range(len(self.bounds.pushes)):
                numbers = [each.number for each in server.log if each.worker == worker]
                if any(after <= before for before, after in pairwise(numbers)):
                    return "a log has a push twice, or out of order"
        if state.is_old:
            return "a read lacks a push that was answered before it"
        for task in state.written.replicas:
            counted_on = state.ps[task.index]
            if counted_on.is_alive and not state.answered <= frozenset(counted_on.log):
                return "a ps that the chief counts on lacks a push that was answered"
        if not leaders:
            return ""
        latest = max(leaders, key=lambda each: each.replica.epoch)
        if not latest.is_alive:
            return ""
        log = frozenset(latest.log)
        if not state.answered <= log:
            return "the leader lacks a push that was answered"
        if not state.shown <= log:
            return "the leader lacks what a read has shown"
        for follower in latest.replica.needs:
            other = state.ps[follower.index]
            if not (other.is_alive and other.replica.is_whole):
                continue
            if (
                other.replica.role is not ReplicaRole.FOLLOWING
                or other.replica.epoch > latest.replica.epoch
            ):
                continue
            if other.replica.leader != ps(state.ps.index(latest)):
                continue
            if other.log != latest.log[: len(other.log)]:
                return "a follower's log is not a beginning of its leader's"
        return ""

    @staticmethod
    def is_handed_over(state: State) -> bool:
        """Whether a leader has obeyed the order to hand over, and nobody was lost or told more."""
        for index, server in enumerate(state.ps):
            if not server.is_alive or server.successor is None:
                continue
            follower = state.ps[server.successor.index]
            if follower.is_alive and follower.replica.leader == ps(index):
                return follower.replica.epoch < server.replica.epoch
        return False

    def is_finished(self, state: State) -> bool:
        """Whether all pushes were answered, or the share is lost."""
        return state.is_lost or len(state.answered) == sum(self.bounds.pushes)


def search(model: Model) -> Found:
    """Visit every state, nearest first; stops at the first violation.

    Raises:
        RuntimeError: There are more states than the bound.
    """
    states = [model.initial()]
    numbers = {states[0]: 0}  # a state is hashed once for each move that leads to it
    came: list[tuple[int, str] | None] = [None]
    before: list[list[tuple[int, bool]]] = [[]]
    finished = []
    for number, state in enumerate(states):
        if model.is_finished(state):
            finished.append(number)
        for name, after in model.moves(state):
            reached = numbers.setdefault(after, len(states))
            if reached < len(states):
                before[reached].append((number, name.startswith("the chief")))
                continue
            states.append(after)
            came.append((number, name))
            before.append([(number, name.startswith("the chief"))])
            wrong = model.violation(after)
            if wrong:
                return Found(len(states), wrong, _trace(came, reached))
            if len(states) > model.bounds.states:
                raise RuntimeError(f"more than {model.bounds.states} states")
    ends, ends_alone = (_ending(finished, before, with_chief=each) for each in (True, False))
    for number, state in enumerate(states):
        if number not in ends and not _is_excused(state, model):
            return Found(len(states), "stuck", _trace(came, number))
        if number not in ends_alone and model.is_handed_over(state):
            return Found(len(states), "a handover waits for its chief", _trace(came, number))
    return Found(len(states))


def _ending(
    finished: list[int], before: list[list[tuple[int, bool]]], *, with_chief: bool
) -> set[int]:
    """The states from which all pushes can be answered, or the share be lost."""
    ends = set(finished)
    queue = deque(finished)
    while queue:
        for number, is_of_chief in before[queue.popleft()]:
            if number not in ends and (with_chief or not is_of_chief):
                ends.add(number)
                queue.append(number)
    return ends


def _is_excused(state: State, model: Model) -> bool:
    """The search's own bounds stop it, or the only ps that had the share has died."""
    now = state.mind or state.written
    if now.epoch >= model.bounds.epochs:
        return True
    return not any(state.ps[each.index].is_alive for each in now.replicas)


def _marked(marks: tuple[int, ...], push: Push) -> tuple[int, ...]:
    number = max(push.number, marks[push.worker])
    return (*marks[: push.worker], number, *marks[push.worker + 1 :])


def _trace(came: list[tuple[int, str] | None], number: int) -> tuple[str, ...]:
    names = []
    while (step := came[number]) is not None:
        number, name = step
        names.append(name)
    return tuple(reversed(names))
