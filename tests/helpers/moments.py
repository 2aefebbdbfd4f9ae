"""An explicit-state model of a cut: workers that push, ps that hold, a chief, calls under way.

A worker's steps each push to some of the ps. A push, and a mark, is a call that the ps may take at
any later time and whose answer may come at any later time; a worker that dies leaves what it sent
behind. The decisions are the product's own functions, in :class:`Rules`; a test replaces one of
them by what it would be without the rule, and the search must find what goes wrong.

After each move the invariants are checked:

1. when the chief counts a cut as taken, each worker that it is of has one number, so that each ps
   has its steps up to there and none beyond; so has each worker that came later, in the same way;
2. nothing gets stuck: from each state all living workers can finish their steps, and without any
   time running out if all of them live and nothing is lost.
"""

from collections import deque
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ropewalk.annexes.moments import decisions as job_cut
from ropewalk.annexes.moments.decisions import CutPhase, JobCut
from ropewalk.annexes.moments.server import marks
from ropewalk.annexes.moments.server.marks import CutState, ShareCut
from ropewalk.core.errors import FencedError
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.cut_marks import CutMark

_BEFORE, _TOO_LATE = 0.0, 2.0
_UNTIL = 1.0
NUMBER = 1


def worker(index: int) -> Incarnation:
    """A worker by its number."""
    return Incarnation(TaskId("worker", index), 1)


