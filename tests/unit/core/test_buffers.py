"""Buffers that are used again when nobody looks at them."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.client.ps.pull_plans import Values
from ropewalk.core.arrays.buffers import BufferPool, BufferPools
from ropewalk.core.arrays.dtypes import Array

F32 = np.dtype(np.float32)


def use(pool: BufferPool, mark: int) -> Array:
    """A step: takes a buffer, fills it, keeps it; the caller decides who looks at it."""
    buffer, _ = pool.take()
    pool.forget()
    buffer[:] = mark
    pool.keep(buffer)
    return buffer


def test_there_are_no_latest_values_at_first() -> None:
    buffer, latest = BufferPool(8).take()
    assert buffer.nbytes == 8
    assert latest is None


def test_values_nobody_looks_at_are_overwritten_in_place() -> None:
    pool = BufferPool(8)
    address = use(pool, 1).ctypes.data
    for mark in range(2, 9):
        buffer, latest = pool.take()
        assert latest is buffer
        assert buffer.ctypes.data == address
        assert buffer[0] == mark - 1
        del buffer, latest
        use(pool, mark)


@pytest.mark.parametrize(
    "look",
    [
        lambda buffer: buffer,
        lambda buffer: buffer[2:4],
        lambda buffer: buffer.view(np.float32).reshape(1, 2),
        lambda buffer: buffer.data,
        lambda buffer: Values({"a": (0, 8, (2,), F32, F32)}, buffer),
        lambda buffer: Values({"a": (0, 8, (2,), F32, F32)}, buffer)["a"][1:],
    ],
    ids=["itself", "slice", "reshaped", "memoryview", "values", "part-of-a-value"],
)
def test_while_somebody_looks_another_buffer_is_taken_and_the_latest_is_at_hand(look: Any) -> None:
    pool = BufferPool(8)
    seen = look(use(pool, 1))
    buffer, latest = pool.take()
    assert latest is not None
    assert (latest == 1).all()
    assert not np.shares_memory(buffer, latest)
    del buffer, latest, seen
    buffer, latest = pool.take()
    assert buffer is latest, "nobody looks any more"


def test_after_values_were_lost_there_are_no_latest_ones() -> None:
    pool = BufferPool(8)
    use(pool, 1)
    pool.forget()
    assert pool.take()[1] is None


def test_a_program_that_keeps_everything_does_not_make_the_pool_grow() -> None:
    pool = BufferPool(8)
    kept = [use(pool, mark) for mark in range(20)]
    assert pool.held_bytes <= 4 * 8
    assert len({buffer.ctypes.data for buffer in kept}) == 20
    gone = [weakref.ref(buffer) for buffer in kept]
    kept.clear()
    gc.collect()
    assert not any(ref() is not None for ref in gone)


def test_a_buffer_beyond_the_pools_is_not_taken_for_the_latest() -> None:
    pool = BufferPool(8)
    kept = [use(pool, mark) for mark in range(10)]
    _, latest = pool.take()
    assert latest is None or (latest == kept[-1]).all()


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.booleans()), max_size=60))
def test_what_is_kept_never_changes_and_the_latest_is_what_came_last(
    steps: list[tuple[bool, int, bool]],
) -> None:
    """(keep the values, let go of so many, the step fails)"""
    pool = BufferPool(8)
    kept: list[tuple[int, Array]] = []
    arrived: int | None = None
    for mark, (keep, let_go, fails) in enumerate(steps):
        buffer, latest = pool.take()
        if latest is not None:
            assert arrived is not None
            assert (latest == arrived % 256).all()
        pool.forget()
        buffer[:] = mark % 256
        if fails:
            arrived = None
        else:
            arrived = mark
            pool.keep(buffer)
            if keep:
                kept.append((mark, buffer[3:]))
        del kept[:let_go], buffer, latest
        for old, view in kept:
            assert (view == old % 256).all()
        assert pool.held_bytes <= 4 * 8


# -- of many sizes -------------------------------------------------------------------------------


def test_a_buffer_of_each_size_is_used_again_when_nobody_looks() -> None:
    pools = BufferPools(least_bytes=8)
    addresses = {size: pools.take(size).ctypes.data for size in (8, 16, 24)}
    for size, address in addresses.items():
        held = pools.take(size).view(np.int64).reshape(-1, 1)[:1]
        assert held.ctypes.data == address
        assert pools.take(size).ctypes.data != address
        del held
        assert pools.take(size).ctypes.data == address


def test_pinned_buffers_count_with_what_the_driver_takes_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch and CuPy take a power of two, and none of it can be swapped out."""
    monkeypatch.setattr(
        "ropewalk.core.arrays.buffers.pinned_memory", lambda size: np.empty(size, np.uint8)
    )
    pools = BufferPools(least_bytes=8, most_bytes=3000)
    pools.take(1100)
    assert pools.held_bytes == 2048
    pools.take(600)
    assert pools.held_bytes == 1024, "with the first it would be more than 3000"


def test_sizes_not_asked_for_lately_are_forgotten() -> None:
    pools = BufferPools(least_bytes=8, sizes=2)
    for size in (8, 16, 24):
        pools.take(size)
    assert pools.held_bytes == 16 + 24


def test_small_buffers_are_not_kept() -> None:
    gone = weakref.ref(BufferPools(least_bytes=8).take(7))
    assert gone() is None


def test_arrays_of_nearly_one_size_use_the_same_memory_once_it_is_free() -> None:
    pools = BufferPools(least_bytes=8)
    first = pools.take_array((1000, 16), np.dtype(np.float32))
    assert (first.shape, first.dtype.name) == ((1000, 16), "float32")
    where = first.ctypes.data
    again = pools.take_array((1001, 16), np.dtype(np.float32))
    assert not np.may_share_memory(first, again)
    del first
    assert pools.take_array((1002, 16), np.dtype(np.float32)).ctypes.data == where
    assert pools.take_array((0, 16), np.dtype(np.float32)).size == 0
