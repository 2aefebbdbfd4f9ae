"""Learning-rate schedules: the same numbers as ``keras.optimizers.schedules``.

Keras evaluates in float32 on its numpy backend, we in float64. A float32 step carries 6e-8 of
relative error per operation, a handful of operations and a power or cosine stay below 2e-6 of the
initial rate; that is the tolerance. Steps are kept away from a staircase's edges by using decay
steps whose quotients float32 holds exactly.
"""

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.rules import schedules
from ropewalk.core.rules.schedules import (
    CosineDecay,
    ExponentialDecay,
    InverseTimeDecay,
    PiecewiseConstantDecay,
    PolynomialDecay,
)

STEPS = [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 127, 128, 1000, 123_456]


@pytest.fixture(scope="module")
def keras_schedules() -> Iterator[Any]:
    """Keras' schedules, on its numpy backend unless somebody loaded Keras before us."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", "numpy")
        yield importlib.import_module("keras").optimizers.schedules


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        pytest.param("ExponentialDecay", {"decay_steps": 16, "decay_rate": 0.9}, id="exponential"),
        pytest.param(
            "ExponentialDecay",
            {"decay_steps": 16, "decay_rate": 0.9, "staircase": True},
            id="exponential in stairs",
        ),
        pytest.param("InverseTimeDecay", {"decay_steps": 8, "decay_rate": 0.5}, id="inverse time"),
        pytest.param(
            "InverseTimeDecay",
            {"decay_steps": 8, "decay_rate": 0.5, "staircase": True},
            id="inverse time in stairs",
        ),
        pytest.param("PolynomialDecay", {"decay_steps": 128}, id="polynomial, Keras' defaults"),
        pytest.param(
            "PolynomialDecay",
            {"decay_steps": 128, "end_learning_rate": 0.01, "power": 2.0},
            id="quadratic",
        ),
        pytest.param(
            "PolynomialDecay",
            {"decay_steps": 32, "end_learning_rate": 0.01, "power": 0.5, "cycle": True},
            id="root, cycled",
        ),
        pytest.param("CosineDecay", {"decay_steps": 128}, id="cosine"),
        pytest.param("CosineDecay", {"decay_steps": 128, "alpha": 0.1}, id="cosine with a floor"),
        pytest.param(
            "CosineDecay",
            {"decay_steps": 128, "warmup_target": 0.5, "warmup_steps": 16, "alpha": 0.1},
            id="cosine after a warm-up",
        ),
        pytest.param(
            "CosineDecay",
            {"decay_steps": 128, "warmup_steps": 16},
            id="cosine with a warm-up to nowhere",
        ),
    ],
)
def test_rates_are_keras_rates(name: str, arguments: dict[str, Any], keras_schedules: Any) -> None:
    ours = getattr(schedules, name)(initial_learning_rate=0.1, **arguments)
    theirs = getattr(keras_schedules, name)(initial_learning_rate=0.1, **arguments)
    np.testing.assert_allclose(
        [ours(step) for step in STEPS],
        [float(theirs(step)) for step in STEPS],
        rtol=2e-6,
        atol=2e-6 * 0.1,
    )


def test_piecewise_rates_are_keras_rates(keras_schedules: Any) -> None:
    ours = PiecewiseConstantDecay(boundaries=(8, 32), values=(1.0, 0.5, 0.25))
    theirs = keras_schedules.PiecewiseConstantDecay([8, 32], [1.0, 0.5, 0.25])
    assert [ours(step) for step in STEPS] == [float(theirs(step)) for step in STEPS]


def test_a_piece_includes_its_boundary() -> None:
    rate = PiecewiseConstantDecay(boundaries=(10,), values=(1.0, 0.1))
    assert [rate(step) for step in (0, 10, 11)] == [1.0, 1.0, 0.1]


@given(
    step=st.integers(0, 10**7),
    decay_steps=st.floats(1, 1e6),
    end=st.floats(0, 1),
    cycle=st.booleans(),
)
def test_a_polynomial_stays_between_its_ends(
    step: int, decay_steps: float, end: float, cycle: bool
) -> None:
    rate = PolynomialDecay(
        initial_learning_rate=1.0, decay_steps=decay_steps, end_learning_rate=end, cycle=cycle
    )
    assert end - 1e-12 <= rate(step) <= 1.0 + 1e-12


@given(step=st.integers(0, 10**7), decay_steps=st.floats(1, 1e6), decay_rate=st.floats(0.01, 1))
def test_exponential_and_inverse_time_never_rise(
    step: int, decay_steps: float, decay_rate: float
) -> None:
    for cls in (ExponentialDecay, InverseTimeDecay):
        rate = cls(initial_learning_rate=1.0, decay_steps=decay_steps, decay_rate=decay_rate)
        assert 0 <= rate(step + 1) <= rate(step) <= 1


@given(step=st.integers(0, 10**6), warmup=st.integers(1, 1000), alpha=st.floats(0, 1))
def test_a_cosine_stays_between_floor_and_peak(step: int, warmup: int, alpha: float) -> None:
    rate = CosineDecay(
        initial_learning_rate=0.0,
        decay_steps=500,
        alpha=alpha,
        warmup_target=1.0,
        warmup_steps=warmup,
    )
    floor = alpha if step >= warmup else 0.0
    assert floor - 1e-12 <= rate(step) <= 1.0 + 1e-12


def test_the_end_of_a_warm_up_is_its_target() -> None:
    rate = CosineDecay(initial_learning_rate=0.0, decay_steps=10, warmup_target=0.5, warmup_steps=4)
    assert [rate(step) for step in range(5)] == [0.0, 0.125, 0.25, 0.375, 0.5]


@pytest.mark.parametrize(
    ("boundaries", "values", "said"),
    [
        pytest.param((1, 2), (0.1, 0.2), "2 boundaries need 3 values, got 2", id="too few values"),
        pytest.param((2, 1), (0.1, 0.2, 0.3), "boundaries must ascend", id="descending"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(
    boundaries: tuple[float, ...], values: tuple[float, ...], said: str
) -> None:
    with pytest.raises(ValueError, match=f"^PiecewiseConstantDecay: {said}"):
        PiecewiseConstantDecay(boundaries=boundaries, values=values)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(
            {"decay_steps": 0, "decay_rate": 0.5},
            "ExponentialDecay(decay_steps=0) is not allowed: it should be greater than 0",
            id="no steps",
        ),
        pytest.param(
            {"decay_steps": 3, "decay_rate": 0.5, "decay_step": 3},
            "ExponentialDecay has no argument 'decay_step'; it has initial_learning_rate, "
            "decay_steps, decay_rate, staircase",
            id="misspelt",
        ),
        pytest.param(
            {"decay_steps": 3},
            "ExponentialDecay needs the argument 'decay_rate'; it has initial_learning_rate, "
            "decay_steps, decay_rate, staircase",
            id="missing",
        ),
    ],
)
def test_a_wrong_argument_is_one_line_that_says_what_would_do(
    arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match="ExponentialDecay") as caught:
        ExponentialDecay(0.1, **arguments)
    assert str(caught.value) == said
    with pytest.raises(ValueError, match="ExponentialDecay") as caught:
        ExponentialDecay.model_validate({"initial_learning_rate": 0.1} | arguments)
    assert said in str(caught.value)


def test_arguments_by_position_stand_in_keras_order_and_a_name_is_left_out() -> None:
    by_position = [
        ExponentialDecay(0.1, 5, 0.9, True, "mine"),
        PolynomialDecay(0.1, 5, 0.01, 2.0, True),
        CosineDecay(0.1, 5, 0.5, "mine", 0.2, 3),
        PiecewiseConstantDecay([1, 2], [1.0, 0.5, 0.1]),
    ]
    assert by_position == [
        ExponentialDecay(
            initial_learning_rate=0.1, decay_steps=5, decay_rate=0.9, staircase=True, name="mine"
        ),
        PolynomialDecay(0.1, 5, end_learning_rate=0.01, power=2.0, cycle=True),
        CosineDecay(0.1, 5, alpha=0.5, warmup_target=0.2, warmup_steps=3),
        PiecewiseConstantDecay(boundaries=(1, 2), values=(1.0, 0.5, 0.1)),
    ]
    too_many: Any = InverseTimeDecay
    with pytest.raises(TypeError, match=r"InverseTimeDecay takes .*, got 6 arguments"):
        too_many(1, 2, 3, True, "name", 6)
    with pytest.raises(TypeError, match="decay_steps twice"):
        too_many(1, 2, decay_steps=3, decay_rate=1)
