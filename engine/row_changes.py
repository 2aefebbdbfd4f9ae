"""Which rows of a large array changed since a moment: a byte for each row.

A push to some rows writes as many bytes, one to all of them none. Where the array's version shows
a change that was not noted, all rows count as changed.
"""

import numpy as np

from ..core.arrays.dtypes import Array
from .push_target import PushTarget, UpdatePart


class RowChanges:
    """Notes changes of the rows of one array. Hold the array's lock around every call.

    Args:
        block: The array, alone in its block.

    Attributes:
        rule: Update rule of the array at the moment, which says what slots it had.
    """

    def __init__(self, block: PushTarget) -> None:
        self._changed = np.zeros(block.shards[0].rows, np.bool_)
        self._all = False
        self._version = int(block.versions[0])
        self.rule = block.rules[0]

    @property
    def num_bytes(self) -> int:
        """Memory for it."""
        return self._changed.nbytes

    def note(self, block: PushTarget, part: UpdatePart) -> None:
        """A push has changed some rows, or all, or nothing."""
        version, known = int(block.versions[0]), self._version
        self._version = version
        if version == known:
            return
        if part.gradient.rows is None or version != known + 1:
            self._all = True
        else:
            self._changed[part.gradient.rows] = True

    def between(self, block: PushTarget, start: int, stop: int) -> Array:
        """Rows of ``[start, stop)`` that changed since the moment; int64, ascending."""
        if self._all or self._version != block.versions[0]:
            return np.arange(start, stop)
        return np.flatnonzero(self._changed[start:stop]) + start
