"""Memory lent for a step: used again, nobody's twice, and not hoarded."""

import threading

import numpy as np
import pytest
from windlass.server.ps.scratch import ScratchPool

from windlass.core.arrays import Array

MIB = 1024**2


def same(left: Array, right: Array) -> bool:
    return left.ctypes.data == right.ctypes.data and left.size == right.size


def kept(pool: ScratchPool) -> list[int]:
    return [piece.size for piece in pool._free]


@pytest.mark.parametrize("size", [0, 1, 1000, 2 * MIB - 1, 2 * MIB, 3 * MIB])
def test_a_piece_has_at_least_so_many_bytes_that_can_be_written(size: int) -> None:
    piece = ScratchPool().take(size)
    assert piece.dtype == np.uint8
    assert piece.size >= size
    piece[:] = 7
    assert (piece == 7).all()


def test_what_was_given_back_is_lent_again() -> None:
    pool = ScratchPool()
    piece = pool.take(100_000)
    pool.give_back(piece)
    assert same(pool.take(80_000), piece)


def test_nobody_gets_what_another_has() -> None:
    pool = ScratchPool()
    pool.give_back(pool.take(100))
    first, second = pool.take(100), pool.take(100)
    assert not np.shares_memory(first, second)


def test_pieces_of_one_size_are_told_apart() -> None:
    pool = ScratchPool()
    pieces = [pool.take(100) for _ in range(5)]
    for piece in pieces:
        pool.give_back(piece)
    again = [pool.take(100) for _ in range(5)]
    assert sorted(p.ctypes.data for p in again) == sorted(p.ctypes.data for p in pieces)
    assert kept(pool) == []


def test_the_smallest_piece_that_is_large_enough_is_lent() -> None:
    pool = ScratchPool()
    pieces = {size: np.empty(size, np.uint8) for size in (300, 100, 200)}
    for piece in pieces.values():
        pool.give_back(piece)
    assert same(pool.take(150), pieces[200])
    assert same(pool.take(150), pieces[300])
    assert kept(pool) == [100]
    assert pool.take(150).size >= 150


def test_no_more_is_kept_than_was_said_and_the_smallest_goes_first() -> None:
    pool = ScratchPool(kept_bytes=1000)
    for size in (300, 500, 100, 400, 110):
        pool.give_back(np.empty(size, np.uint8))
        assert sum(kept(pool)) <= 1000
    assert kept(pool) == [400, 500]
    pool.give_back(np.empty(1000, np.uint8))
    assert kept(pool) == [1000]


def test_what_is_larger_than_the_pool_is_not_kept() -> None:
    pool = ScratchPool(kept_bytes=1000)
    pool.give_back(np.empty(1001, np.uint8))
    assert kept(pool) == []


def test_threads_never_hold_the_same_memory() -> None:
    pool = ScratchPool(kept_bytes=5000)
    start = threading.Barrier(8)
    torn: list[int] = []

    def use(me: int) -> None:
        start.wait(10)
        rng = np.random.default_rng(me)
        for _ in range(300):
            piece = pool.take(int(rng.integers(1, 2000)))
            piece[:] = me
            if not (piece == me).all():
                torn.append(me)
            pool.give_back(piece)

    threads = [threading.Thread(target=use, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert torn == []
    assert sum(kept(pool)) <= 5000
    addresses = [piece.ctypes.data for piece in pool._free]
    assert len(set(addresses)) == len(addresses)
