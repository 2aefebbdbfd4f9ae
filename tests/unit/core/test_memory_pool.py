"""Memory lent for a step: used again, nobody's twice, and not hoarded."""

import numpy as np
import pytest

from helpers.streams import result, start
from ropewalk.core.arrays.buffers import Lease, MemoryPool
from ropewalk.core.arrays.dtypes import Array

MIB = 1024**2


def same(left: Array, right: Array) -> bool:
    return left.ctypes.data == right.ctypes.data and left.size == right.size


def released(pool: MemoryPool, *sizes: int) -> dict[int, Array]:
    """Arrays of these sizes, released in this order."""
    arrays = {size: np.empty(size, np.uint8) for size in sizes}
    for array in arrays.values():
        pool.release(array)
    return arrays


@pytest.mark.parametrize("size", [0, 1, 2 * MIB - 1, 2 * MIB, 3 * MIB])
def test_there_are_at_least_so_many_bytes_and_they_can_be_written(size: int) -> None:
    array = MemoryPool().take(size)
    assert array.dtype == np.uint8
    assert array.size >= size
    array[:] = 7
    assert (array == 7).all()


def test_what_was_released_is_lent_again_and_to_one_alone() -> None:
    pool = MemoryPool()
    array = pool.take(100_000)
    pool.release(array)
    assert same(pool.take(80_000), array)
    assert not np.shares_memory(pool.take(80_000), array)


def test_the_smallest_array_that_is_large_enough_is_lent() -> None:
    pool = MemoryPool()
    arrays = released(pool, 300, 100, 200)
    assert same(pool.take(150), arrays[200])
    assert same(pool.take(150), arrays[300])
    assert pool.take(150).size >= 150
    assert same(pool.take(1), arrays[100])


def test_arrays_of_one_size_are_told_apart() -> None:
    pool = MemoryPool()
    arrays = [pool.take(100) for _ in range(5)]
    for array in arrays:
        pool.release(array)
    again = [pool.take(100).ctypes.data for _ in range(5)]
    assert sorted(again) == sorted(array.ctypes.data for array in arrays)


def test_no_more_is_kept_than_was_said_and_the_smallest_goes_first() -> None:
    pool = MemoryPool(kept_bytes=1000)
    arrays = released(pool, 300, 500, 100, 400, 110)
    assert same(pool.take(1), arrays[400])
    assert same(pool.take(1), arrays[500])
    arrays |= released(pool, 400, 1000)
    assert same(pool.take(1), arrays[1000])
    arrays |= released(pool, 1001)
    assert not same(pool.take(1), arrays[1001])


def test_threads_never_hold_the_same_memory() -> None:
    pool = MemoryPool(kept_bytes=5000)

    def use(me: int) -> bool:
        rng = np.random.default_rng(me)
        for _ in range(300):
            array = pool.take(int(rng.integers(1, 2000)))
            array[:] = me
            if not (array == me).all():
                return False
            pool.release(array)
        return True

    running = [start(lambda me=me: use(me)) for me in range(8)]  # type: ignore[misc]
    assert all(result(each, 20) for each in running)


def test_a_lease_lends_one_array_and_releases_it_at_the_end() -> None:
    pool = MemoryPool()
    with Lease(pool) as lease:
        small = lease.lend(10)
        assert same(lease.lend(10), small)
        large = lease.lend(1000)
        assert same(pool.take(10), small)  # it was released for the larger one
    assert same(pool.take(1000), large)
