"""Steps on a ps in the program's process, beside the same steps by a session."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.sharded import through_a_session
from ropewalk.core.arrays.indexed_slices import IndexedSlices
from ropewalk.core.errors import NonFiniteGradientError, ShapeMismatchError
from ropewalk.distribute.base.moved_average import MovedAverage
from ropewalk.training.array_store import ModelStep

LARGE = (300, 256)  # has a block of its own
SHAPES = {"bias": (5,), "kernel": (4, 5), "scale": (), "table": LARGE}
RULES: dict[str, Callable[[], Any]] = {
    "SGD": lambda: rw.optimizers.SGD(0.1),
    "momentum": lambda: rw.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda: rw.optimizers.Adagrad(0.1),
    "Adam": lambda: rw.optimizers.Adam(0.01),
    "AdamW": lambda: rw.optimizers.AdamW(0.01, weight_decay=0.1),
    "Ftrl": lambda: rw.optimizers.Ftrl(0.1),
    "Lamb": lambda: rw.optimizers.Lamb(0.01),
    "schedule": lambda: rw.optimizers.SGD(lambda step: 0.1 / (1 + step)),
    "clipped": lambda: rw.optimizers.SGD(0.1, clipnorm=0.5),
}


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def store(make: Callable[[], Any], *, in_process: bool = True, **more: Any) -> Any:
    kind = rw.distribute.ParameterServerStrategy if in_process else through_a_session
    strategy = kind(**more)
    return rw.training.ArrayStore(arrays(), make(), strategy)


def both(make: Callable[[], Any]) -> tuple[Any, Any]:
    return store(make), store(make, in_process=False)


@pytest.mark.parametrize("name", RULES)
def test_a_step_makes_the_bits_that_a_session_makes(name: str) -> None:
    here, session = both(RULES[name])
    for step in range(20):
        gradients: dict[str, Any] = arrays(step + 1)
        if step % 3 == 1:  # of some arrays
            del gradients["bias"]
        if step % 3 == 2 and name != "Lamb":
            ids = np.array([7, 299, 7, 0])
            gradients["table"] = IndexedSlices(gradients["table"][:4], ids, LARGE)
        ours, theirs = here.exchange(gradients), session.exchange(gradients)
        for each in SHAPES:
            np.testing.assert_array_equal(ours[each], theirs[each], err_msg=f"{each} at {step}")
    assert here.step == session.step == 20
    assert here.strategy.extended.runtime.progress.steps == 20


def test_only_what_is_plainly_a_step_skips_the_session() -> None:
    def skips(made: Any) -> bool:
        counters = made.strategy.extended.runtime.session.counters
        before = counters.pushed
        for seed in range(3):
            made.exchange(arrays(seed))
        return bool(made.strategy.extended.runtime.session.counters.pushed == before)

    halves = rw.distribute.partitioners.FixedShardsPartitioner(2)
    assert skips(store(RULES["Adam"]))
    assert not skips(store(RULES["clipped"]))
    assert not skips(store(RULES["Adam"], prefetch=True))
    assert not skips(store(RULES["Adam"], variable_partitioner=halves))


def test_values_that_came_back_stay_what_they_are() -> None:
    made = store(RULES["SGD"])
    first = made.exchange(arrays(1))
    kept = {name: value.copy() for name, value in first.items()}
    made.exchange(arrays(2))
    for name, value in first.items():
        np.testing.assert_array_equal(value, kept[name])
        assert not value.flags.writeable


def test_a_gradient_of_another_shape_or_with_nan_changes_nothing() -> None:
    made = store(RULES["Adam"])
    made.exchange(arrays(1))
    before = made.pull()
    with pytest.raises(ShapeMismatchError, match="kernel"):
        made.exchange({**arrays(1), "kernel": np.zeros(5, np.float32)})
    bad = arrays(1)
    bad["kernel"][0, 0] = np.nan
    made.exchange(bad)
    limit = made.strategy.extended.runtime.settings.nonfinite_limit
    for _ in range(limit - 2):
        made.exchange(bad)
    with pytest.raises(NonFiniteGradientError, match="kernel"):
        made.exchange(bad)
    assert made.step == 1
    for name, value in made.pull().items():
        np.testing.assert_array_equal(value, before[name])


def test_averages_move_as_by_a_session() -> None:
    found = []
    for made in both(RULES["SGD"]):
        before = made.pull()["bias"]
        moved = MovedAverage(before, 0.9 * before + 0.1, 0.1)
        gradients = {"kernel": np.ones((4, 5), np.float32)}
        found.append(made.exchange(ModelStep(gradients, averages={"bias": moved}))["bias"])
    np.testing.assert_array_equal(*found)


def test_parts_of_one_step_count_once() -> None:
    made = store(RULES["SGD"])
    with made.strategy.extended.as_one_step():
        made.exchange(arrays(1))
        made.exchange(arrays(2))
    assert made.step == 1
    made.exchange(arrays(3))
    assert made.step == 2


# -- arrays of the program -------------------------------------------------------------------------


def own_of(made: Any, **more: Any) -> tuple[dict[str, np.ndarray], Any]:
    mine = {name: value.copy() for name, value in made.pull().items()}
    own = made.alone.arrays([(made.variables[n], a) for n, a in mine.items()], **more)
    assert own is not None
    return mine, own


def test_a_programs_arrays_are_updated_in_place_with_what_it_changed_itself() -> None:
    """As a program without a strategy would have it: clamping, as a Wasserstein critic does."""
    made, other = both(RULES["Adam"])
    mine, own = own_of(made)
    memory = {name: array.ctypes.data for name, array in mine.items()}
    for seed in range(5):
        assert made.alone.apply(made.updates(arrays(seed)), own)
        theirs = other.exchange(arrays(seed))
        for name, array in mine.items():
            np.testing.assert_array_equal(array, theirs[name], err_msg=name)
            np.clip(array, -0.5, 0.5, out=array)
        other.assign({name: np.clip(theirs[name], -0.5, 0.5) for name in theirs})
    assert memory == {name: array.ctypes.data for name, array in mine.items()}
    for name, value in made.pull().items():  # whoever asks sees the change, too
        np.testing.assert_array_equal(value, mine[name])


def test_what_others_assign_is_not_overwritten_by_a_programs_arrays() -> None:
    made = store(RULES["SGD"])
    mine, own = own_of(made)
    made.assign({"bias": np.full(5, 9, np.float32)})
    assert not own.are_current
    assert not made.alone.apply(made.updates(arrays(1)), own)
    np.testing.assert_array_equal(made.pull()["bias"], np.full(5, 9))
    own.load()
    np.testing.assert_array_equal(mine["bias"], np.full(5, 9))
    assert made.alone.apply(made.updates(arrays(1)), own)


def test_a_large_array_is_the_memory_of_the_ps() -> None:
    made = store(RULES["SGD"])
    mine, own = own_of(made)
    assert made.alone.apply(made.updates(arrays(1)), own)
    made.assign({"table": np.zeros(LARGE, np.float32)})
    assert not mine["table"].any()


def test_a_step_of_the_program_counts_and_one_with_nan_is_undone() -> None:
    made = store(RULES["SGD"])
    mine, own = own_of(made, adopt=False)

    def halve() -> dict[str, np.ndarray]:
        for array in mine.values():
            np.multiply(array, 0.5, out=array)
        return mine

    def ruin() -> dict[str, np.ndarray]:
        mine["table"][3, 3] = np.inf
        return mine

    start = arrays()
    assert made.alone.by_program(halve, own)
    assert made.alone.by_program(ruin, own) is False
    assert made.step == 1
    for name, value in made.pull().items():
        np.testing.assert_array_equal(value, start[name] * np.float32(0.5))
        np.testing.assert_array_equal(mine[name], value)


def test_values_elsewhere_are_asked_for_when_they_are_read() -> None:
    made = store(RULES["SGD"])
    elsewhere, asked = np.zeros(5, np.float32), []

    def values() -> dict[str, np.ndarray]:
        asked.append(1)
        return {"bias": elsewhere}

    own = made.alone.values({"bias": made.variables["bias"]}, values)

    def update() -> dict[str, np.ndarray]:
        np.add(elsewhere, 1, out=elsewhere)
        return {"bias": elsewhere}

    for _ in range(10):
        assert made.alone.by_program(update, own)
    assert not asked
    np.testing.assert_array_equal(made.pull()["bias"], np.full(5, 10))
    made.pull()
    assert len(asked) == 1
    assert made.step == 10


def test_gradients_are_applied_to_values_that_the_program_has_elsewhere() -> None:
    made = store(RULES["SGD"])
    elsewhere = np.zeros(5, np.float32)
    own = made.alone.values({"bias": made.variables["bias"]}, lambda: {"bias": elsewhere})
    assert made.alone.by_program(lambda: {"bias": elsewhere}, own)
    values = made.exchange({"bias": np.ones(5, np.float32)})
    np.testing.assert_array_equal(values["bias"], np.full(5, -0.1, np.float32))


def test_no_array_is_a_programs_own_where_other_processes_have_it() -> None:
    for made in (store(RULES["SGD"], in_process=False), store(RULES["SGD"], prefetch=True)):
        assert made.alone is None
