"""What can be done with a dataset: the methods of tf.data.Dataset, with its semantics.

Elements, cardinalities and specs were compared with those of TensorFlow 2.21.
"""

from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.rows import row
from ropewalk.distribute.data import (
    SHARD_HINT,
    ArraySpec,
    AutoShardPolicy,
    Dataset,
    Options,
    as_dataset,
    from_arrays,
    from_files,
)

INT = np.dtype(np.int64)
NUMBER = ArraySpec((), INT)
INFINITE, UNKNOWN = -1, -2
X = np.arange(6)
Range = Dataset.range


def pairs() -> Dataset:
    return Dataset.from_tensor_slices((np.arange(3), np.arange(3) * 10))


def plain(element: Any) -> Any:
    """An element as Python's own values."""
    if isinstance(element, tuple):
        return tuple(map(plain, element))
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    return np.asarray(element).tolist()


def with_policy(dataset: Dataset, policy: AutoShardPolicy) -> Dataset:
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def vector(size: int | None) -> ArraySpec:
    return ArraySpec((size,), INT)


CASES: dict[str, tuple[Dataset, list[Any], int, Any]] = {
    "take": (Range(5).take(2), [0, 1], 2, NUMBER),
    "take-all": (Range(3).take(-1), [0, 1, 2], 3, NUMBER),
    "take-none": (Range(3).take(0), [], 0, NUMBER),
    "take-too-many": (Range(3).take(9), [0, 1, 2], 3, NUMBER),
    "skip": (Range(5).skip(2), [2, 3, 4], 3, NUMBER),
    "skip-all": (Range(3).skip(-1), [], 0, NUMBER),
    "skip-too-many": (Range(3).skip(9), [], 0, NUMBER),
    "shard": (Range(7).shard(3, 1), [1, 4], 2, NUMBER),
    "repeat": (Range(2).repeat(3), [0, 1] * 3, 6, NUMBER),
    "repeat-never": (Range(2).repeat(0), [], 0, NUMBER),
    "repeat-nothing": (Range(0).repeat(), [], 0, NUMBER),
    "repeat-taken": (Range(3).repeat().take(4), [0, 1, 2, 0], 4, NUMBER),
    "batch": (Range(5).batch(2), [[0, 1], [2, 3], [4]], 3, vector(None)),
    "batch-dropped": (Range(5).batch(2, True), [[0, 1], [2, 3]], 2, vector(2)),
    "batch-of-rows": (
        pairs().batch(2, drop_remainder=False, num_parallel_calls=4),
        [([0, 1], [0, 10]), ([2], [20])],
        2,
        (vector(None), vector(None)),
    ),
    "batch-of-few-rows": (pairs().batch(4, drop_remainder=True), [], 0, (vector(4), vector(4))),
    "unbatch": (Range(5).batch(2).unbatch(), [0, 1, 2, 3, 4], UNKNOWN, NUMBER),
    "map": (Range(3).map(lambda x: x * 10), [0, 10, 20], 3, NUMBER),
    "map-parts": (pairs().map(lambda x, y: {"s": x + y}), [{"s": 11 * i} for i in range(3)], 3,
                  {"s": NUMBER}),
    "map-options": (Range(2).map(lambda x: (x, x), num_parallel_calls=-1, deterministic=False),
                    [(0, 0), (1, 1)], 2, (NUMBER, NUMBER)),
    "filter": (Range(5).filter(lambda x: x % 2 == 0), [0, 2, 4], UNKNOWN, NUMBER),
    "filter-parts": (pairs().filter(lambda _, y: y > 5), [(1, 10), (2, 20)], UNKNOWN,
                     (NUMBER, NUMBER)),
    "enumerate": (Range(10, 12).enumerate(5), [(5, 10), (6, 11)], 2, (NUMBER, NUMBER)),
    "enumerate-batches": (Range(3).batch(2).enumerate(), [(0, [0, 1]), (1, [2])], 2,
                          (NUMBER, vector(None))),
    "concatenate": (Range(2).concatenate(Range(5, 7)), [0, 1, 5, 6], 4, NUMBER),
    "concatenate-nothing": (Range(0).batch(2).concatenate(Range(2).batch(2)), [[0, 1]], 1,
                            vector(None)),
    "zip": (Dataset.zip(Range(3), Range(5, 7)), [(0, 5), (1, 6)], 2, (NUMBER, NUMBER)),
    "zip-structure": (
        Dataset.zip({"a": Range(2), "b": (Range(3), Range(4).batch(2))}),
        [{"a": 0, "b": (0, [0, 1])}, {"a": 1, "b": (1, [2, 3])}],
        2,
        {"a": NUMBER, "b": (NUMBER, vector(None))},
    ),
    "zip-tuple": (Dataset.zip((Range(1), Range(2))), [(0, 0)], 1, (NUMBER, NUMBER)),
    "zip-endless": (Dataset.zip(datasets=(Range(2), Range(1).repeat())), [(0, 0), (1, 0)], 2,
                    (NUMBER, NUMBER)),
    "zip-unknown": (Dataset.zip(Range(2), Range(4).filter(bool)), [(0, 1), (1, 2)], UNKNOWN,
                    (NUMBER, NUMBER)),
    "cache": (Range(3).cache(), [0, 1, 2], 3, NUMBER),
    "prefetch": (Range(3).prefetch(1), [0, 1, 2], 3, NUMBER),
    "shuffle-of-one": (Range(3).shuffle(1), [0, 1, 2], 3, NUMBER),
    "apply": (Range(3).apply(lambda data: data.batch(3)), [[0, 1, 2]], 1, vector(None)),
}  # fmt: skip


