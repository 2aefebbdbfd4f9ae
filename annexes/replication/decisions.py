"""The chief's decisions about all shares of a job, from what its ps report. Pure.

Each share is decided by itself (:mod:`.configuration`); here is which ps are there, which of them a
share is copied to, and when one may leave. A caller writes down :meth:`Shares.record` whenever
a decision says so, and only then tells the ps.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ...cluster.replication.configuration import (
    Configuration,
    CopyTo,
    GiveUpShare,
    HandOver,
    Lead,
    Move,
    MovePhase,
    PsReport,
    Reconfiguration,
    ReplicaRole,
    ShareState,
    anew,
    copied,
    first,
    handed_over,
    orders,
    with_follower,
    without,
)
from ...core.errors import NotFoundError, RefusedError
from ...core.task import TaskId
from .balancing import move_to_newcomer

_COPIES_OF_A_MOVE = 3  # that may break off before it is given up


class Shares:
    """All shares of a job. Not thread-safe.

    Args:
        replicas: Number of ps that are to have each share, the leader included.
        homes: Every share with the ps that is to lead it first.
        spreads: A ps that comes, or comes back, is given as many shares as the others lead.
        configurations: Configurations that were written down, of a chief that has restarted.
        processes: The processes of the ps that they are about.

    Attributes:
        configurations: The latest, by share.
        processes: Process of each ps; one that is started again has another.
        lost: Shares that no ps has any more.
        move: The last move that was asked for; at most one is under way. None: there was none.
    """

    def __init__(
        self,
        replicas: int,
        homes: Mapping[int, TaskId],
        configurations: Iterable[Configuration] = (),
        processes: Mapping[TaskId, int] | None = None,
        *,
        spreads: bool = False,
    ) -> None:
        self._replicas = replicas
        self._homes = dict(homes)
        self.configurations = {each.share: each for each in configurations}
        self.processes = dict(processes or {})
        self.lost: set[int] = set()
        self._spreads = spreads
        self._alive: set[TaskId] = set()
        self._silent: set[TaskId] = set()  # suspected since their last report
        self._newcomers: set[TaskId] = set()
        self._draining: set[TaskId] = set()
        self._copying: dict[int, TaskId] = {}
        self._led: dict[int, int] = {}  # the epoch in which a share's leader is known to lead
        self.move: Move | None = None
        self._copies_of_move = 0

    # -- events --------------------------------------------------------------------------------

    def begin(self) -> list[Lead]:
        """Repeat the orders of the configurations that were written down."""
        return [order for each in self.configurations.values() for order in orders(each)]

    def reported(self, task: TaskId, report: PsReport) -> list[Reconfiguration]:
        """Decide what follows from a ps's report."""
        decided = []
        if self.processes.get(task, report.process) != report.process:
            decided += self.gone(task)
        if self._spreads and task not in self._alive:
            self._newcomers.add(task)
        self.processes[task] = report.process
        self._alive.add(task)
        self._silent.discard(task)
        (self._draining.add if report.draining else self._draining.discard)(task)
        decided += [self._keep(first(share, task)) for share in self._begins_with(task)]
        states = {state.share: state for state in report.shares}
        for share in list(self.configurations):
            decided += self._reported(task, self.configurations[share], states.get(share))
            decided += self._left_out(task, self.configurations.get(share), states.get(share))
        return decided

    def _begins_with(self, task: TaskId) -> list[int]:
        """List the shares that have not been led yet and begin at this ps."""
        known = self.configurations.keys() | self.lost
        return [share for share, home in self._homes.items() if home == task and share not in known]

    def _left_out(
        self, task: TaskId, now: Configuration | None, state: ShareState | None
    ) -> Iterable[Reconfiguration]:
        """Handle a ps that has something of a share from an epoch before, and is not counted on.

        Until another one leads in the epoch that leaves it out, workers have it alone: the order to
        lead may wait for a ps that does not answer, or for the next chief.
        """
        if now is None or state is None or task in now.replicas or state.epoch >= now.epoch:
            return
        if self._led.get(now.share) != now.epoch:
            return
        if state.role in (ReplicaRole.LEADING, ReplicaRole.FOLLOWING):
            yield Reconfiguration(tell=(GiveUpShare(now.share, now.epoch, task),))

    def _reported(
        self, task: TaskId, now: Configuration, state: ShareState | None
    ) -> Iterable[Reconfiguration]:
        if task != now.leader or state is None or state.role is not ReplicaRole.LEADING:
            return
        if not state.is_whole:  # an update failed there that its followers have
            yield from self._leave_out(now, task)
            return
        if state.epoch == now.epoch:
            self._led[now.share] = now.epoch
            linked = {each.task for each in state.followers}
            if unlinked := [task for task in now.followers if task not in linked]:
                for each in unlinked:  # it leads since a moment ago
                    yield from self._leave_out(self.configurations[now.share], each)
                return
            if self.move is not None and (self.move.share, self.move.to) == (now.share, task):
                self._end_move()
        self._copying.pop(now.share, None)
        self._see_progress(now, state)
        for follower in state.followers:
            if follower.is_lost:
                if follower.task in now.followers:
                    yield from self._leave_out(now, follower.task)
                    return
                if follower.is_needed and state.epoch == now.epoch:
                    yield self._keep(anew(now))
                    return
            elif follower.has_joined and follower.task not in now.replicas:
                if follower.task not in self._alive:
                    if state.epoch == now.epoch:
                        yield self._keep(anew(now))
                    return
                yield self._keep(with_follower(now, state.epoch, follower.task))
                return
            elif not follower.has_joined and follower.task not in now.replicas:
                self._copying[now.share] = follower.task

    def gone(self, task: TaskId, *, is_suspected: bool = False) -> list[Reconfiguration]:
        """Leave out a ps that is lost, or suspected to be: it leads and follows nothing any more.

        Args:
            task: The ps.
            is_suspected: Whether it does not answer, and may be there still: as the last replica of
                a share it is counted on. It may be the chief that is cut off, and from all ps. One
                that is being copied to may have its leader's pushes wait without end.
        """
        for tasks in (self._alive, self._draining, self._newcomers):
            tasks.discard(task)
        if is_suspected:
            self._silent.add(task)
        decided = [
            each
            for now in list(self.configurations.values())
            if task in now.replicas and not (is_suspected and now.replicas == (task,))
            for each in self._leave_out(now, task)
        ]
        joins = [share for share, to in self._copying.items() if to == task and is_suspected]
        return decided + [self._keep(anew(self.configurations[share])) for share in joins]

    def _leave_out(self, now: Configuration, task: TaskId) -> Iterable[Reconfiguration]:
        decided = without(now, task)
        if decided is None:
            self.lost.add(now.share)
            del self.configurations[now.share]
            return
        yield self._keep(decided)

    def _keep(self, decided: Reconfiguration) -> Reconfiguration:
        if decided.write is not None:
            self.configurations[decided.write.share] = decided.write
            self._copying.pop(decided.write.share, None)
        return decided

    # -- moving --------------------------------------------------------------------------------

    def begin_move(self, share: int, to: TaskId) -> Move:
        """Have a share led by another ps. A repeated call for the move under way changes nothing.

        Raises:
            NotFoundError: There is no such share, or no such ps.
            RefusedError: The ps leads it already, was asked to leave, or is lost; or another move
                is under way.
        """
        now, last = self.configurations.get(share), self.move
        if now is None:
            raise NotFoundError(
                f"there is no share {share}; the job has {_listed(self.configurations)}",
                share=share,
            )
        if to not in self.processes:
            raise NotFoundError(
                f"there is no {to.short}; the job has "
                + _listed(sorted(task.short for task in self.processes)),
                task=to,
            )
        if last is not None and not last.phase.is_over:
            if (last.share, last.to) == (share, to):
                return last
            raise RefusedError(f"{last} is under way; ask again when it is over", share=last.share)
        why = self._why_not(now, to)
        if why:
            raise RefusedError(f"share {share} cannot move to {to.short}: {why}", task=to)
        self._copies_of_move = 0
        self.move = Move(1 if last is None else last.number + 1, share, now.leader, to)
        return self.move

    def _why_not(self, now: Configuration, to: TaskId) -> str:
        """Say why a ps cannot come to lead a share; empty: it can."""
        if to == now.leader:
            return "it leads it already"
        if to not in self._alive:
            return "it does not answer"
        return "it was asked to leave" if to in self._draining else ""

    def settled(self) -> list[TaskId]:
        """List the ps among which shares may be moved about; none while anything else is to be
        done.
        """
        under_way = self.move is not None and not self.move.phase.is_over
        lacking = any(len(each.replicas) < self._replicas for each in self.configurations.values())
        if under_way or lacking or self._draining or self._copying or self.lost:
            return []
        return sorted(self._alive, key=lambda task: task.index)

    def move_to_newcomer(self) -> tuple[int, TaskId] | None:
        """Choose the share to move next to a ps that has come, and that ps; None: none, or not
        now.
        """
        servers = self.settled() if self._newcomers else []
        if not servers:
            return None
        best = move_to_newcomer(self.configurations.values(), self._newcomers, servers)
        if best is None and len(self.configurations) == len(self._homes):
            self._newcomers.clear()
        return best

    def _moved(self) -> Iterable[Reconfiguration]:
        """Hand over the share that is moving, once the other ps follows it."""
        move = self.move
        if move is None or move.phase.is_over:
            return
        now = self.configurations.get(move.share)
        if now is None:
            self._end_move("no ps has the share any more")
        elif now.leader == move.to:
            self.move = replace(move, phase=MovePhase.HANDING_OVER)
        elif why := self._why_not(now, move.to):
            self._end_move(why)
        elif move.phase is MovePhase.HANDING_OVER:
            self._end_move("it was lost before it led")
        elif move.to in now.followers:
            self.move = replace(move, phase=MovePhase.HANDING_OVER)
            yield self._keep(handed_over(now, move.to))

    def _end_move(self, why: str = "") -> None:
        if self.move is not None and not self.move.phase.is_over:
            phase = MovePhase.FAILED if why else MovePhase.DONE
            self.move = replace(self.move, phase=phase, reason=why)

    def _see_progress(self, now: Configuration, state: ShareState) -> None:
        to = self._moves_to(now.share)
        for follower in state.followers:
            if self.move is not None and follower.task == to:
                self.move = replace(
                    self.move, copied_bytes=follower.copied_bytes, total_bytes=state.held_bytes
                )

    def may_hear(self, task: TaskId) -> bool:
        """Return whether a ps may hear an order: it does not only stay since it is the last
        replica.
        """
        return task not in self._silent

    def obeyed(self, order: Lead) -> None:
        """Note that a ps leads now, as it was told to; with followers that it has no link to, it
        answers nothing yet.
        """
        now = self.configurations.get(order.share)
        if now is not None and now.epoch == order.epoch:
            self._led[order.share] = order.epoch

    # -- what is to be done without an event ---------------------------------------------------

    def hand_over(
        self,
        stays: Callable[[TaskId], bool] = lambda task: True,  # noqa: ARG005
    ) -> list[Reconfiguration]:
        """Let those that were asked to leave go where another ps has what they have, carry on with
        a move, and leave out what there are too many of.

        Args:
            stays: Whether a ps that was asked to leave can still wait until a third one has a copy.
        """
        decided = [
            each
            for now in list(self.configurations.values())
            for each in self._without_draining(now, stays)
        ]
        decided += [
            each for now in list(self.configurations.values()) for each in self._without_extra(now)
        ]
        return [*decided, *self._moved()]

    def _without_draining(
        self, now: Configuration, stays: Callable[[TaskId], bool]
    ) -> Iterable[Reconfiguration]:
        staying = [task for task in now.replicas if task in self._alive - self._draining]
        if not staying:
            return
        if now.leader in self._draining:
            yield self._keep(handed_over(now, staying[0]))
        elif self._led.get(now.share) == now.epoch and not self._replaces_first(
            now, staying, stays
        ):
            for task in now.followers:
                if task in self._draining:
                    yield from self._leave_out(self.configurations[now.share], task)

    def _replaces_first(
        self, now: Configuration, staying: Sequence[TaskId], stays: Callable[[TaskId], bool]
    ) -> bool:
        """Return whether followers that are to leave stay until another ps has a copy in their
        place.
        """
        others = self._alive - self._draining - {*now.replicas}
        leavers = self._draining.intersection(now.followers)
        return len(staying) < self._replicas and bool(others) and all(map(stays, leavers))

    def _without_extra(self, now: Configuration) -> Iterable[Reconfiguration]:
        """Leave out followers beyond those that are wanted: of a move that has failed."""
        if self._led.get(now.share) != now.epoch or self._is_moving(now.share):
            return
        if not self._draining.intersection(now.replicas):
            for task in now.replicas[self._replicas :]:
                yield from self._leave_out(self.configurations[now.share], task)

    def _is_moving(self, share: int) -> bool:
        move = self.move
        return move is not None and move.share == share and not move.phase.is_over

    def copies(self, may_copy: Callable[[int], bool] = lambda share: True) -> list[CopyTo]:  # noqa: ARG005
        """List copies to begin: of shares with fewer replicas than wanted.

        Args:
            may_copy: Whether a share may be copied now; asked once there is a ps to copy it to.
        """
        begun = []
        for now in self.configurations.values():
            if now.share in self._copying or now.leader not in self._alive:
                continue
            moves_to = self._moves_to(now.share)
            staying = [task for task in now.replicas if task not in self._draining]
            wanted = self._replicas + len(now.replicas) - len(staying)
            wanted, candidates = (
                (wanted, self._candidates(now.share))
                if moves_to is None
                else (len(now.replicas) + 1, [moves_to])
            )
            for order in copied(now, wanted, candidates).tell:
                if isinstance(order, CopyTo) and may_copy(now.share):
                    if moves_to is not None and self._has_failed_too_often(moves_to, now.leader):
                        continue
                    self._copying[now.share] = order.follower
                    begun.append(order)
        return begun

    def _moves_to(self, share: int) -> TaskId | None:
        """Find where a share is moving to; None: nowhere."""
        move = self.move
        is_copying = move is not None and move.phase is MovePhase.COPYING
        return move.to if move is not None and is_copying and move.share == share else None

    def _has_failed_too_often(self, to: TaskId, leader: TaskId) -> bool:
        self._copies_of_move += 1
        if self._copies_of_move <= _COPIES_OF_A_MOVE:
            return False
        self._end_move(
            f"the copy to {to.short} broke off {_COPIES_OF_A_MOVE} times; what {leader.short} and "
            f"{to.short} have logged says why"
        )
        return True

    def copy_refused(self, order: CopyTo) -> None:
        """Note that an order to copy was not obeyed."""
        self._copying.pop(order.share, None)

    def _candidates(self, share: int) -> list[TaskId]:
        """List the ps that may get a copy, those with the fewest replicas first, then the next in
        turn.
        """
        held = Counter(task for each in self.configurations.values() for task in each.replicas)
        held.update(self._copying.values())
        staying = self._alive - self._draining
        most = max((task.index for task in staying), default=0) + 1
        return sorted(staying, key=lambda task: (held[task], (task.index - share) % most))

    @property
    def are_replicated(self) -> bool:
        """Whether each share has as many replicas as are wanted, on ps that stay."""
        staying = self._alive - self._draining
        return len(self.configurations) == len(self._homes) and all(
            len(staying.intersection(each.replicas)) >= self._replicas
            for each in self.configurations.values()
        )

    def may_leave(self, task: TaskId) -> bool:
        """Return whether a ps that was asked to leave has nothing that is needed."""
        return task in self._draining and not any(
            task in each.replicas for each in self.configurations.values()
        )

    def is_stuck(self, task: TaskId) -> bool:
        """Return whether a ps that was asked to leave has what no other ps is there to take."""
        others = self._alive - self._draining
        return task in self._draining and not self.may_leave(task) and not others


def _listed(names: Iterable[object]) -> str:
    return ", ".join(str(name) for name in names) or "none"


def lead_orders(decided: Iterable[Reconfiguration]) -> list[Lead | HandOver]:
    """List the orders about who leads in some decisions, the last one of each share."""
    orders = (order for each in decided for order in each.tell)
    return list({each.share: each for each in orders if isinstance(each, Lead | HandOver)}.values())


def other_orders(decided: Iterable[Reconfiguration]) -> list[GiveUpShare]:
    """List the orders to those that have been left out before."""
    return [order for each in decided for order in each.tell if isinstance(order, GiveUpShare)]
