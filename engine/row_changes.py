"""Rows that changed since a moment, for deltas of checkpoints, readers, and copies for followers.

Each row has the position at which it changed last: four bytes beside it, as long as anybody asks.
Whoever begins to ask takes the position of now and asks since it later, so several can ask, each
since a moment of its own, and none has to know of the others. Positions count such moments, not
pushes: a push to some rows writes one number for each, one to all of them a single number. Rows
that are gone are a log of keys of bounded size; since a position of before its beginning, the
changes are unknown.

Pure: the lock of the rows is around every call. Who asks, and for how long: ``push_target.py``.
"""

import secrets
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from ..core.arrays.dtypes import Array
from .arena import zeros

_LAST_POSITION = 2**32 - 1
_LEAST_REMOVED = 4096
_REMOVED_SHARE = 8  # so many rows for each key that is remembered: a byte of a row
_NO_KEYS = np.empty(0, np.int64)


class RowChanges:
    """Changes of the rows of one array, or of one part of a table. Not thread-safe.

    Args:
        rows: Number of rows, or of places of rows.
        removes: Whether rows can go.
        version: Version of the array; 0 for a table, whose every change is noted.

    Attributes:
        log: Identity of these changes: positions of others mean nothing here.
        position: Position of the changes that are made now.
        holders: Holders that need the changes; without any, they are noted no more.
    """

    def __init__(self, rows: int, *, removes: bool = True, version: int = 0) -> None:
        self.log = secrets.randbits(62) + 1
        self.position = 1
        self.holders: set[Hashable] = set()
        self._changed_at = zeros(rows, np.dtype(np.uint32))
        self._all_changed_at = 0
        self._version = version
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

    def note(self, rows: Array | None) -> None:
        """Note that these rows change now; None: all do."""
        if rows is None:
            self._all_changed_at = self.position
        else:
            self._changed_at[rows] = self.position

    def note_version(self, version: int, rows: Array | None = None) -> None:
        """Note that an array has this version now, after a change of these rows; None: perhaps of
        all.

        All rows count as changed if versions are between that were not noted; none does if the
        version is the last one that was.
        """
        if version != self._version:
            self.note(rows if version == self._version + 1 else None)
            self._version = version

    def note_removed(self, keys: Array) -> None:
        """Note that the rows of these keys are gone."""
        self._removed.append((self.position, keys))
        self._num_removed += keys.size
        while self._num_removed > self._most_removed:
            position, oldest = self._removed.popleft()
            self._num_removed -= oldest.size
            self._whole_since = position + 1

    def remember_removed(self, most: int) -> None:
        """Remember at least so many keys whose rows are gone, from now on."""
        self._most_removed = max(self._most_removed, most)

    def advance(self) -> int:
        """Begin a new position, and return it: all changes until now are before it."""
        self.position += 1
        return self.position

    def knows(self, since: int) -> bool:
        """Return whether all changes since a position are known; 0 asks for all rows that are
        there.
        """
        return since == 0 or self._whole_since <= since <= self.position

    def since(self, position: int, start: int, stop: int, before: int | None = None) -> Array:
        """Find the rows in ``[start, stop)`` that changed at a position or later, by their numbers.

        Args:
            position: Position from which on they changed; 0: all rows are found.
            start: First row that is looked at.
            stop: Row after the last one that is looked at.
            before: Rows that changed last at this position or later are left out, of a table.

        Returns:
            int64, ascending.
        """
        part = self._changed_at[start:stop]
        if before is not None:
            return np.flatnonzero((part >= position) & (part < before)) + start
        if self._all_changed_at >= position:
            return np.arange(start, start + part.size)
        return np.flatnonzero(part >= position) + start

    def removed_parts(self, position: int, before: int | None = None) -> list[Array]:
        """List the keys whose rows went at a position or later, int64; some may be there again.

        Args:
            position: Position from which on they went; 0: none are listed, since all rows that are
                there are asked for.
            before: Position before which they went; None: they may have gone until now.

        Returns:
            The keys as they were noted, in their order.
        """
        if not position:
            return []
        end = self.position + 1 if before is None else before
        return [keys for at, keys in self._removed if position <= at < end]

    def removed_since(self, position: int, start: int, most: int) -> Array:
        """Read a part of the keys of :meth:`removed_parts`, int64.

        Args:
            position: Position from which on they went.
            start: Number of keys that are left out; those of a position are always in one order.
            most: Largest number of keys to return.
        """
        parts = [_NO_KEYS]
        for keys in self.removed_parts(position):
            part = keys[start : start + most]
            start, most = max(0, start - keys.size), most - part.size
            parts.append(part)
            if not most:
                break
        return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class ChangeMark:
    """A moment, for who asks later what changed since. See ``PushTarget.knows``.

    Attributes:
        changes: Object that notes the changes.
        position: Position at the moment: what changed at it or later changed after the moment.
    """

    changes: RowChanges
    position: int
