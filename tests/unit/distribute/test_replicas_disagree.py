"""Replicas that make different calls are an error that shows each of them where it is."""

from functools import partial
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.replicas import SUM, context, mirrored, replica
from ropewalk.distribute import (
    PerReplica,
    Strategy,
)

pytestmark = pytest.mark.timeout(30)


def nothing(*_: Any) -> None:
    """A merge that does nothing."""


def something_else(*_: Any) -> None:
    """Another one."""


class Program:
    """Two variables, and steps in which the second replica does something else than the first."""

    def __init__(self, strategy: Strategy) -> None:
        with strategy.scope():
            self.a = rw.Variable(np.zeros(2), name="a", aggregation=SUM)
            self.b = rw.Variable(np.zeros(2), name="b", aggregation=SUM)
        self.extended = strategy.extended

    def merge_functions(self) -> None:
        if replica() == 0:
            context().merge_call(nothing)  # mark 0
        else:
            context().merge_call(something_else)  # mark 1

    def merge_and_assign(self) -> None:
        if replica() == 0:
            context().merge_call(nothing)  # mark 0
        else:
            self.a.assign_add(np.ones(2))  # mark 1

    def assigned_variables(self) -> None:
        if replica() == 0:
            self.a.assign_add(np.ones(2))  # mark 0
        else:
            self.b.assign_add(np.ones(2))  # mark 1

    def all_reduce_ops(self) -> None:
        if replica() == 0:
            context().all_reduce("SUM", np.ones(2))  # mark 0
        else:
            context().all_reduce("MEAN", np.ones(2))  # mark 1

    def all_gather_axes(self) -> None:
        if replica() == 0:
            context().all_gather(np.ones((2, 2)), axis=0)  # mark 0
        else:
            context().all_gather(np.ones((2, 2)), axis=1)  # mark 1

    def reduce_and_gather(self) -> None:
        if replica() == 0:
            context().all_reduce("SUM", np.ones(2))  # mark 0
        else:
            context().all_gather(np.ones(2), axis=0)  # mark 1

    def updated_variables(self) -> None:
        if replica() == 0:
            self.extended.update(self.a, nothing)  # mark 0
        else:
            self.extended.update(self.b, nothing)  # mark 1

    def update_functions(self) -> None:
        if replica() == 0:
            self.extended.update(self.a, nothing)  # mark 0
        else:
            self.extended.update(self.a, something_else)  # mark 1


@pytest.mark.parametrize(
    "name", [name for name in vars(Program) if not name.startswith("_")], ids=str
)
def test_replicas_in_different_merges_are_an_error_that_shows_both_places(name: str) -> None:
    strategy = mirrored(2)
    program = Program(strategy)
    with pytest.raises(RuntimeError, match="different merge calls") as caught:
        strategy.run(getattr(program, name))
    text = str(caught.value)
    first, second = text.index("replica 0 is at:"), text.index("replica 1 is at:")
    assert first < text.index("# mark 0") < second < text.index("# mark 1")
    assert f", in {name}\n" in text[first:second]
    assert f", in {name}\n" in text[second:]
    assert "ropewalk/distribute" not in text, "Ropewalk's own lines help nobody"
    assert strategy.run(replica).values == (0, 1), "the next step works"
    assert program.a.numpy().tolist() == [0, 0], "nothing was written"


@pytest.mark.parametrize("more", [0, 1], ids=["first-has-more", "second-has-more"])
def test_a_replica_that_ends_early_is_an_error_that_shows_where_the_other_waits(more: int) -> None:
    strategy = mirrored(2)

    def step() -> None:
        for _ in range(3 if replica() == more else 2):
            context().merge_call(nothing)  # mark

    for _ in range(20):
        with pytest.raises(RuntimeError, match="ended without") as caught:
            strategy.run(step)
        text = str(caught.value)
        assert f"replicas disagree: {more} called merge_call" in text
        assert f"replica {1 - more} has ended" in text
        assert "# mark" in text[text.index(f"replica {more} is at:") :]
    assert strategy.run(replica).values == (0, 1)


def test_of_three_replicas_the_error_shows_each() -> None:
    strategy = mirrored(3)

    def step() -> None:
        if replica() == 1:
            return
        if replica() == 0:
            context().merge_call(nothing)  # mark 0
        else:
            context().merge_call(something_else)  # mark 2

    with pytest.raises(RuntimeError, match=r"0, 2 called merge_call") as caught:
        strategy.run(step)
    text = str(caught.value)
    assert text.index("# mark 0") < text.index("replica 1 has ended") < text.index("# mark 2")


def test_replicas_that_create_different_variables_are_an_error() -> None:
    strategy = mirrored(2)
    with pytest.raises(RuntimeError, match=r"replica 0: 'v' of shape \(1,\).*replica 1: .*\(2,\)"):
        strategy.run(lambda: rw.Variable(np.zeros(1 + replica()), name="v"))
    assert strategy.run(lambda: rw.Variable(0.5, name="w")).shape == ()


def test_replicas_with_different_optimizers_are_an_error() -> None:
    strategy = mirrored(2)
    program = Program(strategy)
    optimizers = [rw.optimizers.SGD(0.1), rw.optimizers.SGD(0.2)]

    def step() -> None:
        optimizers[replica()].apply_gradients([(np.ones(2), program.a)])

    with pytest.raises(ValueError, match=r"(?s)different optimizers.*0\.1.*0\.2"):
        strategy.run(step)
    equal = [rw.optimizers.SGD(0.1), rw.optimizers.SGD(0.1)]
    strategy.run(lambda: equal[replica()].apply_gradients([(np.ones(2), program.a)]))
    np.testing.assert_allclose(program.a.numpy(), -0.2)  # two ones, summed, at 0.1


def test_functions_made_by_the_same_line_on_each_replica_are_the_same() -> None:
    """Each replica makes a closure, a partial and a bound method of its own."""
    strategy = mirrored(2)

    class Adder:
        def __init__(self, number: int) -> None:
            self.number = number

        def add(self, _: Strategy, values: PerReplica) -> int:
            return int(sum(values.values)) + self.number

    def add(number: int, _: Strategy, values: PerReplica) -> int:
        return int(sum(values.values)) + number

    def step() -> tuple[int, int, int]:
        merge, mine = context().merge_call, replica()
        return (
            merge(lambda _, v: sum(v.values) + (mine >= 0), (mine,)),
            merge(partial(add, 1), (mine,)),
            merge(Adder(1).add, (mine,)),
        )

    assert strategy.run(step) == (2, 2, 2)
