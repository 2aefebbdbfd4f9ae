"""Which keys lost their rows since some moment, for copies of what changed.

A copy for a follower asks by step, from a mark on that it moves forward. A checkpoint asks by
position: the number of keys that were removed before a moment that it has pinned. What neither
needs is not remembered.
"""

from dataclasses import dataclass

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import LimitExceededError
from .index import INT64

_PINNED_PART = 8  # 1 byte of a row that there may be; of more removed rows a copy is no smaller


@dataclass(frozen=True, slots=True)
class _Removed:
    """Keys that were removed at once.

    Attributes:
        step: The table's step.
        start: Number of keys that were removed before.
    """

    step: int
    start: int
    keys: Array


class Removals:
    """Remembers removed keys from the first mark or pin on.

    Args:
        table: The table's name.
        most: Keys that are remembered; with more the log begins anew. For pins, an eighth.

    Attributes:
        position: Number of keys that were removed so far, remembered or not.
    """

    def __init__(self, table: str, most: int) -> None:
        self._table = table
        self._most = most
        self._log: list[_Removed] = []
        self._size = 0
        self._begin: int | None = None  # step from which on the log is whole; None: from no step
        self._pins: list[int] = []  # positions from which on it is whole, too
        self.position = 0

    @property
    def num_bytes(self) -> int:
        """Memory of the remembered keys."""
        return self._size * INT64.itemsize

    def begin(self, step: int) -> None:
        """Remember from this step on; what is older is forgotten, unless a pin needs it."""
        self._begin = step
        self._trim()

    def pin(self) -> int:
        """Remember from now on, until :meth:`unpin`; the position of now."""
        self._pins.append(self.position)
        return self.position

    def unpin(self, position: int) -> None:
        """Forget what only this pin needs. Without it, nothing happens."""
        if position in self._pins:
            self._pins.remove(position)
            self._trim()

    def drop_pins(self) -> None:
        """Rows have changed that no pin can know of."""
        if self._pins:
            self._pins = []
            self._trim()

    def note(self, keys: Array, step: int) -> None:
        """These keys lost their rows."""
        start, self.position = self.position, self.position + keys.size
        if self._begin is None and not self._pins:
            return
        self._log.append(_Removed(step, start, keys))
        self._size += keys.size
        if self._size > self._most // _PINNED_PART:
            self.drop_pins()
        if self._size > self._most:
            self._log, self._size, self._begin = [], 0, None

    def since(self, mark: int) -> Array:
        """Removed keys since a mark, int64, ascending.

        Raises:
            LimitExceededError: They are no longer, or not yet, all remembered.
        """
        if self._begin is None or mark < self._begin:
            raise LimitExceededError(
                f"table {self._table!r}: removed rows since step {mark} are not all remembered (up "
                f"to {self._most} are, from the last mark on); copy the whole table",
                table=self._table,
            )
        parts = [each.keys for each in self._log if each.step >= mark]
        return np.unique(np.concatenate([np.empty(0, INT64), *parts]))

    def after(self, pin: int, until: int | None = None) -> list[Array] | None:
        """Removed keys after a pin, int64, in their order; None: they are not all remembered.

        Args:
            pin: The position that was pinned.
            until: A later position, before which they were removed; None: up to now.
        """
        if pin not in self._pins:
            return None
        end = self.position if until is None else until
        return [each.keys for each in self._log if pin <= each.start < end]

    def _trim(self) -> None:
        by_step = np.inf if self._begin is None else self._begin
        by_pin = min(self._pins, default=np.inf)
        self._log = [each for each in self._log if each.step >= by_step or each.start >= by_pin]
        self._size = sum(each.keys.size for each in self._log)
