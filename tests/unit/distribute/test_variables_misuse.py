"""What cannot be done with a variable says so, and changes nothing."""

import copy
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.local_strategies import ALL, several
from helpers.replicas import MEAN, SUM
from helpers.rows import row
from ropewalk.core.errors import ShapeMismatchError
from ropewalk.distribute import (
    MirroredStrategy,
    ParameterServerStrategy,
    PerReplica,
    Strategy,
)

pytestmark = [pytest.mark.timeout(30), pytest.mark.usefixtures("four_devices")]


# -- one strategy's variables under another ----------------------------------------------------

OUTSIDERS: dict[str, Callable[[], Any]] = {
    "plain": nullcontext,
    "of another": lambda: MirroredStrategy().scope(),
}


@several
@pytest.mark.parametrize("scope", OUTSIDERS.values(), ids=list(OUTSIDERS))
def test_an_optimizer_refuses_variables_created_outside_of_the_strategy_that_runs(
    kind: Callable[[], Strategy], scope: Callable[[], Any]
) -> None:
    with scope():
        v: Any = rw.Variable(np.zeros(1, np.float32), name="outside")
    optimizer = rw.optimizers.SGD(1.0)
    with pytest.raises(RuntimeError, match=r"Mixing different .* 'outside' belongs to .* scope"):
        kind().run(lambda: optimizer.apply_gradients([(np.ones(1, np.float32), v)]))
    assert v.numpy() == 0, "or each replica would have updated it"


@pytest.mark.parametrize("sync", ["ON_WRITE", "ON_READ"])
def test_variables_of_one_strategy_are_not_written_in_a_run_of_another(sync: str) -> None:
    owner, other = MirroredStrategy(), MirroredStrategy()
    with owner.scope():
        v: Any = rw.Variable(
            0.0, name="v", aggregation=MEAN, synchronization=rw.VariableSynchronization[sync]
        )
    for write in (v.assign, v.assign_add, v.assign_sub):
        with pytest.raises(RuntimeError, match=r"'v' belongs to MirroredStrategy"):
            other.run(write, (1.0,))
        with other.scope(), pytest.raises(RuntimeError, match="Mixing"):
            write(1.0)
    assert v.numpy() == 0
    assert v.assign(2.0).numpy() == 2, "outside of every strategy it may be"


@pytest.mark.parametrize("given", [1, 3, 5])
def test_values_for_another_number_of_replicas_are_refused(
    strategy: Strategy, replicas: int, given: int
) -> None:
    if given == replicas:
        return
    value = PerReplica(range(given))
    with pytest.raises(
        ValueError, match=f"PerReplica of {given} values was given to {replicas} rep"
    ):
        strategy.run(lambda x: x, args=({"x": value},))
    with pytest.raises(
        ValueError, match=f"PerReplica of {given} values was given to {replicas} rep"
    ):
        strategy.run(lambda x: x, kwargs={"x": value})


def test_names_stay_unique_and_cost_the_same_however_many_there_are() -> None:
    extended = MirroredStrategy().extended
    taken = ["x", "x_2", "x", "x", "x_2", "x_1"]
    given = [extended.unique_name(name) for name in taken]
    assert given == ["x", "x_2", "x_1", "x_3", "x_2_1", "x_1_1"]

    for _ in range(30_000):  # one look at all of them for each would take a minute
        extended.unique_name("y")
    assert extended.unique_name("y") == "y_30000"


# -- what is done with variables that cannot be ------------------------------------------------


@pytest.fixture(params=[*ALL, "ParameterServer"])
def any_variable(request: pytest.FixtureRequest) -> Any:
    """Of every strategy in turn."""
    kind = {**ALL, "ParameterServer": ParameterServerStrategy}[request.param]
    with kind().scope():
        return rw.Variable(np.zeros((3, 2), np.float32), name="v", aggregation=SUM)


@pytest.mark.parametrize(
    "make", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"]
)
def test_a_variable_is_not_copied_and_says_what_to_copy(
    any_variable: Any, make: Callable[[Any], Any]
) -> None:
    """A shallow copy would share the memory, and give out values that are no longer there."""
    with pytest.raises(TypeError, match=r"'v' belongs to its strategy .* copy its value"):
        make(any_variable)


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "scatter-array": (
        lambda v: v.scatter_add(np.ones((3, 2))),
        "scatter_add .*IndexedSlices, got ndarray",
    ),
    "complex": (
        lambda v: v.assign(np.full((3, 2), 1j)),
        "'v' is complex128, the variable is float32",
    ),
    "text": (lambda v: v.assign_add(np.full((3, 2), "1")), "'v' is str32, the variable is float32"),
    "in-place": (lambda v: v.__iadd__(1), "'v' is a variable and changes through assign"),
    "out": (lambda v: np.add(1, 1, out=v), "'v' is a variable and changes through assign"),
}


def test_what_a_variable_does_not_take_is_named(any_variable: Any) -> None:
    for mistake, message in MISTAKES.values():
        with row(mistake, message):
            with pytest.raises(TypeError, match=message):
                mistake(any_variable)
            assert not any_variable.numpy().any()


def test_rows_are_not_assigned_as_a_whole(any_variable: Any) -> None:
    rows = rw.IndexedSlices(np.ones((1, 2), np.float32), np.array([0]))
    for write in (any_variable.assign, any_variable.assign_add, any_variable.assign_sub):
        with pytest.raises(TypeError, match="'v' is assigned as a whole, got IndexedSlices"):
            write(rows)


BAD_GRADIENTS: dict[str, Any] = {
    "shape": np.ones(2, np.float32),
    "row": rw.IndexedSlices(np.ones(1, np.float32), np.array([3])),
}


@pytest.mark.parametrize("gradient", BAD_GRADIENTS.values(), ids=list(BAD_GRADIENTS))
@pytest.mark.parametrize("kind", [*ALL, "ParameterServer"])
def test_of_a_step_with_a_gradient_that_does_not_fit_nothing_is_applied(
    kind: str, gradient: Any
) -> None:
    strategy = {**ALL, "ParameterServer": ParameterServerStrategy}[kind]()
    with strategy.scope():
        fits = rw.Variable(np.zeros(2, np.float32), name="fits")
        other = rw.Variable(np.zeros(3, np.float32), name="other")
    optimizer = rw.optimizers.SGD(1.0)
    pairs = [(np.ones(2, np.float32), fits), (gradient, other)]
    with pytest.raises((ValueError, ShapeMismatchError), match="'other'"):
        strategy.run(lambda: optimizer.apply_gradients(pairs))
    assert not fits.numpy().any()
