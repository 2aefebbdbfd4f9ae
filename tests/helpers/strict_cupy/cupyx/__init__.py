"""``cupyx``: pinned memory."""

from typing import Any

import numpy as np

_PAGE_BYTES = 4096


def empty_pinned(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """An array that begins at a page, as one of pinned memory does."""
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(num_bytes + _PAGE_BYTES, np.uint8)
    start = -memory.ctypes.data % _PAGE_BYTES
    return np.ndarray(shape, dtype, buffer=memory[start:].data)
