"""Memory two processes of one machine share, without a name in any file system.

A segment is a ``memfd``: a file that exists only while somebody holds it open. The other process opens it
through ``/proc/<pid>/fd/<fd>``, which the kernel allows to the same user in the same process namespace;
nothing can be left behind, whoever is killed. Segments are sealed against shrinking, so that a peer cannot
take the memory away under us (that would be SIGBUS), and begin with a random word: what was opened is what
was meant.
(``multiprocessing.shared_memory`` has names, and before Python 3.13 a resource tracker that unlinks segments
under the feet of others.)
"""

import contextlib
import fcntl
import mmap
import os
import platform
import secrets
import time
import weakref
from collections.abc import Callable

import numpy as np

from ..core.arrays import Array
from ..core.errors import RefusedError
from ..core.steps import SegmentAddress

HEADER_BYTES = 64  # a cache line: the random word, then counters
FIRST_SEGMENT_BYTES = 1024 * 1024  # a worker's segment is at least this large, then grows
_WORD_BYTES = 16
# Counters of a segment that a worker leaves its pushes in, both in bytes of the payload.
WRITTEN = 0  # by the worker: so many are there
APPLIED = 1  # by the ps: whatever these bring to a block is in its values
_LOOK_S = 200e-6
_LOOKS = 16  # in a row, then others may run
_LONGEST_NAP_S = 2e-3
_NAP_SHARE = 1 / 16  # of what was waited for already: so much later than possible at most
_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_SEAL", 0)


def unavailable() -> str:
    """Why this machine cannot share memory so; empty if it can."""
    if not hasattr(os, "memfd_create"):
        return f"no memfd on {platform.system()}"
    if platform.machine() not in ("x86_64", "AMD64"):
        # The sequence lock relies on stores and loads that keep their order.
        return f"memory order of {platform.machine()}"
    return ""


class SharedSegment:
    """A mapped segment. ``memory`` is all of it, as bytes; it lives as long as arrays of it do."""

    def __init__(self, fd: int, num_bytes: int) -> None:
        self._fd = fd
        self.num_bytes = num_bytes
        self._map = mmap.mmap(fd, num_bytes)
        self.memory: Array = np.frombuffer(self._map, np.uint8)
        # Words of 8 bytes, each written by one of the two sides. Stores become visible in their order.
        self.counters = memoryview(self.memory.data)[_WORD_BYTES:HEADER_BYTES].cast("q")
        # The descriptor is ours alone; the mapping goes with the last array.
        self._finalizer = weakref.finalize(self, os.close, fd)

    @classmethod
    def create(cls, num_bytes: int) -> "SharedSegment":
        """A new segment with at least ``num_bytes`` after the header, zero.

        Pages take memory when they are touched first.

        Raises:
            OSError: The kernel refused.
        """
        whole = -(-(num_bytes + HEADER_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        fd = os.memfd_create("windlass", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, whole)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            segment = cls(fd, whole)
        except OSError:
            os.close(fd)
            raise
        segment.memory[:_WORD_BYTES] = np.frombuffer(secrets.token_bytes(_WORD_BYTES), np.uint8)
        return segment

    @classmethod
    def open(cls, address: SegmentAddress) -> "SharedSegment":
        """A peer's segment.

        Raises:
            RefusedError: It cannot be reached from here, or is not what the peer meant; says why.
        """
        if address.num_bytes < HEADER_BYTES:
            raise RefusedError(f"a segment of {address.num_bytes} bytes has no header")
        path = f"/proc/{address.pid}/fd/{address.fd}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise RefusedError(f"not on one machine, or not one user: {error.strerror}") from error
        try:
            if os.fstat(fd).st_size != address.num_bytes:
                raise RefusedError("not on one machine: another file is there")
            if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise RefusedError("the segment is not sealed")
            segment = cls(fd, address.num_bytes)
        except (RefusedError, OSError) as error:
            with contextlib.suppress(OSError):
                os.close(fd)
            if isinstance(error, RefusedError):
                raise
            raise RefusedError(f"not a segment: {error.strerror}") from error
        if segment.memory[:_WORD_BYTES].tobytes() != address.word:
            raise RefusedError("not on one machine: another segment is there")
        return segment

    @property
    def address(self) -> SegmentAddress:
        """For a peer. Only of a segment this process created."""
        return SegmentAddress(
            os.getpid(), self._fd, self.num_bytes, self.memory[:_WORD_BYTES].tobytes()
        )

    def close(self) -> None:
        """Give up the descriptor; arrays of the memory stay valid."""
        self._finalizer()


def wait_for(counters: memoryview, index: int, least: int, goes_on: Callable[[], bool]) -> bool:
    """Wait for the other side to move a counter to ``least``: awake for a moment, then looking now and then.

    Args:
        counters: A segment's.
        index: Which one.
        least: What it is waited for.
        goes_on: Asked before every nap.

    Returns:
        Whether it is there; False if ``goes_on`` said no first.
    """
    if counters[index] >= least:
        return True
    began = time.perf_counter()
    while time.perf_counter() < began + _LOOK_S:
        for _ in range(_LOOKS):
            if counters[index] >= least:
                return True
        os.sched_yield()
    while counters[index] < least:
        if not goes_on():
            return bool(counters[index] >= least)
        time.sleep(min((time.perf_counter() - began) * _NAP_SHARE, _LONGEST_NAP_S))
    return True
