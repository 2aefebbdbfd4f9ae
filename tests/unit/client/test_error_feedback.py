"""Top-k with error feedback: what is not sent now is sent later."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.client.ps.error_feedback import ErrorFeedback
from ropewalk.core.arrays.dtypes import BFLOAT16, FLOATS, Array, DType, narrow

F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)


def rest_of(feedback: ErrorFeedback, name: str = "w") -> Array:
    return feedback._rest[name].astype(np.float64)


def send(feedback: ErrorFeedback, gradient: Array, wire: DType, name: str = "w") -> Array:
    """One push that arrives; the dense gradient the ps makes of it, in float64."""
    numbers, elements = feedback.choose(name, gradient, wire)
    assert elements.dtype == wire
    feedback.sent()
    dense = np.zeros(gradient.size)
    dense[numbers] = elements.astype(np.float64)
    return dense


@settings(deadline=None)
@given(size=st.integers(1, 5000), share=st.floats(1e-4, 0.9999))
def test_the_share_of_the_elements_is_sent_rounded_up(size: int, share: float) -> None:
    gradient = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    numbers, elements = ErrorFeedback(share).choose("w", gradient, F32)
    assert numbers.size == elements.size == math.ceil(share * size)
    assert numbers.dtype == np.int64
    assert (np.diff(numbers) > 0).all()
    np.testing.assert_array_equal(elements, gradient[numbers])


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_the_largest_elements_are_sent_whatever_their_sign_and_shape(dtype: DType) -> None:
    gradient = np.array([[1, -9, 3], [8, 0, -2]]).astype(dtype)
    numbers, elements = ErrorFeedback(0.5).choose("w", gradient, dtype)
    np.testing.assert_array_equal(numbers, [1, 2, 3])
    np.testing.assert_array_equal(elements.astype(np.float32), [-9, 3, 8])


def test_the_gradient_itself_is_left_alone() -> None:
    gradient = np.arange(8, dtype=np.float32)
    feedback = ErrorFeedback(0.5)
    for _ in range(3):
        send(feedback, gradient, BFLOAT16)
    np.testing.assert_array_equal(gradient, np.arange(8))


@pytest.mark.parametrize("wire", [F32, BFLOAT16, F16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("share", [0.001, 0.1, 0.9])
def test_over_many_steps_nothing_is_lost(wire: DType, share: float) -> None:
    """Sent and left over add up to all gradients.

    Each step adds the gradient to the rest in float32 (one rounding, at most half a unit in the
    last place of numbers below 2**k) and takes away what it sends, which is exact: the difference
    of a number and its own rounding to fewer bits is representable. So each element is off by at
    most one float32 rounding per step of numbers as large as the rest gets.
    """
    rng = np.random.default_rng(0)
    steps, size = 200, 2000
    feedback = ErrorFeedback(share)
    sent, wanted, largest = np.zeros(size), np.zeros(size), 0.0
    for _ in range(steps):
        gradient = rng.standard_normal(size).astype(np.float32)
        wanted += gradient
        sent += send(feedback, gradient, wire)
        largest = max(largest, float(np.abs(rest_of(feedback)).max()) + 5)
    tolerance = float(steps * np.finfo(np.float32).eps / 2 * largest)
    np.testing.assert_allclose(sent + rest_of(feedback), wanted, rtol=0, atol=tolerance)


def test_whole_numbers_are_kept_to_the_bit() -> None:
    """Sums of small whole numbers are exact in float32, so nothing may be off at all."""
    rng = np.random.default_rng(1)
    feedback = ErrorFeedback(0.01)
    sent, wanted = np.zeros(1500), np.zeros(1500)
    for _ in range(100):
        gradient = rng.integers(-50, 50, 1500).astype(np.float32)
        wanted += gradient
        sent += send(feedback, gradient, BFLOAT16)
    np.testing.assert_array_equal(sent + rest_of(feedback), wanted)


def test_what_rounding_takes_away_is_sent_later() -> None:
    """1 + 2**-9 is 1 in bfloat16, whose next number is 1 + 2**-7: the rests of four make it."""
    feedback = ErrorFeedback(0.5)
    gradient = np.array([1 + 2**-9, 0], np.float32)
    sent = [float(send(feedback, gradient, BFLOAT16)[0]) for _ in range(8)]
    assert sent[0] == 1
    assert sum(sent) + rest_of(feedback)[0] == 8 * (1 + 2**-9)
    assert sum(sent) > 8
    assert abs(rest_of(feedback)[0]) <= 2**-8, "never further off than half a step of bfloat16"


def test_an_element_that_is_always_small_is_sent_in_the_end() -> None:
    feedback = ErrorFeedback(0.5)
    gradient = np.array([1.0, 0.3], np.float32)
    sent = sum(float(send(feedback, gradient, F32)[1]) for _ in range(40))
    assert abs(sent - 40 * 0.3) <= 1.5, "what is left is at most what was worth waiting"


def test_variables_have_rests_of_their_own() -> None:
    feedback = ErrorFeedback(0.5)
    send(feedback, np.array([4, 1], np.float32), F32, "a")
    np.testing.assert_array_equal(send(feedback, np.array([0, 0], np.float32), F32, "b"), [0, 0])
    np.testing.assert_array_equal(send(feedback, np.array([0, 0], np.float32), F32, "a"), [0, 1])


def test_a_push_that_did_not_arrive_leaves_everything_as_it_was() -> None:
    feedback, twin = ErrorFeedback(0.3), ErrorFeedback(0.3)
    rng = np.random.default_rng(2)
    for step in range(30):
        gradient = rng.standard_normal(50).astype(np.float32)
        if step % 3 == 1:
            for name in ("w", "other"):
                feedback.choose(name, gradient * 100, BFLOAT16)
            feedback.forget()
        np.testing.assert_array_equal(
            send(feedback, gradient, BFLOAT16), send(twin, gradient, BFLOAT16)
        )
    assert set(feedback._rest) == {"w"}


def test_of_a_push_that_some_ps_refused_only_what_the_others_took_counts_as_sent() -> None:
    feedback = ErrorFeedback(0.5)
    shards = [(0, 0, 2), (1, 2, 4)]
    gradient = np.array([4, 1, 3, 2], np.float32)
    feedback.choose("w", gradient, F32, shards)
    feedback.sent({0})
    np.testing.assert_array_equal(rest_of(feedback), [0, 1, 0, 0])
    numbers, _ = feedback.choose("w", gradient, F32, shards)
    feedback.sent({1})
    np.testing.assert_array_equal(numbers, [0, 2])
    np.testing.assert_array_equal(rest_of(feedback), [0, 1, 0, 2])


def test_a_push_repeated_after_it_failed_chooses_the_same() -> None:
    feedback = ErrorFeedback(0.1)
    gradient = np.random.default_rng(3).standard_normal(500).astype(np.float32)
    send(feedback, gradient[::-1].copy(), F32)
    first = feedback.choose("w", gradient, F32)
    feedback.forget()
    for one, other in zip(first, feedback.choose("w", gradient, F32), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_step_that_pushes_nothing_changes_nothing() -> None:
    feedback = ErrorFeedback(0.5)
    send(feedback, np.array([4, 1], np.float32), F32)
    feedback.sent()
    np.testing.assert_array_equal(rest_of(feedback), [0, 1])


def test_float16_keeps_its_largest_number_and_the_rest_follows() -> None:
    feedback = ErrorFeedback(0.5)
    gradient = np.array([100_000, 1], np.float32)
    assert send(feedback, gradient, F16)[0] == 65504
    assert rest_of(feedback)[0] == 100_000 - 65504
    assert send(feedback, np.zeros(2, np.float32), F16)[0] == 100_000 - 65504


@pytest.mark.parametrize("dtype", [F32, F64], ids=lambda dtype: dtype.name)
def test_narrowing_to_float16_saturates(dtype: DType) -> None:
    values = np.array([-1e30, -65505, -1, 0, 65519, 65521, 1e30]).astype(dtype)
    narrowed = narrow(values, F16)
    assert narrowed.dtype == F16
    np.testing.assert_array_equal(narrowed, [-65504, -65504, -1, 0, 65504, 65504, 65504])


@pytest.mark.parametrize("dtype", [F32, F64], ids=lambda dtype: dtype.name)
def test_narrowing_to_bfloat16_saturates_and_rounds_as_before_below(dtype: DType) -> None:
    largest = 3.3895313892515355e38
    edges = np.array([-np.inf, -3.4e38, np.inf, 3.4e38, largest]).astype(dtype)
    narrowed = narrow(edges, BFLOAT16)
    assert narrowed.dtype == BFLOAT16
    assert narrowed.astype(np.float64).tolist() == [-largest, -largest, largest, largest, largest]
    # More than is converted at a time, and no multiple of it.
    values = np.random.default_rng(0).standard_normal((3, 70_001)).astype(dtype)
    np.testing.assert_array_equal(narrow(values, BFLOAT16), values.astype(BFLOAT16))


def test_narrowing_one_half_type_to_the_other_saturates_where_it_must() -> None:
    there = narrow(np.array([1e38, -1e38, 1.5, np.nan]).astype(BFLOAT16), F16)
    np.testing.assert_array_equal(there, np.array([65504, -65504, 1.5, np.nan], F16))
    back = narrow(np.array([65504, 1.5], F16), BFLOAT16)
    np.testing.assert_array_equal(back, np.array([65504, 1.5]).astype(BFLOAT16))


def test_narrowing_keeps_what_is_not_a_number() -> None:
    assert np.isnan(narrow(np.array([np.nan], np.float32), F16)[0])
    assert np.isnan(narrow(np.array([np.nan], np.float32), BFLOAT16)[0])


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_what_is_not_narrowed_is_not_copied(dtype: DType) -> None:
    values = np.ones(3, dtype)
    assert narrow(values, dtype) is values
