"""Partitioners: the same counts as ``tf.distribute.experimental.partitioners``."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.cluster.placement import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
    PartitionFunction,
    parts_of,
)
from ropewalk.core.rules.definitions import VariableDefinition, cut

FLOAT32 = np.dtype(np.float32)
shapes = st.lists(st.integers(1, 5000), min_size=1, max_size=3).map(tuple)
sizes = st.integers(1, 1 << 20)


@pytest.mark.parametrize(
    ("partitioner", "shape", "parts"),
    [
        pytest.param(FixedShardsPartitioner(2), (10, 3), [2, 1], id="fixed"),
        pytest.param(FixedShardsPartitioner(5), (3, 4), [3, 1], id="fixed, fewer rows"),
        pytest.param(FixedShardsPartitioner(5), (0, 4), [1, 1], id="fixed, no rows"),
        # 1000 x 4 bytes.
        pytest.param(MinSizePartitioner(4, 100), (1000,), [100], id="min size, capped"),
        pytest.param(MinSizePartitioner(1000, 100), (1000,), [4], id="min size, even"),
        pytest.param(MinSizePartitioner(999, 100), (1000,), [5], id="min size rounds up"),
        pytest.param(MinSizePartitioner(4), (1000,), [1], id="min size never splits by default"),
        pytest.param(MinSizePartitioner(max_shards=9), (1000,), [1], id="min size is 256 KiB"),
        pytest.param(MinSizePartitioner(1, 100), (3, 8), [3, 1], id="min size, fewer rows"),
        pytest.param(MinSizePartitioner(1, 100), (0, 8), [1, 1], id="min size, no rows"),
        # Rows of 16 bytes: 100 of them.
        pytest.param(MaxSizePartitioner(1600), (100, 4), [1, 1], id="max size, all fits"),
        pytest.param(MaxSizePartitioner(1599), (100, 4), [2, 1], id="max size, one too many"),
        pytest.param(MaxSizePartitioner(100), (100, 4), [17, 1], id="max size, 6 rows each"),
        pytest.param(MaxSizePartitioner(1), (100, 4), [100, 1], id="max size below one row"),
        pytest.param(MaxSizePartitioner(1, 7), (100, 4), [7, 1], id="max size, capped"),
        pytest.param(MaxSizePartitioner(1, 0), (100, 4), [100, 1], id="a cap of 0 is none"),
        pytest.param(MaxSizePartitioner(1), (0, 4), [1, 1], id="max size, no rows"),
        pytest.param(MaxSizePartitioner(1), (4, 0), [1, 1], id="max size, no bytes"),
    ],
)
def test_counts_are_those_of_tensorflow(
    partitioner: PartitionFunction, shape: tuple[int, ...], parts: list[int]
) -> None:
    assert partitioner(shape, FLOAT32) == parts


@given(shape=shapes, wanted=st.integers(1, 10_000))
def test_fixed_is_the_number_asked_for_or_one_part_per_row(
    shape: tuple[int, ...], wanted: int
) -> None:
    parts = FixedShardsPartitioner(wanted)(shape, FLOAT32)
    assert parts == [min(wanted, shape[0])] + [1] * (len(shape) - 1)


@given(shape=shapes, least=sizes, most=st.integers(1, 500))
def test_min_size_is_tensorflows_formula(shape: tuple[int, ...], least: int, most: int) -> None:
    parts = MinSizePartitioner(least, most)(shape, FLOAT32)[0]
    assert parts == max(1, min(shape[0], most, -(-math.prod(shape) * 4 // least)))


@settings(deadline=None)  # up to 5000 shards
@given(shape=shapes, largest=sizes)
def test_max_size_keeps_every_shard_below_it_or_at_one_row(
    shape: tuple[int, ...], largest: int
) -> None:
    parts = MaxSizePartitioner(largest)(shape, FLOAT32)[0]
    row = math.prod(shape[1:]) * 4
    shards = cut(VariableDefinition("w", shape, FLOAT32), parts)
    assert max(shard.num_bytes for shard in shards) <= max(largest, row)
    # And as few as that allows, since rows are not cut.
    assert parts == math.ceil(shape[0] / max(1, largest // row))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_another_axis_may_be_cut(axis: int) -> None:
    expected = [1, 1, 1]
    expected[axis] = 2
    shape = (4, 4, 4)
    assert FixedShardsPartitioner(2)(shape, FLOAT32, axis) == expected
    assert MinSizePartitioner(128, 9)(shape, FLOAT32, axis) == expected
    assert MaxSizePartitioner(128)(shape, FLOAT32, axis) == expected


@pytest.mark.parametrize("dtype", [np.float64, "float64", np.dtype("f8")], ids=repr)
def test_bytes_are_those_of_the_dtype(dtype: object) -> None:
    assert MaxSizePartitioner(8 * 50)((100,), dtype) == [2]


class _TensorFlowString:
    name = "string"


def _name(dtype: object) -> str:
    return str(getattr(dtype, "name", dtype))


@pytest.mark.parametrize(
    "dtype", [str, np.str_, bytes, object, "string", np.dtype("U7"), _TensorFlowString()], ids=_name
)
def test_strings_count_as_they_are_said_to(dtype: object) -> None:
    assert MinSizePartitioner(64, max_shards=100)((32,), dtype) == [8]
    assert MinSizePartitioner(64, max_shards=100, bytes_per_string=32)((32,), dtype) == [16]
    assert MaxSizePartitioner(64)((32,), dtype) == [8]
    assert MaxSizePartitioner(64, bytes_per_string=32)((32,), dtype) == [16]


PARTITIONERS = [FixedShardsPartitioner(2), MinSizePartitioner(), MaxSizePartitioner(8)]


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize(("shape", "axis"), [((3, 4), 2), ((3, 4), -1), ((), 0)], ids=repr)
def test_an_axis_the_variable_has_not_is_refused(
    partitioner: FixedShardsPartitioner, shape: tuple[int, ...], axis: int
) -> None:
    with pytest.raises(ValueError, match=f"axis {axis} is out of range"):
        partitioner(shape, FLOAT32, axis)


@pytest.mark.parametrize(
    ("cls", "arguments", "name"),
    [
        (FixedShardsPartitioner, {"num_shards": 0}, "num_shards"),
        (MinSizePartitioner, {"min_shard_bytes": 0}, "min_shard_bytes"),
        (MinSizePartitioner, {"max_shards": 0}, "max_shards"),
        (MinSizePartitioner, {"bytes_per_string": 0}, "bytes_per_string"),
        (MaxSizePartitioner, {"max_shard_bytes": 0}, "max_shard_bytes"),
        (MaxSizePartitioner, {"max_shard_bytes": 1, "max_shards": -1}, "max_shards"),
        (MaxSizePartitioner, {"max_shard_bytes": 1, "bytes_per_string": -1}, "bytes_per_string"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_number_that_is_not_positive_is_named(
    cls: type[object], arguments: dict[str, int], name: str
) -> None:
    with pytest.raises(ValueError, match=f"Argument `{name}` must be positive"):
        cls(**arguments)


def test_a_partitioner_of_ones_own_is_a_subclass() -> None:
    class Halves(Partitioner):
        def __call__(self, shape: Sequence[int], dtype: object, axis: int = 0) -> list[int]:
            return [2 if i == axis else 1 for i in range(len(shape))]

    assert parts_of(Halves(), (10, 3), FLOAT32) == 2
    assert isinstance(FixedShardsPartitioner(2), Partitioner)
    with pytest.raises(NotImplementedError, match="must define __call__"):
        Partitioner()((1,), FLOAT32)


@pytest.mark.parametrize(
    ("partitioner", "shape", "parts"),
    [
        pytest.param(None, (10,), 1, id="none given"),
        pytest.param(FixedShardsPartitioner(3), (), 1, id="a scalar is never asked"),
        pytest.param(FixedShardsPartitioner(3), (10,), 3, id="as it says"),
        pytest.param(lambda _shape, _dtype: (99, 1), (10, 2), 10, id="at most one per row"),
        pytest.param(lambda _shape, _dtype: [5], (0,), 1, id="no rows"),
    ],
)
def test_a_variable_is_cut_as_its_partitioner_says(
    partitioner: PartitionFunction | None, shape: tuple[int, ...], parts: int
) -> None:
    assert parts_of(partitioner, shape, FLOAT32) == parts


@pytest.mark.parametrize("result", [[0, 1], [1, 2], [], 3, None, "ab", [-1, 1]], ids=repr)
def test_an_answer_that_cuts_no_first_axis_is_refused(result: object) -> None:
    with pytest.raises(ValueError, match="must return a list/tuple whose elements are 1 besides"):
        parts_of(lambda _shape, _dtype: result, (10, 2), FLOAT32)  # type: ignore[arg-type, return-value]
