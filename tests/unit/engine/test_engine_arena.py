"""Where blocks get their memory, and what happens when the kernel refuses."""

import numpy as np
import pytest

from ropewalk.engine.arena import Arena
from ropewalk.net.shared_memory import SharedSegment, unavailable

FLOAT32 = np.dtype(np.float32)


@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
def test_blocks_of_one_slab_do_not_overlap_and_can_be_found() -> None:
    arena = Arena(SharedSegment.create)
    first, second = arena.allocate(5, FLOAT32), arena.allocate(3, np.dtype(np.int64))
    first.values[:] = 1
    second.values[:] = 2
    first.sequence[0] = 7
    assert first.values.tolist() == [1] * 5
    assert second.sequence[0] == 0
    where = second.location(1)
    assert where is not None
    slab = arena.slabs[where.slab]
    assert slab.memory[where.offset : where.offset + 16].view(np.int64).tolist() == [2, 2]
    counter = slab.memory[where.sequence_offset : where.sequence_offset + 8].view(np.int64)
    assert np.shares_memory(counter, second.sequence)


@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
def test_a_block_larger_than_a_slab_gets_one_of_its_own() -> None:
    arena = Arena(SharedSegment.create)
    numbers = [arena.allocate(size, FLOAT32).slab for size in (1, 2**25, 1)]
    assert numbers[0] != numbers[1]
    assert len(arena.slabs) == len(set(numbers))


def test_on_the_heap_there_is_no_location() -> None:
    memory = Arena().allocate(4, FLOAT32)
    assert memory.values.tolist() == [0] * 4
    assert memory.location(0) is None


def test_a_kernel_that_refuses_means_the_heap() -> None:
    def refuse(num_bytes: int) -> SharedSegment:
        raise OSError(1, "Operation not permitted")

    arena = Arena(refuse)
    assert arena.allocate(4, FLOAT32).location(0) is None
    assert arena.allocate(4, FLOAT32).values.tolist() == [0] * 4