@pytest.mark.parametrize(("data", "elements", "size", "spec"), CASES.values(), ids=list(CASES))
def test_elements_cardinality_and_spec_are_tensorflows(
    data: Dataset, elements: list[Any], size: int, spec: Any
) -> None:
    for _ in range(2):
        assert [plain(element) for element in data] == elements
    assert data.cardinality() == size
    assert data.element_spec == spec
    for start in range(len(elements) + 2):
        assert [plain(element) for element in data.skip(start)] == elements[start:]
    if size >= 0:
        assert len(data) == size == len(list(data.batch(1)))


@pytest.mark.parametrize(
    ("data", "size", "message"),
    [
        (Range(3).repeat(), INFINITE, "infinite"),
        (Range(3).repeat().repeat(2), INFINITE, "infinite"),
        (Range(3).repeat().batch(2).shard(2, 0).skip(5), INFINITE, "infinite"),
        (Range(3).concatenate(Range(3).repeat()), INFINITE, "infinite"),
        (Dataset.zip(Range(3).repeat(), Range(2).repeat()), INFINITE, "infinite"),
        (Range(3).filter(bool).repeat(), INFINITE, "infinite"),
        (from_arrays(X, 2, epochs=None).map(len).unbatch(), INFINITE, "infinite"),
        (Range(3).filter(bool).repeat(2), UNKNOWN, "unknown"),
        (Range(3).filter(bool).concatenate(Range(3)), UNKNOWN, "unknown"),
        (Range(3).filter(bool).batch(2).take(1), UNKNOWN, "unknown"),
        (as_dataset(iter([1])).repeat(), UNKNOWN, "unknown"),
        (from_files("ab", lambda _: [1]), UNKNOWN, "unknown"),
    ],
    ids=[
        "repeat", "twice", "derived", "concatenated", "zipped", "filtered", "arrays",
        "filtered-twice", "filtered-and-more", "taken", "generator", "files",
    ],
)  # fmt: skip
def test_what_never_ends_or_is_not_known_has_no_length(
    data: Dataset, size: int, message: str
) -> None:
    assert data.cardinality() == size
    with pytest.raises(TypeError, match=message):
        len(data)
    assert data, "it is something all the same"


@pytest.mark.parametrize("times", [None, -1, -3], ids=str)
def test_repeat_without_a_count_goes_on_for_ever(times: int | None) -> None:
    assert list(islice(Range(2).repeat(times), 5)) == [0, 1, 0, 1, 0]
    assert list(islice(Range(2).repeat(times).skip(101), 3)) == [1, 0, 1]


