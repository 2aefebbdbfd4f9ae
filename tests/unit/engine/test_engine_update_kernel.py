"""In front of a kernel every argument is checked: a wrong one is an error with numbers, never a
crash.
"""

from typing import Any

import numpy as np
import pytest

from helpers.rules import KERNELS
from helpers.ways import on_four_cores
from ropewalk.core.arrays.dtypes import Array
from ropewalk.engine.library import library

F32 = np.dtype(np.float32)
SIZE = 12


def arguments(name: str) -> dict[str, Any]:
    """Right ones: four rows of three elements, two of them updated."""
    scalars = {"sgd": 3, "momentum": 6, "adagrad": 5, "rmsprop": 8, "adam": 9, "ftrl": 8}[name]
    slots = {"sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 3, "adam": 2, "ftrl": 2}[name]
    return {
        "value": np.ones(SIZE, F32),
        "slots": [np.ones(SIZE, F32) for _ in range(slots)],
        "gradient": np.ones(6, F32),
        "rows": np.array([1, 3]),
        "width": 3,
        "scalars": np.full(scalars, 0.5, F32),
    }


def strided(size: int) -> Array:
    return np.ones(2 * size, F32)[::2]


def unaligned(size: int) -> Array:
    return np.frombuffer(b"x" + bytes(4 * size), F32, offset=1)


ROWS = "the value has 4 rows of 3 elements"
WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "slot-short": ("adam", {"slots": [np.ones(SIZE, F32), np.ones(11, F32)]},
                   "kernel adam: slot 1 has 11 elements, expected 12"),
    "slot-empty": ("adagrad", {"slots": [np.ones(0, F32)]},
                   "kernel adagrad: slot 0 has 0 elements, expected 12"),
    "slot-missing": ("ftrl", {"slots": [np.ones(SIZE, F32)]},
                     "kernel ftrl: slots has 1 arrays, expected 2"),
    "slot-optional-but-used": ("rmsprop", {"slots": [np.ones(SIZE, F32)]},
                               "kernel rmsprop: slot 1 has 0 elements, expected 12"),
    "slot-dtype": ("momentum", {"slots": [np.ones(SIZE)]}, "slot 0 is float64, expected float32"),
    "slot-read-only": ("momentum", {"slots": [np.frombuffer(bytes(48), F32)]}, "is read-only"),
    "value-dtype": ("sgd", {"value": np.ones(SIZE)}, "value is float64, expected float32"),
    "value-strided": ("sgd", {"value": strided(SIZE)}, "value is not contiguous, or not aligned"),
    "value-read-only": ("sgd", {"value": np.frombuffer(bytes(48), F32)}, "is read-only"),
    "value-matrix": ("sgd", {"value": np.ones((4, 3), F32)}, "value has 2 axes, expected 1"),
    "gradient-short": ("sgd", {"gradient": np.ones(5, F32)},
                       "kernel sgd: gradient has 5 elements, expected 6"),
    "gradient-dtype": ("sgd", {"gradient": np.ones(6)}, "gradient is float64, expected float32"),
    "gradient-unaligned": ("sgd", {"gradient": unaligned(6)}, "gradient is not contiguous, or not"),
    "dense-gradient-short": ("sgd", {"rows": None}, "gradient has 6 elements, expected 12"),
    "width": ("sgd", {"width": 4}, "gradient has 6 elements, expected 8"),
    "row-high": ("sgd", {"rows": np.array([1, 4])}, f"row 4 is out of range; {ROWS}"),
    "row-negative": ("sgd", {"rows": np.array([-1, 1])}, f"row -1 is out of range; {ROWS}"),
    "rows-huge": ("sgd", {"rows": np.array([1, 2**62])}, f"row {2**62} is out of range; {ROWS}"),
    "rows-dtype": ("sgd", {"rows": np.array([1, 3], np.int32)}, "rows is int32, expected int64"),
    "scalars-short": ("adam", {"scalars": np.ones(8, F32)},
                      "kernel adam: scalars has 8 elements, expected 9"),
    "scalars-dtype": ("adam", {"scalars": np.ones(9)}, "scalars is float64, expected float32"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "change", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_argument_is_named_and_nothing_is_changed(
    name: str, change: dict[str, Any], message: str
) -> None:
    given = arguments(name) | change
    before = [given["value"].copy(), *[slot.copy() for slot in given["slots"]]]
    with pytest.raises(ValueError, match=message):
        library.update_kernel(KERNELS[name], F32)(**given)
    for now, then in zip([given["value"], *given["slots"]], before, strict=True):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad", "rmsprop", "adam", "ftrl"])
def test_right_arguments_change_their_rows_alone(name: str) -> None:
    given = arguments(name)
    library.update_kernel(KERNELS[name], F32)(**given)
    changed = given["value"].reshape(4, 3) != 1
    assert changed.all(axis=1).tolist() == [False, True, False, True]


def test_rmsprop_needs_no_slots_for_what_is_off() -> None:
    given = arguments("rmsprop")
    given["slots"] = given["slots"][:1]
    given["scalars"][6:] = 0
    library.update_kernel(KERNELS["rmsprop"], F32)(**given)


@pytest.mark.parametrize("width", [0, 3])
def test_no_rows_are_no_special_case(width: int) -> None:
    given = arguments("adam")
    given |= {"rows": np.empty(0, np.int64), "gradient": np.empty(0, F32), "width": width}
    library.update_kernel(KERNELS["adam"], F32)(**given)
    assert (given["value"] == 1).all()


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "rows"])
def test_parts_on_several_cores_give_the_bits_of_one(
    monkeypatch: pytest.MonkeyPatch, sparse: bool
) -> None:
    rng = np.random.default_rng(0)
    kernel, width, count = library.update_kernel(KERNELS["adam"], F32), 5, 3001
    rows = np.flatnonzero(rng.random(count) < 0.5) if sparse else None
    size = count * width if rows is None else rows.size * width
    scalars = np.array([1, np.inf, 0.1, 0.9, 0.1, 0.99, 0.01, 1e-7, 0], F32)
    gradient = rng.standard_normal(size).astype(F32)
    results = []
    for choose in (lambda _: None, on_four_cores):
        choose(monkeypatch)
        value, *slots = (np.ones(count * width, F32) for _ in range(3))
        kernel(value, slots, gradient, rows, width, scalars)
        results.append([array.tobytes() for array in (value, *slots)])
    assert results[0] == results[1]
