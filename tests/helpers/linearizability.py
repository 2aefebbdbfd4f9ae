"""Whether what clients saw of one object could have happened one operation after the other.

An operation takes effect at one moment between its call and its answer; one that was never answered
does so at any moment after its call, or never. A history is linearizable if there is an order of
such moments in which every answer is what the object, asked in that order, would have said.

A history of several objects is linearizable if that of each object is (Herlihy and Wing, 1990), so
objects are checked one by one. The search is that of Wing and Gong (1993), as Lowe's "Testing for
linearizability" (2017) puts it: in order of time, and no operation is taken before an answer needs
it. What has been answered is forgotten, so the work grows with the number of operations that are
under way at the same time, and not with the length of the history.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

Apply = Callable[[Hashable, "Operation"], Hashable | None]
"""The state after an operation on a state; None: the object would have answered otherwise."""

_MOST_STATES = 100_000


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client, and its answer.

    Attributes:
        client: Who called.
        kind: What was asked for, as :data:`Apply` knows it.
        value: What came with the call (a push), or with the answer (a read).
        called: When, by one clock of all clients. Unit: seconds.
        answered: When the answer came; None: none has come.
    """

    client: str
    kind: str
    value: Hashable
    called: float
    answered: float | None

    def __str__(self) -> str:
        end = "without an answer" if self.answered is None else f"to {self.answered:.4f}"
        return f"{self.client}: {self.kind} {self.value}, from {self.called:.4f} {end}"


def counters(state: Hashable, operation: Operation) -> Hashable | None:
    """A vector of counters: ``add`` counts one up at an index, ``read`` answers all of them."""
    assert isinstance(state, tuple)
    if operation.kind == "read":
        return state if operation.value == state else None
    index = operation.value
    assert isinstance(index, int)
    return (*state[:index], state[index] + 1, *state[index + 1 :])


def register(state: Hashable, operation: Operation) -> Hashable | None:
    """One value: ``write`` puts another in its place, ``read`` answers it."""
    if operation.kind == "read":
        return state if operation.value == state else None
    return operation.value


_Moment = tuple[Hashable, frozenset[int]]  # a state, and who under way has taken effect already


def impossible_answer(
    history: Sequence[Operation], initial: Hashable, apply: Apply
) -> Operation | None:
    """The first operation whose answer no order explains; None: the history is linearizable.

    Args:
        history: The operations on one object, in any order.
        initial: Its state before all of them.
        apply: What it does.
    """
    numbers = count()
    numbered = {next(numbers): each for each in history if not _is_of_no_effect(each)}
    under_way: set[int] = set()
    moments: set[_Moment] = {(initial, frozenset())}
    for number, is_answer in _events(numbered):
        if not is_answer:
            under_way.add(number)
            continue
        possible = _explain(number, moments, under_way, numbered, apply)
        if not possible:
            return numbered[number]
        if len(possible) > _MOST_STATES:
            raise RuntimeError(f"too many orders are possible at {numbered[number]}")
        moments = {(state, effective - {number}) for state, effective in possible}
        under_way.discard(number)
    return None


def _is_of_no_effect(operation: Operation) -> bool:
    return operation.kind == "read" and operation.answered is None


def _events(numbered: dict[int, Operation]) -> Iterable[tuple[int, bool]]:
    """Calls and answers in order of time; of two at one time, the call is first."""
    events = [(each.called, False, number) for number, each in numbered.items()]
    events += [
        (each.answered, True, number)
        for number, each in numbered.items()
        if each.answered is not None
    ]
    for _, is_answer, number in sorted(events):
        yield number, is_answer


def _explain(
    number: int,
    moments: set[_Moment],
    under_way: set[int],
    numbered: dict[int, Operation],
    apply: Apply,
) -> set[_Moment]:
    """All moments at which an operation has taken effect, with others before it or without."""
    found: set[_Moment] = set()
    left, seen = list(moments), set(moments)
    while left:
        state, effective = left.pop()
        if number in effective:
            found.add((state, effective))
            continue
        for each in under_way - effective:
            after = apply(state, numbered[each])
            moment = (after, effective | {each})
            if after is not None and moment not in seen:
                seen.add(moment)
                left.append(moment)
    return found
