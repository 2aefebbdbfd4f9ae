"""Which rows changed since a position, for readers that keep copies of some.

Each row notes the position at which it changed last: four bytes beside it, from the first question
on and only as long as anybody follows. A position counts questions, not pushes, so that noting a
push is one write per row, whatever it changes. Rows that are gone are a log of keys of bounded
size; a reader that asks from before its beginning hears that it has to read all of its copy again.

Pure: the lock of the rows is around every call.
"""

import secrets
from collections import deque

import numpy as np

from ..core.arrays.dtypes import Array
from .arena import zeros

_LAST_POSITION = 2**32 - 1
_LEAST_REMOVED = 4096
_REMOVED_SHARE = 16  # so many rows for each key that is remembered
_NO_KEYS = np.empty(0, np.int64)


class ChangedRows:
    """Changes of the rows of one array, or of one part of a table. Not thread-safe.

    Args:
        rows: Number of rows, or of places of rows.
        removes: Whether rows can go.

    Attributes:
        log: Identity of these changes: positions of others mean nothing here.
        position: What changes now is at this position.
    """

    def __init__(self, rows: int, *, removes: bool = True) -> None:
        self.log = secrets.randbits(62) + 1
        self.position = 1
        self._changed_at = zeros(rows, np.dtype(np.uint32))
        self._removed: deque[tuple[int, Array]] = deque()  # (position, keys)
        self._num_removed = 0
        self._most_removed = max(_LEAST_REMOVED, rows // _REMOVED_SHARE) if removes else 0
        self._whole_since = 1  # removed keys are remembered from this position on

    @property
    def num_bytes(self) -> int:
        """Most memory. Unit: bytes."""
        return 4 * self._changed_at.size + 8 * self._most_removed

    @property
    def is_full(self) -> bool:
        """Whether there are no further positions: another log has to begin."""
        return self.position >= _LAST_POSITION

    def note(self, rows: Array | slice) -> None:
        """These rows change now."""
        self._changed_at[rows] = self.position

    def note_removed(self, keys: Array) -> None:
        """The rows of these keys are gone."""
        self._removed.append((self.position, keys))
        self._num_removed += keys.size
        while self._num_removed > self._most_removed:
            position, oldest = self._removed.popleft()
            self._num_removed -= oldest.size
            self._whole_since = position + 1

    def advance(self) -> int:
        """Begin a new position, and return it: all changes until now are before it."""
        self.position += 1
        return self.position

    def knows(self, since: int) -> bool:
        """Whether all changes since a position are known; 0 asks for all rows that are there."""
        return since == 0 or self._whole_since <= since <= self.position

    def since(self, position: int, start: int, stop: int) -> Array:
        """Numbers of the rows in ``[start, stop)`` that changed at a position or later, int64."""
        return np.flatnonzero(self._changed_at[start:stop] >= position) + start

    def removed_since(self, position: int, start: int, most: int) -> Array:
        """Some keys whose rows went at a position or later, int64; some may be there again.

        Since position 0, none: all rows that are there are asked for.

        Args:
            position: From which on.
            start: How many of them are left out; those of a position are always in one order.
            most: How many are returned at most.
        """
        parts = [_NO_KEYS]
        for at, keys in self._removed if position else ():
            if at < position:
                continue
            part = keys[start : start + most]
            start, most = max(0, start - keys.size), most - part.size
            parts.append(part)
            if not most:
                break
        return np.concatenate(parts)
