"""Rows of the keys that were read last: the push of a step has the keys of its lookup.

Finding a key waits for memory, in an index and then in the rows. A worker looks keys up, and pushes
gradients of the same keys in the same order, so where their rows are is known already.
"""

from collections import OrderedDict

import numpy as np

from ...core.arrays.buffers import BufferPools
from ...core.arrays.dtypes import Array

_KEPT = 8  # reads; each worker has one under way
_LEAST_KEYS = 1024  # of fewer the index is as fast
_MOST_KEYS = 1 << 20  # in all reads together: 16 MiB
_Mark = tuple[int, int, int]


class RecentRows:
    """The rows of some reads. Not thread-safe. Rows that are removed end all of it.

    Args:
        memory: Buffers for copies of keys.
    """

    def __init__(self, memory: BufferPools) -> None:
        self._memory = memory
        self._reads: OrderedDict[_Mark, tuple[Array, Array]] = OrderedDict()

    def note(self, keys: Array, rows: Array) -> None:
        """Remember where the rows of these keys are.

        Args:
            keys: int64, shape ``(n,)``.
            rows: int64, shape ``(n,)``; -1: the key has none. Kept, not copied.
        """
        if not _LEAST_KEYS <= keys.size <= _MOST_KEYS:
            return
        own = self._memory.take_array(keys.shape, keys.dtype)
        own[:] = keys
        self._reads[_mark(keys)] = own, rows
        while len(self._reads) > _KEPT or self._num_keys > _MOST_KEYS:
            self._reads.popitem(last=False)

    @property
    def _num_keys(self) -> int:
        return sum(keys.size for keys, _ in self._reads.values())

    def take(self, keys: Array) -> Array | None:
        """Take the rows of a read of these keys, which is forgotten; None: there was none.

        A key that had no row may have one since then.
        """
        if keys.size < _LEAST_KEYS:
            return None
        read_keys, rows = self._reads.pop(_mark(keys), (None, None))
        return rows if read_keys is not None and np.array_equal(read_keys, keys) else None

    def forget(self) -> None:
        """Forget all reads: rows were removed."""
        self._reads.clear()


def _mark(keys: Array) -> _Mark:
    return keys.size, int(keys[0]), int(keys[-1])
