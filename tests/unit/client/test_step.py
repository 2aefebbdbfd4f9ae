"""A step as data: where its writes are cut into pushes, and in which order one push has them."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.client.ps.step import Step, Write, fits, gradients_first
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.wire.steps import Operation

APPLY, ASSIGN, ADD = Operation.APPLY, Operation.ASSIGN, Operation.ASSIGN_ADD
SLOW, FAST = {"learning_rate": 0.1}, {"learning_rate": 0.2}


def values(names: str) -> dict[str, Array]:
    return {name: np.ones(2, np.float32) for name in names}


def gradients(names: str, **how: object) -> Write:
    return Write(APPLY, values(names), **how)  # type: ignore[arg-type]


def cut(writes: Iterable[Write]) -> list[list[Write]]:
    pushes: list[list[Write]] = []
    for write in writes:
        if pushes and fits(pushes[-1], write):
            pushes[-1].append(write)
        else:
            pushes.append([write])
    return pushes


A, B = gradients("a"), gradients("b")


@pytest.mark.parametrize(
    ("writes", "pushes"),
    [
        ([], []),
        ([A, B], [[A, B]]),
        ([A, A], [[A], [A]]),
        ([A, B, gradients("ac")], [[A, B], [gradients("ac")]]),
        ([A, Write(ASSIGN, values("a"))], [[A, Write(ASSIGN, values("a"))]]),
        ([Write(ASSIGN, values("a")), A], [[Write(ASSIGN, values("a"))], [A]]),
        ([Write(ADD, values("b")), A], [[Write(ADD, values("b")), A]]),
        ([Write(ADD, values("b"))] * 3, [[Write(ADD, values("b"))] * 3]),
        ([gradients("a", clip=1.0), B], [[gradients("a", clip=1.0)], [B]]),
        ([A, gradients("b", clip=1.0)], [[A], [gradients("b", clip=1.0)]]),
        (
            [gradients("a", clip=1.0), Write(ADD, values("b"))],
            [[gradients("a", clip=1.0), Write(ADD, values("b"))]],
        ),
        (
            [gradients("a", hyperparameters=SLOW), gradients("b", hyperparameters=FAST)],
            [
                [gradients("a", hyperparameters=SLOW)],
                [gradients("b", hyperparameters=FAST)],
            ],
        ),
        (
            [gradients("a", hyperparameters=SLOW), gradients("b", hyperparameters=dict(SLOW))],
            [[gradients("a", hyperparameters=SLOW), gradients("b", hyperparameters=SLOW)]],
        ),
    ],
    ids=[
        "nothing",
        "gradients of other variables",
        "a second gradient of a variable",
        "a second gradient among others",
        "assigned after its gradient",
        "assigned before its gradient",
        "added to another variable before",
        "added again and again",
        "a norm over the first ones",
        "a norm over the second ones",
        "a norm is none over what is added",
        "other hyperparameters",
        "equal hyperparameters",
    ],
)
def test_writes_are_cut_where_one_push_cannot_have_them(
    writes: list[Write], pushes: list[list[Write]]
) -> None:
    np.testing.assert_equal(cut(writes), pushes)


WRITES = st.lists(
    st.builds(
        lambda names, operation, clip: Write(operation, values(names), 0.0, clip),
        st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("".join),
        st.sampled_from([APPLY, ASSIGN, ADD]),
        st.sampled_from([None, 1.0]),
    ),
    max_size=12,
)


@given(WRITES)
def test_pushes_have_all_writes_in_order_and_are_as_few_as_can_be(writes: list[Write]) -> None:
    pushes = cut(writes)
    assert [id(write) for push in pushes for write in push] == [id(write) for write in writes]
    for push in pushes:
        assert all(fits(push[:number], write) for number, write in enumerate(push))
    for before, after in pairwise(pushes):
        assert not fits(before, after[0])


@given(WRITES)
def test_a_variable_s_writes_keep_their_order_though_gradients_come_first(
    writes: list[Write],
) -> None:
    for push in cut(writes):
        ordered = gradients_first(push)
        assert all(write.operation is not APPLY for write in ordered[1:])
        for name in "abc":
            before = [w.values[name] for w in push if name in w.values]
            after = [w.values[name] for w in ordered if name in w.values]
            assert all(one is other for one, other in zip(before, after, strict=True))


def test_a_step_has_the_hyperparameters_of_its_gradients() -> None:
    writes = [gradients("a", hyperparameters=SLOW), Write(ADD, values("b"))]
    assert Step(writes).hyperparameters == SLOW
    assert Step(writes[1:]).hyperparameters is Step().hyperparameters is None
