"""Frames as bytes, and what the tests of connections do with both ends of one."""

import struct
from collections.abc import Callable

import numpy as np

from helpers.streams import (
    StreamPair,
)
from ropewalk.core.arrays.dtypes import Array
from ropewalk.net.connection import Connection

LIMIT = 4 * 1024**2
KIB64 = 64 * 1024
MIB = 1024**2
Pair = tuple[Connection, Connection]
MakePair = Callable[[], StreamPair]


def lengths(message: int, payload: int = 0) -> bytes:
    """What a frame begins with: little-endian uint32 and uint64."""
    return struct.pack("<IQ", message, payload)


def glued(*frames: tuple[bytes, bytes]) -> bytes:
    return b"".join(lengths(len(m), len(p)) + m + p for m, p in frames)


def noise(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def memory_of(size: int) -> Array:
    return np.empty(size, np.uint8)


def received(connection: Connection) -> tuple[bytes, bytes] | None:
    """The next frame, whole."""
    message = connection.receive()
    if message is None:
        return None
    return bytes(message), bytes(connection.read(connection.unread_bytes, memory_of))


def next_message(connection: Connection) -> bytes:
    message = connection.receive()
    assert message is not None
    return bytes(message)


def ended(connection: Connection) -> bool:
    """Whether nothing more can be received: an end, or a break."""
    try:
        return connection.receive() is None
    except OSError:
        return True


def again_and_again(work: Callable[[], object]) -> None:
    for _ in range(1000):
        work()
