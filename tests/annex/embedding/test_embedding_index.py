"""The key index is a dict of int64, in segments that grow one by one; both ways are the same."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.ways import without_row_kernels
from ropewalk.annexes.embedding.kernels import KERNELS
from ropewalk.annexes.embedding.keyed.distinct import distinct, distinct_by_ps
from ropewalk.annexes.embedding.keyed.index import INT64, KeyIndex
from ropewalk.annexes.embedding.keyed.index_arrays import keyed_hash, mixed, ps_of_keys
from ropewalk.core.arrays.buffers import BufferPools
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import ShapeMismatchError
from ropewalk.engine.library import library

EXTREMES = [0, -1, 1, 2**63 - 1, -(2**63), 2**32, -(2**32)]
SECRET = np.array([7, 2**64 - 3], np.uint64)


@pytest.fixture(params=["kernel", "numpy"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways."""
    if request.param == "kernel":
        for name, dtypes in KERNELS.items():
            for dtype in dtypes:
                library.row_kernel(name, dtype)
    else:
        without_row_kernels(monkeypatch)
    return str(request.param)


def as_array(keys: list[int]) -> Array:
    return np.array(keys, np.int64)


def content(index: KeyIndex) -> dict[int, int]:
    return {
        key: number
        for keys, numbers in index.items()
        for key, number in zip(keys.tolist(), numbers.tolist(), strict=True)
    }


# -- against a dict --------------------------------------------------------------------------

some_keys = st.lists(
    st.one_of(st.integers(-40, 40), st.sampled_from(EXTREMES), st.integers(-(2**63), 2**63 - 1)),
    max_size=60,
)
steps = st.lists(st.tuples(st.sampled_from(["insert", "remove"]), some_keys), max_size=12)


@settings(max_examples=50, deadline=None)
@given(steps=steps, max_keys=st.sampled_from([1, 100, 70_000, 300_000]))
def test_any_history_gives_what_a_dict_has(
    steps: list[tuple[str, list[int]]], max_keys: int
) -> None:
    index = KeyIndex("t", max_keys, SECRET)
    expected: dict[int, int] = {}
    for number, (what, keys) in enumerate(steps):
        if what == "insert":
            numbers = np.arange(len(keys)) + 1000 * number
            index.insert(as_array(keys), numbers)
            expected |= dict(zip(keys, numbers.tolist(), strict=True))
        else:
            gone = list(dict.fromkeys(keys))
            had = index.remove(as_array(gone)).tolist()
            assert had == [expected.pop(key, -1) for key in gone]
        assert len(index) == len(expected)
        asked = [*EXTREMES, *keys, *range(-5, 5)]
        assert index.find(as_array(asked)).tolist() == [expected.get(key, -1) for key in asked]
    assert content(index) == expected


