"""Keys of strings: a stated hash, the same in every process, version and language."""

from typing import Any

import numpy as np
import xxhash

from ...core.arrays.dtypes import Array


def hash_strings(strings: Any, seed: int = 0) -> Array:
    """Hash each string to a key: XXH64 of its bytes, as a signed number.

    Text is hashed as UTF-8. Two strings have the same key by chance: among 10 million of them with
    a probability of three in a million.

    Args:
        strings: ``str`` or ``bytes``: an array or nested lists of any shape.
        seed: Seed of the hash; another one gives other keys, say for two features of one table; in
            [0, 2**64).

    Returns:
        int64, of the same shape.

    Raises:
        TypeError: An element is neither text nor bytes.
        ValueError: The seed is out of range.
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be in [0, 2**64), got {seed}")
    # As objects: NumPy's own strings forget zero bytes at their ends.
    array = strings if isinstance(strings, np.ndarray) else np.array(strings, dtype=object)
    digests = (
        xxhash.xxh64_intdigest(_bytes_of(string), seed) for string in array.reshape(-1).tolist()
    )
    return np.fromiter(digests, np.uint64, array.size).view(np.int64).reshape(array.shape)


def _bytes_of(string: Any) -> bytes:
    if isinstance(string, str):
        return string.encode()
    if isinstance(string, bytes):
        return string
    raise TypeError(f"hash_strings takes str or bytes, got {type(string).__name__}: {string!r}")
