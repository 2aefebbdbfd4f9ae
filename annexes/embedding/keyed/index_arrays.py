"""Hashes of keys, and the key index, in array operations.

Two hashes, for two purposes. An index takes SipHash-1-3 under a secret that each process draws for
itself, so that no key stream can be made to collide in it. Which ps has a key, and what a key's row
starts with, must be the same everywhere and for ever: that is a stated function of the key.
"""

import secrets
from collections.abc import Iterator

import numpy as np

from ....core.arrays.dtypes import Array

_U64 = np.uint64
_V = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_LENGTH = _U64(8 << 56)


def new_secret() -> Array:
    """Draw 128 random bits, uint64, shape ``(2,)``."""
    return np.frombuffer(secrets.token_bytes(16), np.uint64).copy()


def keyed_hash(keys: Array, secret: Array) -> Array:
    """Compute SipHash-1-3 of each key's eight bytes, little-endian.

    Args:
        keys: int64, shape ``(n,)``.
        secret: uint64, shape ``(2,)``.

    Returns:
        uint64, shape ``(n,)``.
    """
    message = keys.view(np.uint64)
    v0, v1, v2, v3 = (
        np.full(keys.shape, _U64(constant) ^ half)
        for constant, half in zip(_V, (*secret, *secret), strict=True)
    )
    v3 ^= message
    _round(v0, v1, v2, v3)
    v0 ^= message
    v3 ^= _LENGTH
    _round(v0, v1, v2, v3)
    v0 ^= _LENGTH
    v2 ^= _U64(0xFF)
    for _ in range(3):
        _round(v0, v1, v2, v3)
    return np.asarray(v0 ^ v1 ^ v2 ^ v3)


def _round(v0: Array, v1: Array, v2: Array, v3: Array) -> None:
    v0 += v1
    _rotate(v1, 13)
    v1 ^= v0
    _rotate(v0, 32)
    v2 += v3
    _rotate(v3, 16)
    v3 ^= v2
    v0 += v3
    _rotate(v3, 21)
    v3 ^= v0
    v2 += v1
    _rotate(v1, 17)
    v1 ^= v2
    _rotate(v2, 32)


def _rotate(words: Array, bits: int) -> None:
    words[...] = (words << _U64(bits)) | (words >> _U64(64 - bits))


def mixed(keys: Array) -> Array:
    """Mix each key's bits, one to one, by the finalizer of MurmurHash3.

    Args:
        keys: int64 or uint64, shape ``(n,)``.

    Returns:
        uint64, shape ``(n,)``.
    """
    words = keys.view(np.uint64).copy()
    words ^= words >> _U64(33)
    words *= _U64(0xFF51AFD7ED558CCD)
    words ^= words >> _U64(33)
    words *= _U64(0xC4CEB9FE1A85EC53)
    words ^= words >> _U64(33)
    return words


def ps_of_keys(keys: Array, num_ps: int) -> Array:
    """Find the ps that each key belongs to: ``((mixed(key) >> 32) * num_ps) >> 32``.

    The same for every process and version: checkpoints and workers rely on it.

    Args:
        keys: int64, shape ``(n,)``.
        num_ps: Number of ps, at least 1, below ``2**31``.

    Returns:
        int64, shape ``(n,)``, each in ``[0, num_ps)``.
    """
    words = mixed(keys)
    words >>= _U64(32)
    words *= _U64(num_ps)
    words >>= _U64(32)
    return words.view(np.int64)


# -- The kernels of the key index in array operations, for a process without Numba -------------
# Entries and hashes as in ``index_kernels.py``. A segment is its entries, int64, shape ``(size,
# 2)``. Many keys are probed at once: those that are not done go on to the next entry together.


def by_segment(keys: Array, secret: Array, shift: int) -> Iterator[tuple[int, Array, Array]]:
    """Cut keys by the segment they belong to.

    Yields:
        (segment, positions of its keys in ``keys``, their hashes)
    """
    if not keys.size:
        return
    hashes = keyed_hash(keys, secret)
    segments = ((hashes >> _U64(1)) >> _U64(shift)).view(np.int64)
    order = np.argsort(segments, kind="stable")
    starts = np.flatnonzero(np.diff(segments[order], prepend=-1)).tolist()
    for start, stop in zip(starts, [*starts[1:], keys.size], strict=True):
        positions = order[start:stop]
        yield int(segments[positions[0]]), positions, hashes[positions]


def homes(hashes: Array, size: int) -> Array:
    """Find the places in a segment of ``size`` entries where probing for these hashes begins;
    int64.
    """
    return (((hashes & _U64(0xFFFFFFFF)) * _U64(size)) >> _U64(32)).view(np.int64)


def find(entries: Array, keys: Array, hashes: Array) -> Array:
    """Find the place of each key in a segment; -1: it is not there."""
    places = np.full(keys.size, -1, np.int64)
    left, at = np.arange(keys.size), homes(hashes, len(entries))
    while left.size:
        used = entries[at, 1] != 0
        same = used & (entries[at, 0] == keys[left])
        places[left[same]] = at[same]
        going = used & ~same
        left, at = left[going], (at[going] + 1) % len(entries)
    return places


def insert(entries: Array, keys: Array, words: Array, hashes: Array) -> int:
    """Write keys with the second words of their entries; returns how many are new.

    Where a key occurs twice, the last word stays.
    """
    new = 0
    left, at = np.arange(keys.size), homes(hashes, len(entries))
    while left.size:
        used = entries[at, 1] != 0
        same = used & (entries[at, 0] == keys[left])
        entries[at[same], 1] = words[left[same]]
        free = np.flatnonzero(~used)
        _, first = np.unique(at[free], return_index=True)
        taken = free[first]
        entries[at[taken], 0] = keys[left[taken]]
        entries[at[taken], 1] = words[left[taken]]
        new += taken.size
        going = ~same
        going[taken] = False
        at = np.where(used, (at + 1) % len(entries), at)[going]
        left = left[going]
    return new


def remove(entries: Array, positions: Array, secret: Array) -> None:
    """Empty entries, and write all others anew."""
    entries[positions, 1] = 0
    rest = entries[entries[:, 1] != 0]
    entries[...] = 0
    keys = np.ascontiguousarray(rest[:, 0])
    insert(entries, keys, rest[:, 1], keyed_hash(keys, secret))


def move(old: Array, new: Array, secret: Array) -> None:
    """Write the entries of a segment anew where there is more room, in its place or elsewhere."""
    rest = old[old[:, 1] != 0]
    old[...] = 0
    keys = np.ascontiguousarray(rest[:, 0])
    insert(new, keys, rest[:, 1], keyed_hash(keys, secret))