def test_a_long_history_of_many_segments(way: str) -> None:
    rounds, size = (40, 5000) if way == "kernel" else (6, 1500)
    rng = np.random.default_rng(3)
    index = KeyIndex("t", 500_000)
    expected: dict[int, int] = {}
    assert index._sizes.size == 8
    for _ in range(rounds):
        keys = rng.integers(-(2**20), 2**20, size)
        numbers = rng.integers(0, 2**62, size)
        index.insert(keys, numbers)
        expected |= dict(zip(keys.tolist(), numbers.tolist(), strict=True))
        gone = np.unique(rng.choice(keys, size // 3))
        assert index.remove(gone).tolist() == [expected.pop(key) for key in gone.tolist()]
    assert content(index) == expected
    assert len(index) == len(expected)


def test_an_empty_batch_does_nothing() -> None:
    index = KeyIndex("t", 100)
    none = as_array([])
    index.insert(none, none)
    assert index.find(none).size == index.remove(none).size == len(index) == 0


def test_both_ways_read_each_others_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 3000)
    index = KeyIndex("t", 200_000)
    index.insert(keys[:2000], np.arange(2000))
    without_row_kernels(monkeypatch)
    index.insert(keys[2000:], np.arange(2000, 3000))
    assert index.remove(keys[:500]).tolist() == list(range(500))
    monkeypatch.undo()
    assert index.find(keys).tolist() == [-1] * 500 + list(range(500, 3000))


# -- how it grows ----------------------------------------------------------------------------


def test_an_index_takes_at_most_forty_bytes_a_key_while_it_grows(way: str) -> None:
    most, batch = (2_000_000, 50_000) if way == "kernel" else (300_000, 50_000)
    index = KeyIndex("t", most)
    rng = np.random.default_rng(2)
    for start in range(0, most, batch):
        index.insert(rng.integers(-(2**63), 2**63 - 1, batch), np.arange(batch))
        if start > 200_000:
            assert index.num_bytes <= 40 * len(index)


def test_segments_grow_one_after_another_and_in_place() -> None:
    index = KeyIndex("t", 500_000)
    before, grown = index._addresses.tolist(), []
    rng = np.random.default_rng(2)
    for _ in range(200):
        sizes = index._sizes.copy()
        index.insert(rng.integers(-(2**63), 2**63 - 1, 1000), np.arange(1000))
        grown.append(int((index._sizes != sizes).sum()))
    assert max(grown[20:]) <= 2  # of eight
    assert index._addresses.tolist() == before


def test_more_keys_than_it_was_made_for_are_found_as_well() -> None:
    index = KeyIndex("t", 1)
    keys = np.arange(-5000, 5000)
    for part in np.array_split(keys, 20):
        index.insert(part, part + 5000)
    assert index.find(keys).tolist() == list(range(10_000))


# -- keys that were meant to collide -----------------------------------------------------------


def unmixed(words: Array) -> Array:
    """The keys whose ``mixed`` hash is this: what somebody would send who knows that hash."""
    words = words.astype(np.uint64).copy()
    for factor in (0x9CB4B2F8129337DB, 0x4F74430C22A54005):
        words ^= words >> np.uint64(33)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(33)
    return words.view(np.int64)


def hostile_keys(count: int) -> dict[str, Array]:
    step = np.arange(count)
    return {
        "ascending": step,
        "multiples of 2**32": step << 32,
        "equal low bits": step << 44,
        "equal high bits of the stated hash": unmixed(step.astype(np.uint64)),
        "equal low bits of the stated hash": unmixed(step.astype(np.uint64) << np.uint64(40)),
    }


def test_the_stated_hash_is_undone_by_its_inverse() -> None:
    words = np.random.default_rng(1).integers(0, 2**63, 100).astype(np.uint64)
    np.testing.assert_array_equal(mixed(unmixed(words)), words)


def test_keys_that_were_meant_to_collide_are_probed_as_random_ones() -> None:
    count = 20_000
    rng = np.random.default_rng(5)

    def longest_run(keys: Array) -> int:
        index = KeyIndex("t", count)
        index.insert(keys, np.arange(keys.size))
        used = index._entries(0)[:, 1] != 0
        free = np.flatnonzero(~used)
        return int(np.diff(free).max())

    usual = max(longest_run(rng.integers(-(2**63), 2**63 - 1, count)) for _ in range(5))
    for name, keys in hostile_keys(count).items():
        assert longest_run(keys) <= 2 * usual + 20, name


def test_keys_that_were_meant_to_collide_do_not_slow_it_by_two(way: str) -> None:
    if way == "numpy":
        pytest.skip("times the kernels")
    count = 200_000

    def cpu_s(keys: Array) -> float:
        took = []
        for _ in range(5):
            index = KeyIndex("t", count)
            began = time.thread_time()
            index.insert(keys, np.arange(count))
            index.find(keys)
            took.append(time.thread_time() - began)
        return min(took)

    usual = cpu_s(np.random.default_rng(5).integers(-(2**63), 2**63 - 1, count))
    for name, keys in hostile_keys(count).items():
        assert cpu_s(keys) <= 2 * usual + 0.002, name


def test_two_indexes_keep_the_same_keys_at_other_places() -> None:
    keys = np.arange(1000)
    first, second = KeyIndex("a", 1000), KeyIndex("b", 1000)
    for index in (first, second):
        index.insert(keys, keys)
    order = [np.concatenate([part for part, _ in each.items()]) for each in (first, second)]
    assert (order[0] != order[1]).any()
    assert content(first) == content(second)


# -- hashes ----------------------------------------------------------------------------------


def sip13(message: int, k0: int, k1: int) -> int:
    """SipHash-1-3 of eight bytes, as the paper has it."""
    full = 2**64 - 1
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D,
         k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]  # fmt: skip

    def rotate(x: int, bits: int) -> int:
        return ((x << bits) | (x >> (64 - bits))) & full

    def sip_round() -> None:
        v[0] = (v[0] + v[1]) & full
        v[2] = (v[2] + v[3]) & full
        v[1], v[3] = rotate(v[1], 13) ^ v[0], rotate(v[3], 16) ^ v[2]
        v[0] = rotate(v[0], 32)
        v[2] = (v[2] + v[1]) & full
        v[0] = (v[0] + v[3]) & full
        v[1], v[3] = rotate(v[1], 17) ^ v[2], rotate(v[3], 21) ^ v[0]
        v[2] = rotate(v[2], 32)

    for word in (message & full, 8 << 56):
        v[3] ^= word
        sip_round()
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        sip_round()
    return v[0] ^ v[1] ^ v[2] ^ v[3]