@pytest.mark.timeout(10)
def test_nothing_again_and_again_is_nothing() -> None:
    assert list(as_dataset(lambda: iter(())).repeat()) == []


@given(size=st.integers(0, 30), shards=st.integers(1, 5))
def test_shards_lose_nothing_and_share_nothing(size: int, shards: int) -> None:
    parts = [list(Range(size).shard(shards, i)) for i in range(shards)]
    assert sorted(chain.from_iterable(parts)) == list(range(size))
    assert [Range(size).shard(shards, i).cardinality() for i in range(shards)] == [
        len(part) for part in parts
    ]


@pytest.mark.parametrize(("shards", "index"), [(2, 2), (2, -1), (0, 0), (-1, 0), (3, -1)], ids=str)
def test_a_shard_past_the_last_is_refused(shards: int, index: int) -> None:
    with pytest.raises(ValueError, match=rf"index must be in .* got {index} of {shards}"):
        Range(3).shard(shards, index)


@pytest.mark.parametrize("as_rows", [True, False], ids=["rows", "elements"])
def test_rows_of_arrays_go_through_the_same_steps_as_other_elements(as_rows: bool) -> None:
    """They are gathered at once, instead of taken out and stacked one by one."""
    rows = np.arange(40).reshape(20, 2)
    data = Dataset.from_tensor_slices({"x": rows}) if as_rows else (
        as_dataset([{"x": row} for row in rows])
    )  # fmt: skip
    chained = data.shard(2, 1).shuffle(4, seed=1).skip(1).take(6).cache().repeat(2).prefetch(1)
    found = [batch["x"].tolist() for batch in chained.batch(5)]
    assert list(map(len, found)) == [5, 5, 2]
    seen = list(chain.from_iterable(found))
    assert seen[:6] == seen[6:], "the cache keeps the order"
    assert found == [batch["x"].tolist() for batch in (
        as_dataset([{"x": row} for row in rows]).shard(2, 1).shuffle(4, seed=1).skip(1).take(6)
        .cache().repeat(2).batch(5)
    )]  # fmt: skip


def test_examples_that_differ_in_shape_do_not_stack() -> None:
    with pytest.raises(ValueError, match="same shape"):
        list(as_dataset([np.ones(2), np.ones(3)]).batch(2))


def test_map_is_called_when_an_element_is_asked_for_and_not_for_those_skipped() -> None:
    called: list[int] = []

    def tenfold(x: int) -> int:
        called.append(x)
        return x * 10

    elements = iter(Range(4).map(tenfold))
    assert not called
    assert next(elements) == 0
    assert called == [0]
    assert list(elements) == [10, 20, 30]
    called.clear()
    assert list(Range(4).map(tenfold).repeat(2).skip(6)) == [20, 30]
    assert called == [2, 3]


def test_a_cache_goes_through_its_source_once_whole() -> None:
    calls: list[int] = []

    def note(x: int) -> int:
        calls.append(x)
        return x

    data = Range(4).map(note).cache()
    next(iter(data))
    assert list(data) == list(data.repeat(2).skip(4)) == [0, 1, 2, 3]
    assert calls == [0, 0, 1, 2, 3], "a pass that was broken off is not kept"
    with pytest.raises(ValueError, match=r"in memory only.*'/tmp/x'"):
        data.cache("/tmp/x")  # noqa: S108


@pytest.mark.parametrize("wrong", [3, (Range(2), [1, 2])], ids=["number", "inside"])
def test_zip_is_of_datasets(wrong: Any) -> None:
    with pytest.raises(TypeError, match="zip takes nested datasets, got a int"):
        Dataset.zip(wrong)


def test_a_numpy_iterator_gives_arrays_and_scalars() -> None:
    data = Dataset.zip(Range(2), as_dataset([[1.5, 2.5], [3.5, 4.5]]).map(np.asarray))
    found = list(data.as_numpy_iterator())
    assert [type(x) for x, _ in found] == [np.int64, np.int64]
    assert [y.tolist() for _, y in found] == [[1.5, 2.5], [3.5, 4.5]]


