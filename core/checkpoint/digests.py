"""Digests of what is stored: they detect damage, not forgery."""

import hashlib

import xxhash

XXH3 = "xxh3:"
DIGEST_CHARS = len(XXH3) + 32


def digest(data: memoryview | bytes) -> str:
    """Compute XXH3-128, as ``xxh3:`` and hex: faster than the disk."""
    return f"{XXH3}{xxhash.xxh3_128_hexdigest(data)}"


def has_digest(data: memoryview | bytes, expected: str) -> bool:
    """Return whether the digest of ``data`` is ``expected``; that of older checkpoints is
    BLAKE2b-128 in hex.
    """
    if ":" not in expected:
        return hashlib.blake2b(data, digest_size=16).hexdigest() == expected
    return digest(data) == expected
