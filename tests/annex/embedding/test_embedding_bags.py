"""Ids of features in every form, and how rows of an example become one and back."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.annexes.embedding.features.config import FeatureConfig, TableConfig
from ropewalk.annexes.embedding.features.inputs import Ragged, bag_of, hash_strings
from ropewalk.distribute.embeddings import Bag

LISTS = [[3, 1], [], [7], [2, 2, 9]]
WEIGHTS = [[1.0, 3.0], [], [0.5], [1.0, 2.0, -1.0]]
FLAT, LENGTHS = np.array([3, 1, 7, 2, 2, 9]), np.array([2, 0, 1, 3])
ROWS = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)


def feature(combiner: str = "mean", length: int = 0) -> FeatureConfig:
    return FeatureConfig("f", TableConfig("t", 4, combiner=combiner), max_sequence_length=length)


def combined(bag: Bag) -> Any:
    return bag.combine(ROWS, bag.ids)


def reference(combiner: str, weights: list[list[float]]) -> list[Any]:
    """One example after another, in float64."""
    found = []
    for ids, given in zip(LISTS, weights, strict=True):
        total = sum(
            (w * ROWS[i].astype(float) for i, w in zip(ids, given, strict=True)), np.zeros(4)
        )
        divisor = {"sum": 1.0, "mean": sum(given), "sqrtn": sum(w * w for w in given) ** 0.5}
        found.append(total / divisor[combiner] if ids else total)
    return found


FORMS = {
    "lists": LISTS,
    "row_lengths": Ragged(FLAT, LENGTHS),
    "offsets": Ragged(FLAT, offsets=[0, 2, 2, 3, 6]),
    "sparse": SimpleNamespace(
        indices=np.array([[0, 0], [0, 1], [2, 0], [3, 0], [3, 1], [3, 2]]),
        values=FLAT,
        dense_shape=(4, 3),
    ),
}


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
@pytest.mark.parametrize("form", FORMS)
def test_rows_of_an_example_are_combined(form: str, combiner: str) -> None:
    own = [[1.0] * len(ids) for ids in LISTS]
    bag = bag_of(feature(combiner), FORMS[form], None)
    np.testing.assert_allclose(combined(bag), reference(combiner, own), rtol=1e-5, atol=1e-6)
    flat = np.concatenate([np.array(each) for each in WEIGHTS])
    weights = WEIGHTS if form == "lists" else Ragged(flat, LENGTHS)
    bag = bag_of(feature(combiner), FORMS[form], weights)
    np.testing.assert_allclose(combined(bag), reference(combiner, WEIGHTS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("flat", [list, np.array], ids=["list", "array"])
def test_ragged_ids_take_their_weights_in_one_flat_array(flat: Any) -> None:
    bag = bag_of(feature(), FORMS["row_lengths"], flat([each for own in WEIGHTS for each in own]))
    np.testing.assert_allclose(combined(bag), reference("mean", WEIGHTS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
@pytest.mark.parametrize("length", [0, 2])
def test_gradients_go_back_as_rows_came(combiner: str, length: int) -> None:
    """Combining is linear in the rows, and spreading is its adjoint."""
    bag = bag_of(feature(combiner, length), LISTS, WEIGHTS)
    rng = np.random.default_rng(1)
    each = rng.standard_normal((bag.ids.size, 4)).astype(np.float32)
    gradient = rng.standard_normal((bag.examples, 4)).astype(np.float32)
    there, back = bag.combine(each, None), bag.spread(gradient)
    assert np.vdot(there, gradient) == pytest.approx(np.vdot(each, back), rel=1e-5)


def test_sequences_keep_the_first_rows_and_are_filled_with_zeros() -> None:
    bag = bag_of(feature(length=2), LISTS, None)
    rows = combined(bag).reshape(4, 2, 4)
    zero = np.zeros(4, np.float32)
    wanted = [[ROWS[3], ROWS[1]], [zero, zero], [ROWS[7], zero], [ROWS[2], ROWS[2]]]
    np.testing.assert_array_equal(rows, wanted)


def test_one_id_each_is_its_row_whatever_the_combiner() -> None:
    for combiner in ("mean", "sum", "sqrtn"):
        bag = bag_of(feature(combiner), np.array([4, 4, 0], np.int32), None)
        assert (bag.example, bag.scale) == (None, None)
        np.testing.assert_array_equal(combined(bag), ROWS[[4, 4, 0]])


def test_ids_of_weight_zero_are_left_out() -> None:
    """So padding of a fixed length is neither looked up nor trained."""
    ids, weights = np.array([[3, 8], [8, 8]]), np.array([[2.0, 0.0], [0.0, 0.0]])
    bag = bag_of(feature(), ids, weights)
    assert bag.ids.tolist() == [3]
    np.testing.assert_allclose(combined(bag), [ROWS[3], np.zeros(4)], rtol=1e-6)


def test_examples_may_be_arrays_of_any_lengths() -> None:
    arrays = [np.array(ids, np.int64) for ids in LISTS]
    weights = [np.array(own) for own in WEIGHTS]
    bag, wanted = bag_of(feature(), arrays, weights), bag_of(feature(), LISTS, WEIGHTS)
    np.testing.assert_array_equal(combined(bag), combined(wanted))


def test_any_64_bits_are_a_key() -> None:
    ids = np.array([2**64 - 1, 2**63], np.uint64)
    assert bag_of(feature(), ids, None).ids.tolist() == [-1, -(2**63)]


@pytest.mark.parametrize(
    ("ids", "weights", "error", "said"),
    [
        (["a", "b"], None, TypeError, "hash_strings"),
        ([1.5], None, TypeError, "not integers"),
        (np.zeros((2, 2, 2), int), None, ValueError, "Ragged"),
        ([[[1, 2], [3]], [[4]]], None, ValueError, "an example is a list of lists"),
        ([[[1, 2], [3, 4]], [[5, 6]]], None, ValueError, "an example is a list of lists"),
        (LISTS, [1.0], ValueError, "6 ids of 4 examples, and 1 weights of 1"),
        (Ragged(FLAT, LENGTHS), np.ones(4), ValueError, "6 ids of 4 examples, and 4 weights of 4"),
        ([1, 2], [[1.0], [1.0]], ValueError, "one weight for every id"),
        ([1], [float("nan")], ValueError, "NaN"),
    ],
    ids=[
        "strings",
        "floats",
        "three dimensions",
        "nested",
        "nested alike",
        "fewer",
        "one for each example",
        "other shape",
        "nan",
    ],
)
def test_what_is_no_id_or_weight_is_named(
    ids: Any, weights: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        bag_of(feature(), ids, weights)
    assert "'f'" in str(raised.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "one of them"),
        ({"row_lengths": [6], "offsets": [0, 6]}, "one of them"),
        ({"row_lengths": [5]}, "add up to 5"),
        ({"row_lengths": [7, -1]}, "at least 0"),
        ({"offsets": [0, 2]}, "include_last_offset"),
        ({"row_lengths": [6.0]}, "integers"),
    ],
    ids=["neither", "both", "fewer", "negative", "without the last", "floats"],
)
def test_lengths_that_do_not_fit_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Ragged(FLAT, **given)


def test_strings_have_the_keys_that_xxh64_says() -> None:
    """The first one is of the reference implementation's own documentation."""
    assert hash_strings([""]).view(np.uint64)[0] == 0xEF46DB3751D8E999
    keys = hash_strings([["a", "ä"], [b"a", b"a\0"]])
    assert keys.shape == (2, 2)
    assert keys.dtype == np.int64
    assert keys[0, 0] == keys[1, 0] != keys[1, 1]
    np.testing.assert_array_equal(hash_strings(np.array(["a", "ä"])), keys[0])
    assert rw.embedding.hash_strings("a", seed=1) != keys[0, 0]
    with pytest.raises(TypeError, match="int"):
        hash_strings([1])
    with pytest.raises(ValueError, match="seed"):
        hash_strings(["a"], seed=-1)