def test_reduce_folds_over_all_elements() -> None:
    assert Range(5).reduce(100, lambda state, x: state + x) == 110
    assert pairs().reduce(0, lambda state, pair: state + pair[1]) == 30


def test_what_was_derived_from_is_not_changed() -> None:
    data = Range(3)
    data.batch(2), data.repeat(), data.shard(2, 1), with_policy(data, AutoShardPolicy.OFF)
    assert list(data) == [0, 1, 2]
    assert data.options().experimental_distribute.auto_shard_policy is AutoShardPolicy.AUTO


@pytest.mark.parametrize(
    "make",
    [
        lambda: from_arrays(X, 2, shuffle=False),
        lambda: from_arrays(X, 4, seed=3, epochs=3),
        lambda: from_arrays(X, 4, seed=3, epochs=3, drop_remainder=True),
        lambda: from_arrays(X, 4, seed=3, epochs=3).map(lambda x: x + 1),
        lambda: Range(20).shuffle(20).shard(3, 1),
        lambda: Range(20).shuffle(5).batch(3).repeat(2),
        lambda: pairs().shuffle(3).repeat(3).batch(2),
        lambda: pairs().shuffle(3).cache().repeat(3),
        lambda: as_dataset(lambda: iter(range(3))).repeat(3).enumerate(),
        lambda: Dataset.zip(Range(9).shuffle(9), Range(9).skip(2)),
        lambda: Range(4).shuffle(4).concatenate(Range(4).shuffle(4)),
        lambda: Range(9).shuffle(4).batch(2).prefetch(1).unbatch().filter(lambda x: x % 2),
        lambda: from_files("abc", lambda name: [ord(name), 1]),
        lambda: as_dataset(X.reshape(3, 2)),
    ],
    ids=["arrays", "shuffled", "drop-remainder", "mapped", "sharded", "batched", "rows", "cached",
         "enumerated", "zipped", "concatenated", "unbatched", "files", "as-dataset"],
)  # fmt: skip
def test_it_can_be_gone_through_from_an_element_on(make: Callable[[], Dataset]) -> None:
    for start in [0, 1, 3, 4, 7, 50]:
        with row(start):
            elements = [plain(element) for element in make()]
            assert [plain(element) for element in make().skip(start)] == elements[start:]


# -- options and hints ---------------------------------------------------------------------------


def test_options_hold_for_what_is_derived_afterwards() -> None:
    data = with_policy(from_arrays(X, 2), AutoShardPolicy.FILE)
    derived = data.map(len).repeat().shard(2, 0).batch(2).shuffle(2).cache()
    policies = [d.options().experimental_distribute.auto_shard_policy for d in (data, derived)]
    assert policies == [AutoShardPolicy.FILE] * 2
    off = with_policy(derived, AutoShardPolicy.OFF).options()
    assert off.experimental_distribute.auto_shard_policy is AutoShardPolicy.OFF


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="17"):
        with_policy(Range(1), 17)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            Range(8).shard(SHARD_HINT, SHARD_HINT).map(lambda x: x * 10).batch(2),
            [[[0, 20], [40, 60]], [[10, 30], [50, 70]]],
        ),
        (Dataset.zip(Range(2), Range(4).shard(SHARD_HINT, SHARD_HINT)), [[(0, 0), (1, 2)],
                                                                         [(0, 1), (1, 3)]]),
        (Range(4), [[0, 1, 2, 3]] * 2),
        (Range(4).shard(2, 0), [[0, 2]] * 2),
    ],
    ids=["derived", "zipped", "no-hint", "other-shard"],
)  # fmt: skip
def test_a_hint_is_resolved_where_it_stands_and_nothing_else(data: Dataset, expected: Any) -> None:
    found = [Dataset(data.node.resolve_hint(2, worker)) for worker in range(2)]
    assert [[plain(element) for element in mine] for mine in found] == expected


def test_a_hint_that_nobody_resolves_is_an_error_that_names_the_policy() -> None:
    with pytest.raises(ValueError, match=r"AutoShardPolicy\.HINT.*with_options"):
        list(Range(4).shard(SHARD_HINT, SHARD_HINT))
