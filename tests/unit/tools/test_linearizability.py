"""The checker of histories: what is wrong is told, what is right is not."""

from collections.abc import Hashable
from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.linearizability import Apply, Operation, counters, impossible_answer, register

ZERO = (0, 0)


def op(
    client: str, kind: str, value: Hashable, called: float, answered: float | None = None
) -> Operation:
    return Operation(client, kind, value, called, answered)


def add(client: int, called: float, answered: float | None = None) -> Operation:
    return op(f"worker {client}", "add", client, called, answered)


def read(counts: tuple[int, ...], called: float, answered: float, client: int = 9) -> Operation:
    return op(f"worker {client}", "read", counts, called, answered)


RIGHT = {
    "nothing": [],
    "one after the other": [add(0, 0, 1), read((1, 0), 2, 3), add(1, 4, 5), read((1, 1), 6, 7)],
    "a read sees a push under way": [add(0, 0, 9), read((1, 0), 1, 2), read((1, 0), 3, 4)],
    "a read does not see it yet": [add(0, 0, 9), read((0, 0), 1, 2), read((1, 0), 3, 4)],
    "one read of two at a time": [add(0, 0, 9), read((1, 0), 1, 5, 1), read((0, 0), 2, 4, 2)],
    "no answer, and no effect": [add(0, 0), read((0, 0), 1, 2), add(0, 3, 4), read((1, 0), 5, 6)],
    "no answer, and a late effect": [add(0, 0), read((0, 0), 1, 2), read((1, 0), 3, 4)],
    "a read without an answer": [add(0, 0, 1), op("w", "read", (), 2), read((1, 0), 3, 4)],
    "called when another is answered": [add(0, 0, 1), read((0, 0), 1, 2)],
}
WRONG = {
    "an old value is read": [add(0, 0, 1), read((0, 0), 2, 3)],
    "a push is lost": [add(0, 0, 1), read((1, 0), 2, 3), add(0, 4, 5), read((1, 0), 6, 7)],
    "a push counts twice": [add(0, 0, 1), read((2, 0), 2, 3)],
    "one without an answer counts twice": [add(0, 0), read((1, 0), 1, 2), read((2, 0), 3, 4)],
    "a read goes back": [add(0, 0, 9), read((1, 0), 1, 2), read((0, 0), 3, 4)],
    "an answer before the call": [read((1, 0), 0, 1), add(0, 2, 3)],
    "two orders of two pushes": [
        add(0, 0, 9), add(1, 0, 9), read((1, 0), 1, 5, 2), read((0, 1), 2, 4, 3),
    ],
    "lost while another came": [add(0, 0, 1), add(1, 0, 9), read((0, 1), 2, 3)],
}  # fmt: skip


@pytest.mark.parametrize("history", RIGHT.values(), ids=RIGHT)
def test_a_history_that_some_order_explains_is_linearizable(history: list[Operation]) -> None:
    assert impossible_answer(history, ZERO, counters) is None


@pytest.mark.parametrize("history", WRONG.values(), ids=WRONG)
def test_an_answer_that_no_order_explains_is_named(history: list[Operation]) -> None:
    reads = [each for each in history if each.kind == "read"]
    wrong = impossible_answer(history, ZERO, counters)
    assert wrong in reads
    assert str(wrong).startswith("worker ")


def test_a_register_shows_the_last_value_written() -> None:
    first, second = op("a", "write", 1, 0, 1), op("b", "write", 2, 2, 3)
    assert impossible_answer([first, second, op("c", "read", 2, 4, 5)], 0, register) is None
    back = op("c", "read", 1, 4, 5)
    assert impossible_answer([first, second, back], 0, register) == back
    late = op("b", "write", 2, 2)  # has effect after both reads, between them, or never
    reads = [op("c", "read", 1, 4, 5), op("c", "read", 2, 6, 7)]
    assert impossible_answer([first, late, *reads], 0, register) is None
    assert impossible_answer([first, late, *reads, op("c", "read", 1, 8, 9)], 0, register)


def test_a_long_history_takes_as_long_as_it_is() -> None:
    history: list[Operation] = []
    done = [0, 0, 0]
    for step in range(3000):
        history += [op(f"w{client}", "add", client, step, step + 0.9) for client in range(3)]
        done = [each + 1 for each in done]
        history.append(op("w0", "read", tuple(done), step + 0.95, step + 0.97))
    assert impossible_answer(history, (0, 0, 0), counters) is None
    history[2000 * 4 + 3] = op("w0", "read", (2001, 2001, 2000), 2000.95, 2000.97)
    assert impossible_answer(history, (0, 0, 0), counters) == history[2000 * 4 + 3]


def explains(order: tuple[Operation, ...], initial: Any, apply: Apply) -> bool:
    """Whether the operations, done in this order, fit their answers and their times."""
    state = initial
    for position, each in enumerate(order):
        if any(later.answered is not None and later.answered < each.called
               for later in order[position + 1 :]):  # fmt: skip
            return False
        state = apply(state, each)
        if state is None:
            return False
    return True


def by_trying_all(history: list[Operation], initial: Any, apply: Apply) -> bool:
    open_ = [each for each in history if each.answered is None]
    answered = [each for each in history if each.answered is not None]
    chosen = (some for n in range(len(open_) + 1) for some in combinations(open_, n))
    return any(
        explains(order, initial, apply)
        for some in chosen
        for order in permutations([*answered, *some])
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    made = []
    for client in range(draw(st.integers(1, 5))):
        called = draw(st.integers(0, 6))
        answered = draw(st.none() | st.integers(called, 8))
        kind = draw(st.sampled_from(["read", "write"]))
        value = draw(st.integers(0, 2))
        made.append(op(f"w{client}", kind, value, called, answered))
    return made


@given(histories())
def test_it_agrees_with_trying_every_order(history: list[Operation]) -> None:
    found = impossible_answer(history, 0, register)
    assert (found is None) == by_trying_all(history, 0, register)
