"""Sharded variables and partitioners do as TensorFlow's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.parity import SCATTERS, WRITES, Both, Ropewalk, Same, Side, alike, differ

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own are not ours to mend
]


# -- ShardedVariable -----------------------------------------------------------------------------
def sharded(side: Side, *rows: int) -> Any:
    """Shards of so many rows of two columns; 0, 1, 2, ... throughout."""
    shards, start = [], 0
    for count in rows or (3, 2):
        value = np.arange(start, start + 2 * count, dtype=np.float32).reshape(count, 2)
        shards.append(side.root.Variable(value))
        start += 2 * count
    return side.sharded_variable(shards, name="table")


def shards_of(side: Side, v: Any) -> list[Any]:
    return [side.plain(shard.read_value()) for shard in v.variables]


INDICES = [
    1, -1, 5, -6, slice(1, 4), slice(0, 5, 2), slice(None, None, -1), slice(4, 1, -2),
    slice(0, 4, 0), slice(2, 2), slice(-100, 100), Ellipsis, None, (1, 0), (slice(1, 4), 1),
    (Ellipsis, 1), (slice(None), None), (slice(None), slice(None, None, -1)),
    (slice(None, None, -2), 0), (-1, slice(0, 1)),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize("rows", [(3, 2), (1, 1, 3), (5,)], ids=str)
@alike()
def test_sharded_variables_are_indexed_alike(side: Side, rows: tuple[int, ...], index: Any) -> Any:
    return sharded(side, *rows)[index]


@pytest.mark.parametrize(
    "mask", [np.arange(5) % 2 == 0, np.arange(10).reshape(5, 2) % 3 == 0], ids=["rows", "elements"]
)
@alike()
def test_sharded_variables_are_masked_alike(side: Side, mask: Any) -> Any:
    given = mask if isinstance(side, Ropewalk) else side.root.constant(mask)
    return sharded(side)[given]


@pytest.mark.parametrize("index", [(None, 1), (Ellipsis, slice(1, 3), 0)], ids=repr)
def test_an_index_that_begins_with_a_new_axis_or_the_rest_is_as_numpys(
    both: Both, index: Any
) -> None:
    """TensorFlow applies it to every shard, and puts the parts together."""
    theirs, ours = both(lambda side: sharded(side)[index])
    wanted = np.arange(10, dtype=np.float32).reshape(5, 2)[index]
    np.testing.assert_array_equal(ours["value"], wanted)
    assert theirs["value"].tolist() != wanted.tolist()


@pytest.mark.parametrize("index", [1.5, "a"], ids=repr)
@differ(theirs="TypeError", ours="IndexError")
def test_what_is_no_index_is_numpys_index_error(side: Side, index: Any) -> Any:
    """TensorFlow raises a TypeError."""
    return sharded(side)[index]


@pytest.mark.parametrize("rows", [5, 4], ids=["fits", "does-not-fit"])
@pytest.mark.parametrize("method", WRITES)
@alike()
def test_sharded_variables_are_assigned_alike(side: Side, method: str, rows: int) -> Any:
    v = sharded(side)
    getattr(v, method)(side.array(np.arange(2 * rows).reshape(rows, 2)))
    return shards_of(side, v)


@pytest.mark.parametrize("kind", SCATTERS)
@alike()
def test_rows_of_sharded_variables_are_scattered_alike(side: Side, kind: str) -> Any:
    v = sharded(side)
    repeated = 3 if kind == "update" else 4  # which of two updates of a row counts is not promised
    rows = side.slices([[2.0, 2.0], [3.0, 3.0], [4.0, 4.0]], [4, 0, repeated], 5)
    getattr(v, f"scatter_{kind}")(rows)
    return shards_of(side, v)


@alike()
def test_sharded_variables_are_described_and_computed_with_alike(side: Side) -> Any:
    v = sharded(side)
    return [
        list(v.shape), np.dtype(getattr(v.dtype, "as_numpy_dtype", v.dtype)).name, len(list(v)),
        v.name, v + 1.0, 2.0 * v, v * v, -v, v / 2.0, v @ np.ones((2, 1), np.float32),
    ]  # fmt: skip


@alike()
def test_rows_are_looked_up_alike(side: Side) -> Any:
    return side.lookup(sharded(side), side.array([[4, 0], [3, 4]], "int64"))


@pytest.mark.parametrize("indices", [[9], [-1]], ids=repr)
@alike(gives="ValueError")
def test_a_row_that_is_not_there_is_a_value_error(side: Side, indices: list[int]) -> Any:
    return sharded(side).sparse_read(side.array(indices, "int64"))


@differ(theirs=[[0, 1], [8, 9], [6, 7]], ours=[[8, 9], [0, 1], [6, 7]])
def test_sparse_read_keeps_the_order_asked_for(side: Side) -> Any:
    """TensorFlow gives the rows grouped by shard."""
    return sharded(side).sparse_read(side.array([4, 0, 3], "int64"))


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        pytest.param(lambda _: [], "TypeError", id="none"),
        pytest.param(lambda _: [1.0], "TypeError", id="a-number"),
        pytest.param(lambda side: side.root.Variable([1.0]), "TypeError", id="no-list"),
        pytest.param(
            lambda side: [side.root.Variable(np.ones(2, d)) for d in ("float32", "float64")],
            "ValueError",
            id="dtypes",
        ),
        pytest.param(
            lambda side: [side.root.Variable(np.ones((2, n))) for n in (1, 2)],
            "ValueError",
            id="shapes",
        ),
        pytest.param(
            lambda side: [side.root.Variable(np.ones(s)) for s in ((2, 1), (2,))],
            "ValueError",
            id="ranks",
        ),
    ],
)
def test_what_is_no_list_of_shards_is_refused_alike(
    same: Same, shards: Callable[[Side], Any], expected: str
) -> None:
    assert same(lambda side: side.sharded_variable(shards(side))) == expected


# -- partitioners --------------------------------------------------------------------------------
PARTITIONERS: list[Any] = [
    ("FixedShardsPartitioner", {"num_shards": 1}),
    ("FixedShardsPartitioner", {"num_shards": 3}),
    ("FixedShardsPartitioner", {"num_shards": 1000}),
    ("MinSizePartitioner", {}),
    ("MinSizePartitioner", {"min_shard_bytes": 64, "max_shards": 4}),
    ("MinSizePartitioner", {"min_shard_bytes": 1, "max_shards": 1000}),
    ("MaxSizePartitioner", {"max_shard_bytes": 1}),
    ("MaxSizePartitioner", {"max_shard_bytes": 64}),
    ("MaxSizePartitioner", {"max_shard_bytes": 64, "max_shards": 3}),
    ("MaxSizePartitioner", {"max_shard_bytes": 1 << 20, "max_shards": None}),
]
SHAPES = [(1,), (10,), (100,), (7, 3), (100, 16), (3, 1000), (2, 3, 4), (1000, 1)]


@pytest.mark.parametrize(("name", "arguments"), PARTITIONERS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
@alike()
def test_partitioners_cut_alike(
    side: Side, dtype: str, name: str, arguments: dict[str, Any]
) -> Any:
    partitioner = getattr(side.distribute.experimental.partitioners, name)(**arguments)
    cuts = [
        list(partitioner(*side.shape(shape, dtype), axis))
        for shape in SHAPES
        for axis in range(len(shape))
    ]
    return [
        cuts,
        isinstance(partitioner, side.distribute.experimental.partitioners.Partitioner),
    ]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("MinSizePartitioner", {"min_shard_bytes": 0}),
        ("MinSizePartitioner", {"max_shards": 0}),
        ("MinSizePartitioner", {"bytes_per_string": 0}),
        ("MaxSizePartitioner", {"max_shard_bytes": 0}),
        ("MaxSizePartitioner", {"max_shard_bytes": 8, "max_shards": -1}),
        ("MaxSizePartitioner", {"max_shard_bytes": 8, "max_shards": 0}),
        ("MaxSizePartitioner", {"max_shard_bytes": 8, "bytes_per_string": 0}),
    ],
    ids=str,
)
@alike()
def test_partitioners_refuse_alike(side: Side, name: str, arguments: dict[str, Any]) -> Any:
    getattr(side.distribute.experimental.partitioners, name)(**arguments)


@pytest.mark.parametrize("shards", [0, -1])
def test_no_shards_at_all_are_refused_at_once(both: Both, shards: int) -> None:
    """TensorFlow makes the partitioner, and fails on the first variable."""

    def program(side: Side) -> Any:
        make = side.distribute.experimental.partitioners.FixedShardsPartitioner
        return list(make(shards)(*side.shape((5,), "float32")))

    theirs, ours = both(program)
    assert (theirs["value"], ours["error"]) == ([shards], "ValueError")
