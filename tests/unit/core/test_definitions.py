"""Variables, and how they are cut into shards."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.arrays.dtypes import BFLOAT16
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition, cut

FLOAT32 = np.dtype(np.float32)


def _variable(*shape: int) -> VariableDefinition:
    return VariableDefinition("w", shape, FLOAT32)


def test_ten_rows_in_three_parts_are_four_three_three() -> None:
    parts = cut(_variable(10, 2), 3)
    assert [part.rows for part in parts] == [4, 3, 3]
    assert [part.row_offset for part in parts] == [0, 4, 7]
    assert [part.label for part in parts] == ["w/part_0", "w/part_1", "w/part_2"]
    assert [part.key for part in parts] == [("w", 0), ("w", 1), ("w", 2)]
    assert [part.shape for part in parts] == [(4, 2), (3, 2), (3, 2)]


@given(rows=st.integers(0, 1000), parts=st.integers(-3, 1200))
def test_parts_cover_every_row_once_and_differ_by_at_most_one_larger_first(
    rows: int, parts: int
) -> None:
    shards = cut(_variable(rows, 2), parts)
    assert len(shards) == max(1, min(parts, rows))
    end = 0
    for number, shard in enumerate(shards):
        assert (shard.part, shard.num_parts, shard.row_offset) == (number, len(shards), end)
        end += shard.rows
    assert end == rows
    sizes = [shard.rows for shard in shards]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@given(shape=st.lists(st.integers(0, 8), max_size=3).map(tuple), parts=st.integers(1, 10))
def test_shards_put_in_their_places_are_the_whole(shape: tuple[int, ...], parts: int) -> None:
    whole = np.random.default_rng(0).random(shape, np.float32)
    whole = np.asarray(whole)
    rows = whole if shape else whole.reshape(1)  # a scalar is its own row
    pieces = [
        rows[shard.row_offset : shard.row_offset + shard.rows].reshape(shard.shape)
        for shard in cut(_variable(*shape), parts)
    ]
    np.testing.assert_array_equal(np.concatenate(pieces) if shape else pieces[0], whole)


def test_a_scalar_is_never_cut() -> None:
    (only,) = cut(_variable(), 5)
    assert (only.rows, only.shape, only.size, only.num_bytes) == (1, (), 1, 4)


def test_a_variable_in_one_part_keeps_its_plain_name() -> None:
    (only,) = cut(_variable(10), 1)
    assert only.label == "w"


def test_a_shard_is_the_whole_variable_unless_told_otherwise() -> None:
    shard = ShardDefinition(_variable(7, 3))
    assert (shard.row_offset, shard.rows, shard.shape) == (0, 7, (7, 3))
    assert (shard.size, shard.num_bytes) == (21, 84)


def test_shape_and_dtype_may_be_given_as_users_do() -> None:
    shape = tuple(np.array([2, 3]))
    variable = VariableDefinition("w", shape, "bfloat16")  # type: ignore[arg-type]
    assert variable.shape == (2, 3)
    assert all(type(extent) is int for extent in variable.shape)
    assert variable.dtype == BFLOAT16


@pytest.mark.parametrize(
    "name", ["", "a\nb", "a\x00b", "x" * 513], ids=["empty", "newline", "nul", "too long"]
)
def test_a_name_nobody_could_read_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="printable name of 1 to 512 characters"):
        VariableDefinition(name, (1,), FLOAT32)


def test_a_negative_extent_is_refused_and_names_the_variable() -> None:
    with pytest.raises(ValueError, match=r"'w': negative extent in shape \(2, -1\)"):
        _variable(2, -1)


def test_a_dtype_no_variable_has_is_refused() -> None:
    with pytest.raises(TypeError, match="is no dtype of a variable"):
        VariableDefinition("w", (1,), np.dtype("complex64"))
