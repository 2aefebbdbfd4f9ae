"""Keys that lost their rows since a mark, for copies of what changed."""

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import LimitExceededError
from .index import INT64


class Removals:
    """Remembers removed keys from the first mark on.

    Args:
        table: The table's name.
        most: Keys that are remembered; with more the log begins anew.
    """

    def __init__(self, table: str, most: int) -> None:
        self._table = table
        self._most = most
        self._log: list[tuple[int, Array]] = []  # (step, keys)
        self._size = 0
        self._begin: int | None = None  # step from which on the log is whole; None: from no step

    def begin(self, step: int) -> None:
        """Remember from this step on; what is older is forgotten."""
        self._log = [(when, keys) for when, keys in self._log if when >= step]
        self._size = sum(keys.size for _, keys in self._log)
        self._begin = step

    def note(self, keys: Array, step: int) -> None:
        """Note that these keys lost their rows."""
        if self._begin is None:
            return
        self._log.append((step, keys))
        self._size += keys.size
        if self._size > self._most:
            self.end()

    def end(self) -> None:
        """Remember nothing, until the next mark."""
        self._log, self._size, self._begin = [], 0, None

    def since(self, mark: int) -> Array:
        """List the keys that were removed since a mark, int64, ascending.

        Raises:
            LimitExceededError: They are no longer, or not yet, all remembered.
        """
        if self._begin is None or mark < self._begin:
            raise LimitExceededError(
                f"table {self._table!r}: removed rows since step {mark} are not all remembered (up "
                f"to {self._most} are, from the last mark on); copy the whole table",
                table=self._table,
            )
        parts = [keys for when, keys in self._log if when >= mark]
        return np.unique(np.concatenate([np.empty(0, INT64), *parts]))
