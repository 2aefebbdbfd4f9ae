"""Which rows of a table a step touches: worked out once, for the lookup and for the push.

The ids of a batch repeat. A lookup asks for each row once and spreads the rows to all ids; the
gradient of the same ids is summed to one row each. Both need the distinct ids and where each id went.
"""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from ...core.arrays import Array, size_of
from ...core.buffers import BufferPools
from ...core.errors import ShapeMismatchError
from ...core.indexed_slices import IndexedSlices
from ...core.task import Incarnation
from ...engine.rows import deduplicate, sum_duplicates

_KEPT_TABLES = 64


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """Ids without their repetitions.

    Attributes:
        ids: int64, shape ``(n,)``: as they were given; a copy.
        unique: int64, ascending: each of them once.
        inverse: int64, shape ``(n,)``: ``unique[inverse]`` is ``ids``; None if they are the same.
    """

    ids: Array
    unique: Array
    inverse: Array | None

    def sum(self, slices: IndexedSlices, memory: BufferPools) -> IndexedSlices:
        """A gradient of these ids with each row once, ascending; repeated rows summed in order.

        Args:
            slices: The gradient.
            memory: For the sums.
        """
        if self.inverse is None:
            return slices
        values = slices.values
        rows = values.reshape(self.ids.size, size_of(values.shape[1:]))
        out = memory.take_array((self.unique.size, rows.shape[1]), values.dtype)
        summed = sum_duplicates(rows, self.inverse, self.unique.size, out)
        shape = (self.unique.size, *values.shape[1:])
        return IndexedSlices(summed.reshape(shape), self.unique, slices.dense_shape)


class DistinctRowsCache:
    """The ids each table was asked for last, a bounded number of tables. The caller locks.

    Args:
        who: This task, for messages.

    Attributes:
        memory: For rows, used again once nobody refers to them.
    """

    def __init__(self, who: Incarnation) -> None:
        self._who = who
        self._last: OrderedDict[str, DistinctRows] = OrderedDict()
        # Rows on their way: fresh memory costs a page fault per 4 KiB, more than filling it.
        self.memory = BufferPools()

    def of(self, table: str, ids: Array, num_rows: int) -> DistinctRows:
        """The distinct ones of some ids.

        Args:
            table: The variable's name.
            ids: int64, shape ``(n,)``.
            num_rows: Of the table.

        Raises:
            ShapeMismatchError: An id is not in ``[0, num_rows)``.
        """
        known = self._last.get(table)
        # Comparing costs a tenth of sorting out; the caller may have changed its array in place.
        if known is not None and np.array_equal(known.ids, ids):
            return known
        if ids.size and not (ids.min() >= 0 and ids.max() < num_rows):
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise ShapeMismatchError(
                f"{self._who.task}: row {wrong} of {table!r} is out of range: it has {num_rows} rows",
                task=self._who.task,
                variable=table,
            )
        found = _distinct(ids, num_rows)
        self._last[table] = found
        self._last.move_to_end(table)
        if len(self._last) > _KEPT_TABLES:
            self._last.popitem(last=False)
        return found


def _distinct(ids: Array, num_rows: int) -> DistinctRows:
    own = ids.copy()
    if own.size < 2 or bool(np.all(own[1:] > own[:-1])):
        return DistinctRows(own, own, None)
    unique, inverse = deduplicate(own, num_rows)
    return DistinctRows(own, unique, inverse)
