"""Memory for gradients and values that are on their way, lent to sessions for a step."""

import threading

import numpy as np

from ...core.arrays import Array
from ...core.copying import passing

_KEPT_BYTES = 32 * 1024 * 1024
_BYTE = np.dtype(np.uint8)


class ScratchPool:
    """Keeps some of what was given back: fresh memory costs a page fault per 4 KiB. Thread-safe.

    Args:
        kept_bytes: Most that is kept while nobody uses it; the rest goes back to the system.
    """

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._free: list[Array] = []

    def take(self, num_bytes: int) -> Array:
        """At least so many bytes of anything, uint8: the smallest piece at hand, or a fresh one."""
        with self._lock:
            fitting = [piece for piece in self._free if piece.size >= num_bytes]
            if fitting:
                best = min(fitting, key=len)
                self._free = [piece for piece in self._free if piece is not best]
                return best
        return passing(num_bytes, _BYTE)

    def give_back(self, piece: Array) -> None:
        """Nobody looks at it any more. Of what is kept, the smallest goes first."""
        with self._lock:
            self._free.append(piece)
            self._free.sort(key=len)
            while sum(map(len, self._free)) > self._kept_bytes:
                self._free.pop(0)