@given(key=st.integers(-(2**63), 2**63 - 1), words=st.tuples(*[st.integers(0, 2**64 - 1)] * 2))
def test_the_hash_is_siphash_1_3(key: int, words: tuple[int, int]) -> None:
    hashed = keyed_hash(as_array([key]), np.array(words, np.uint64))
    assert hashed.tolist() == [sip13(key, *words)]


def test_every_ps_has_its_part_of_the_keys_and_the_part_is_stated() -> None:
    keys = np.arange(-50_000, 50_000)
    for num_ps in (1, 2, 3, 7):
        counts = np.bincount(ps_of_keys(keys, num_ps), minlength=num_ps)
        assert counts.size == num_ps
        assert counts.min() > 0.95 * keys.size / num_ps
    # Of a version before: checkpoints rely on it.
    assert ps_of_keys(as_array(EXTREMES), 1000).tolist() == STATED


STATED = [0, 393, 704, 670, 560, 727, 785]


# -- distinct keys ---------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(keys=some_keys)
def test_distinct_keys_stand_in_the_order_of_their_first(keys: list[int]) -> None:
    unique, inverse = distinct("t", as_array(keys))
    assert unique.tolist() == list(dict.fromkeys(keys))
    assert unique[inverse].tolist() == keys


def test_many_keys_are_made_distinct() -> None:
    keys = np.random.default_rng(1).integers(-30_000, 30_000, 106_496)
    unique, inverse = distinct("t", keys)
    np.testing.assert_array_equal(np.sort(unique), np.unique(keys))
    np.testing.assert_array_equal(unique[inverse], keys)


@pytest.mark.parametrize("count", [10_000, 150_000], ids=["one thread", "several"])
@pytest.mark.parametrize("num_ps", [1, 2, 7])
@pytest.mark.parametrize("tables", [1, 5])
def test_distinct_keys_of_a_ps_stand_beside_each_other_in_order(
    tables: int, num_ps: int, count: int
) -> None:
    rng = np.random.default_rng(1)
    keys = rng.integers(-3000, 3000, count)
    # Some tables have no keys, or one.
    cuts = np.sort([0, 0, 1, count][: tables - 1]).tolist()
    sizes = np.diff([0, *cuts, count]).tolist()
    found = distinct_by_ps(keys, sizes, num_ps, BufferPools())
    assert len(found) == tables
    for own, (unique, inverse, bounds) in zip(np.split(keys, cuts), found, strict=True):
        np.testing.assert_array_equal(unique[inverse], own)
        expected = list(dict.fromkeys(own.tolist()))
        part = ps_of_keys(np.array(expected, np.int64), num_ps)
        assert unique.tolist() == [expected[i] for i in np.argsort(part, kind="stable")]
        assert np.diff(bounds).tolist() == np.bincount(part, minlength=num_ps).tolist()


def test_tables_of_all_sizes_are_divided_over_threads() -> None:
    rng = np.random.default_rng(2)
    for sizes in ([40_000] * 6, [150_000, 10, 0], [0, 10, 150_000], [3] * 2000 + [90_000]):
        keys = rng.integers(-5000, 5000, sum(sizes))
        found = distinct_by_ps(keys, sizes, 2, BufferPools())
        for own, (unique, inverse, bounds) in zip(
            np.split(keys, np.cumsum(sizes)[:-1]), found, strict=True
        ):
            np.testing.assert_array_equal(unique[inverse], own)
            assert unique.size == np.unique(own).size == bounds[-1]


@pytest.mark.parametrize(
    "keys", [np.zeros(3, np.int32), np.zeros((2, 2), np.int64), np.zeros(3)], ids=str
)
def test_keys_of_another_shape_or_dtype_name_the_table(keys: Array) -> None:
    index = KeyIndex("clicks", 10)
    for call in (index.find, index.remove, lambda keys: distinct("clicks", keys)):
        with pytest.raises(
            ShapeMismatchError, match=r"table 'clicks': keys are .* vector of int64"
        ):
            call(keys)


def test_keys_need_no_layout() -> None:
    index = KeyIndex("t", 10)
    keys = np.arange(10)[::2]
    index.insert(keys, keys.copy())
    assert index.find(keys).tolist() == keys.tolist()
    assert keys.dtype == INT64
