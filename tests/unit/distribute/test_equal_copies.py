"""Copies of workers in sync: equal but for rounding, or an error that names the variable."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ropewalk as rw
from ropewalk.core.errors import IncompatibleError
from ropewalk.core.task import TaskId
from ropewalk.distribute.strategies import equal_copies
from ropewalk.distribute.variables.variable import Variable

Array = np.ndarray[Any, np.dtype[Any]]
MEMBERS = (TaskId("worker", 0), TaskId("worker", 1))
VALUES = np.random.default_rng(0).normal(size=(300, 70)).astype(np.float32)


pytestmark = pytest.mark.usefixtures("plain_process")


def compare(first: Array, second: Array) -> None:
    with rw.distribute.MirroredStrategy(["CPU:0"]).scope():
        copies = [rw.Variable(value, name="w") for value in (first, second)]
    numbers = np.stack([equal_copies.numbers_of([copy]) for copy in copies])
    equal_copies.require_equal(["w"], numbers, MEMBERS, 1, 7)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_copies_that_differ_by_rounding_are_equal(dtype: str) -> None:
    finfo: Any = ml_dtypes.finfo
    eps = float(finfo(dtype).eps)
    rounded = VALUES * (1 + np.random.default_rng(2).uniform(-eps, eps, VALUES.shape))
    compare(VALUES.astype(dtype), rounded.astype(dtype))


def test_zeros_are_equal() -> None:
    compare(np.zeros(3, np.float32), np.zeros(3, np.float32))


def test_noise_of_a_worker_is_an_error_that_names_the_variable_and_says_what_to_write() -> None:
    noise = np.random.default_rng(1).normal(scale=0.01, size=VALUES.shape).astype(np.float32)
    with pytest.raises(
        IncompatibleError, match=r"after step 7 the copies of 'w' differ .*one seed"
    ):
        compare(VALUES, VALUES + noise)


def test_what_is_trained_is_compared_a_few_at_a_time_and_all_in_the_end() -> None:
    with rw.distribute.MirroredStrategy(["CPU:0"]).scope():
        every: dict[str, Variable] = {
            f"w{i:02}": rw.Variable(np.zeros(2, np.float32), name=f"w{i:02}") for i in range(20)
        }
        trained = sorted(every)
        every["number"] = rw.Variable(0.0, name="number")
        every["counts"] = rw.Variable(np.zeros(2, np.int64), name="counts")
        every["average"] = rw.Variable(np.zeros(2, np.float32), name="average", trainable=False)
    looks = [equal_copies.chosen(every, step) for step in range(5)]
    assert all(len(look) == equal_copies.COUNT for look in looks)
    assert sorted({name for look in looks for name in look}) == trained
    assert equal_copies.chosen({}, 3) == []