class Call(NamedTuple):
    """A push or a mark that a ps may take. ``number`` counts the worker's steps."""

    kind: str
    worker: int
    ps: int
    number: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker.

    Attributes:
        is_here: It has registered.
        steps: Steps that it has begun.
        waits: Ps whose answers to the step under way are missing.
        marking: Ps whose answers to its marks are missing; None: it does not mark now.
        has_marked: It has begun to.
    """

    is_alive: bool = True
    is_here: bool = True
    steps: int = 0
    waits: frozenset[int] = frozenset()
    marking: frozenset[int] = frozenset()
    has_marked: bool = False


@dataclass(frozen=True, slots=True)
class Ps:
    """One ps.

    Attributes:
        has: The last step of each worker that it has.
        cut: Its part in the cut.
        image: What it had when it counted the cut as taken.
        late: The time that a hold may last is over.
    """

    has: tuple[int, ...]
    cut: ShareCut | None = None
    image: tuple[int, ...] | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """One state of all."""

    workers: tuple[Worker, ...]
    ps: tuple[Ps, ...]
    calls: frozenset[Call] = frozenset()
    cut: JobCut | None = None


@dataclass(frozen=True)
class Rules:
    """The decisions that the product makes. A planted defect is another function."""

    holds: Callable[[ShareCut, Incarnation, float], bool] = marks.holds
    marked: Callable[[ShareCut, Incarnation, CutMark, int, float], ShareCut] = marks.marked
    began: Callable[[JobCut, int, Set[Incarnation]], JobCut] = job_cut.began
    joined: Callable[[JobCut, Incarnation], JobCut] = job_cut.joined
    marks_between_steps: bool = True
    marks_are_waited_for: bool = True
    marks_once_all_hold: bool = True
    marks_by_itself: bool = True  # false: with its next step


@dataclass(frozen=True)
class Bounds:
    """How much is searched.

    Attributes:
        steps: Per worker and step: the ps that it pushes to.
        later: Workers that register later.
        deaths: Number of workers that may die.
    """

    steps: tuple[tuple[frozenset[int], ...], ...] = ()
    later: frozenset[int] = frozenset()
    deaths: int = 0
    has_time: bool = True
    servers: int = 2


@dataclass
class Found:
    """What a search found."""

    states: int
    taken: int
    violation: str = ""
    trace: tuple[str, ...] = field(default=())


class Model:
    """The moves of one search."""

    def __init__(self, bounds: Bounds, rules: Rules | None = None) -> None:
        self.bounds = bounds
        self.rules = rules or Rules()

    def initial(self) -> State:
        """Nothing has happened."""
        workers = tuple(
            Worker(is_here=index not in self.bounds.later)
            for index in range(len(self.bounds.steps))
        )
        none = (0,) * len(workers)
        return State(workers, tuple(Ps(none) for _ in range(self.bounds.servers)))

    # -- moves -----------------------------------------------------------------------------------

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        """All that may happen next, with what it is called."""
        for index, each in enumerate(state.workers):
            if each.is_alive:
                yield from self._of_worker(state, index, each)
        for call in sorted(state.calls):
            yield from self._taken(state, call)
        for index, server in enumerate(state.ps):
            if self.bounds.has_time and server.cut is not None and not server.late:
                late = replace(server, late=True, cut=marks.expired(server.cut, _TOO_LATE))
                yield f"time of ps:{index} is over", _with_ps(state, index, late)
        yield from self._of_chief(state)

    def _of_worker(self, state: State, index: int, me: Worker) -> Iterator[tuple[str, State]]:
        if not me.is_here:
            yield f"worker:{index} comes", _with_worker(state, index, replace(me, is_here=True))
            return
        steps, rules = self.bounds.steps[index], self.rules
        is_free = not me.waits and not (me.marking and rules.marks_are_waited_for)
        if is_free and me.steps < len(steps):
            yield f"worker:{index} begins step {me.steps + 1}", self._step(state, index, me)
        if self._may_mark(state, index, me):
            yield f"worker:{index} marks", self._mark(state, index, me)
        if me.marking and all(server.late for server in state.ps):
            # It waits for the answers for as long as a ps may hold.
            after = replace(me, marking=frozenset())
            yield f"worker:{index} waits no longer", _with_worker(state, index, after)
        dead = sum(not each.is_alive for each in state.workers)
        if dead < self.bounds.deaths:
            after = replace(me, is_alive=False)
            yield f"worker:{index} dies", _with_worker(state, index, after)

    def _step(self, state: State, index: int, me: Worker) -> State:
        targets = self.bounds.steps[index][me.steps]
        number = me.steps + 1
        calls = {
            Call("push", index, ps, number, self._sequence(index, number, ps)) for ps in targets
        }
        after = replace(me, steps=number, waits=targets)
        moved = replace(_with_worker(state, index, after), calls=state.calls | calls)
        if not self.rules.marks_by_itself and self._is_asked(state, index, me):
            return self._mark(moved, index, after, number - 1)
        return moved

    def _sequence(self, index: int, steps: int, ps: int) -> int:
        """Number of the last push to a ps of so many steps."""
        return sum(ps in targets for targets in self.bounds.steps[index][:steps])

    def _is_asked(self, state: State, index: int, me: Worker) -> bool:
        cut = state.cut
        if cut is None or me.has_marked or worker(index) not in cut.workers:
            return False
        is_time = cut.phase is CutPhase.MARKING or (
            not self.rules.marks_once_all_hold and cut.phase is CutPhase.BEGINNING
        )
        return is_time and not any(server.late for server in state.ps)

    def _may_mark(self, state: State, index: int, me: Worker) -> bool:
        if not self.rules.marks_by_itself:
            return False
        return self._is_asked(state, index, me) and not (
            me.waits and self.rules.marks_between_steps
        )

    def _mark(self, state: State, index: int, me: Worker, steps: int | None = None) -> State:
        done = me.steps if steps is None else steps
        calls = {
            Call("mark", index, ps, done, self._sequence(index, done, ps))
            for ps in range(len(state.ps))
        }
        after = replace(me, has_marked=True, marking=frozenset(range(len(state.ps))))
        return replace(_with_worker(state, index, after), calls=state.calls | calls)

    def _taken(self, state: State, call: Call) -> Iterator[tuple[str, State]]:
        server, who = state.ps[call.ps], worker(call.worker)
        now = _TOO_LATE if server.late else _BEFORE
        me, cut = state.workers[call.worker], server.cut
        left = replace(state, calls=state.calls - {call})
        if call.kind == "push":
            if cut is not None and self.rules.holds(cut, who, now):
                return
            has = tuple(
                call.number if index == call.worker else step
                for index, step in enumerate(server.has)
            )
            after = replace(me, waits=me.waits - {call.ps})
            moved = _with_ps(left, call.ps, replace(server, has=has))
            yield f"ps:{call.ps} takes {call}", _with_worker(moved, call.worker, after)
            return
        after = replace(me, marking=me.marking - {call.ps})
        moved = _with_worker(left, call.worker, after)
        applied = self._sequence(call.worker, server.has[call.worker], call.ps)
        if cut is not None:
            try:
                changed = self.rules.marked(
                    cut, who, CutMark(call.sequence, call.number), applied, now
                )
            except FencedError:
                changed = cut
            moved = _with_ps(moved, call.ps, _with_image(server, changed))
        yield f"ps:{call.ps} takes {call}", moved

    def _of_chief(self, state: State) -> Iterator[tuple[str, State]]:
        here = frozenset(
            worker(index)
            for index, each in enumerate(state.workers)
            if each.is_alive and each.is_here
        )
        cut, rules = state.cut, self.rules
        if cut is None:
            shares = range(len(state.ps))
            yield "the chief announces", replace(state, cut=job_cut.announced(NUMBER, here, shares))
            return
        if cut.is_over:
            return
        for who in sorted(cut.workers - cut.joined, key=str):
            after = rules.joined(cut, who)
            if who in here and after != cut:
                yield f"{who.task.short} joins", replace(state, cut=after)
        for index, server in enumerate(state.ps):
            if cut.phase is CutPhase.BEGINNING and server.cut is None:
                begun = marks.begun(None, cut.number, cut.workers, _UNTIL)
                holding = _with_ps(state, index, _with_image(server, begun))
                yield f"ps:{index} begins", holding
            if server.cut is None:
                continue
            if cut.phase is CutPhase.BEGINNING and index not in cut.began:
                yield (
                    f"the chief hears that ps:{index} began",
                    replace(state, cut=rules.began(cut, index, here)),
                )
            if server.cut.state is CutState.TAKEN and index not in cut.taken:
                after = job_cut.taken(cut, index)
                if after != cut:
                    yield f"the chief hears that ps:{index} has all", replace(state, cut=after)
            if server.cut.state is CutState.VOID:
                void = job_cut.voided(cut, "a ps says so")
                yield f"the chief hears that ps:{index} is void", replace(state, cut=void)

    # -- invariants ------------------------------------------------------------------------------

    def violation(self, state: State) -> str:
        """What is wrong with a state; empty: nothing."""
        if state.cut is None or state.cut.phase is not CutPhase.TAKEN:
            return ""
        for index, steps in enumerate(self.bounds.steps):
            images = [server.image or () for server in state.ps]
            have = [
                sum(ps in targets for targets in steps[: image[index]])
                for ps, image in enumerate(images)
            ]
            fits = any(
                all(
                    sum(ps in targets for targets in steps[:number]) == count
                    for ps, count in enumerate(have)
                )
                for number in range(len(steps) + 1)
            )
            # The last step of a worker that died may be on some ps only, as in the job itself.
            if not fits and state.workers[index].is_alive:
                return f"worker:{index} has {have} pushes on the ps, which is no moment of it"
        return ""

    def is_done(self, state: State) -> bool:
        """Whether all living workers have done all their steps."""
        return all(
            not each.is_alive or (each.steps == len(steps) and not each.waits)
            for each, steps in zip(state.workers, self.bounds.steps, strict=True)
        )


def search(model: Model) -> Found:
    """Visit all states; the first violation with the fewest moves."""
    states = [model.initial()]
    numbers = {states[0]: 0}  # looked up once per move: most of the time goes into hashes
    parents: list[tuple[int, str]] = [(0, "")]
    before: list[list[int]] = [[]]
    done, taken = [], 0
    for number, state in enumerate(states):  # which grows
        if wrong := model.violation(state):
            return Found(len(states), taken, wrong, _trace(parents, number))
        taken += state.cut is not None and state.cut.phase is CutPhase.TAKEN
        if model.is_done(state):
            done.append(number)
        for name, after in model.moves(state):
            known = numbers.setdefault(after, len(states))
            if known == len(states):
                states.append(after)
                parents.append((number, name))
                before.append([])
            before[known].append(number)
    reaches, todo = set(done), deque(done)
    while todo:
        new = set(before[todo.popleft()]) - reaches
        reaches |= new
        todo += new
    for number in range(len(states)):
        if number not in reaches:
            return Found(len(states), taken, "stuck", _trace(parents, number))
    return Found(len(states), taken)


def _trace(parents: list[tuple[int, str]], number: int) -> tuple[str, ...]:
    moves: list[str] = []
    while number:
        number, name = parents[number]
        moves.append(name)
    return tuple(reversed(moves))


def _with_image(server: Ps, cut: ShareCut) -> Ps:
    """A ps whose cut has changed: its values are the cut's in the moment in which that is taken."""
    is_new = cut.state is CutState.TAKEN and server.image is None
    return replace(server, cut=cut, image=server.has if is_new else server.image)


def _with_ps(state: State, index: int, server: Ps) -> State:
    return replace(state, ps=(*state.ps[:index], server, *state.ps[index + 1 :]))


def _with_worker(state: State, index: int, after: Worker) -> State:
    return replace(state, workers=(*state.workers[:index], after, *state.workers[index + 1 :]))
