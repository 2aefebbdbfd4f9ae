"""Memory that two processes of one machine share, without a name in any file system.

A segment is a ``memfd``: a file that exists only while a process has it open or mapped, so nothing
is left behind, whichever process is killed. It is passed to the other process over a Unix socket,
which works across containers that share a socket and neither processes nor files. Segments are
sealed against shrinking, so that a peer cannot remove memory that we use (that would be SIGBUS).
(``multiprocessing.shared_memory`` has names, and before Python 3.13 a resource tracker that unlinks
segments other processes use.)
"""

import fcntl
import mmap
import os
import platform
import weakref
from pathlib import Path

import numpy as np

from ..core.arrays.buffers import ask_for_huge_pages
from ..core.arrays.dtypes import Array
from ..core.errors import RefusedError
from ..core.wire.steps import HEADER_BYTES

FIRST_SEGMENT_BYTES = 1024 * 1024  # a worker's segment is at least this large, then grows
# Counters of a segment that a worker leaves its pushes in, both in bytes of the payload.
WRITTEN = 0  # by the worker: so many bytes are written
APPLIED = 1  # by the ps: so many bytes are in the values of their block
ALIGNMENT_BYTES = 64  # of values that a ps leaves behind a worker's payload
# Rows of a large table are in random pages, and huge ones are found sooner.
_HUGE_BYTES = 64 * 1024 * 1024
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")  # "always [advise] never"
_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_SEAL", 0)
_SEAL_FUTURE_WRITE = 0x10  # Python has no name for it


def answer_start(payload_bytes: int) -> int:
    """Compute where in a worker's segment the values of an answer begin, behind the step's payload.

    Args:
        payload_bytes: Size of the payload. Unit: bytes.
    """
    return HEADER_BYTES + -(-payload_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def unavailable() -> str:
    """Say why this machine cannot share memory in this way; empty if it can."""
    if not hasattr(os, "memfd_create"):
        return f"no memfd on {platform.system()}"
    if platform.machine() not in ("x86_64", "AMD64"):
        # The sequence lock relies on stores and loads that keep their order.
        return f"memory order of {platform.machine()}"
    return ""


def has_huge_pages() -> bool:
    """Return whether the administrator lets shared memory have huge pages."""
    try:
        chosen = _HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return False
    return chosen not in ("", "never", "deny")


class SharedSegment:
    """A mapped segment.

    Attributes:
        memory: The whole segment, uint8, flat; lives as long as arrays of it do.
        num_bytes: Size of the segment, including the header.
        counters: int64 words of the header, each written by one of the two sides.
        descriptor: Descriptor of the file, to be passed to the peer; -1 once closed.
    """

    def __init__(self, descriptor: int, num_bytes: int, *, writable: bool = True) -> None:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        mapped = mmap.mmap(descriptor, num_bytes, mmap.MAP_SHARED, access)
        if num_bytes >= _HUGE_BYTES:
            ask_for_huge_pages(mapped)
        self.descriptor = descriptor
        self.num_bytes = num_bytes
        self.memory: Array = np.frombuffer(mapped, np.uint8)
        self.counters = memoryview(self.memory.data)[:HEADER_BYTES].cast("q")
        # The descriptor is ours alone; the mapping goes with the last array.
        self._finalizer = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def create(cls, num_bytes: int, *, others_read_only: bool = False) -> "SharedSegment":
        """Create a segment with at least ``num_bytes`` after the header, zero.

        Pages take memory when they are first used.

        Args:
            num_bytes: Unit: bytes.
            others_read_only: Whether the process that receives it cannot write to it.

        Raises:
            OSError: The kernel refused.
        """
        whole = -(-(num_bytes + HEADER_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        descriptor = os.memfd_create("ropewalk", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, whole)
            segment = cls(descriptor, whole)
        except OSError:
            os.close(descriptor)
            raise
        seals = _SEALS | (_SEAL_FUTURE_WRITE if others_read_only else 0)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return segment

    @classmethod
    def receive(
        cls, descriptor: int, num_bytes: int, *, most: int = 2**47, writable: bool = True
    ) -> "SharedSegment":
        """Map a peer's segment.

        Args:
            descriptor: The received file; owned from now on.
            num_bytes: The size that the peer announced. Unit: bytes.
            most: Largest allowed size. Unit: bytes.
            writable: Whether to map it for writing, too.

        Raises:
            RefusedError: It is not a sealed memfd of that size, or cannot be mapped.
        """
        try:
            size = os.fstat(descriptor).st_size
            if not HEADER_BYTES <= num_bytes <= most or size != num_bytes:
                raise RefusedError(
                    f"a shared segment has {size} bytes, its sender says {num_bytes}; at most "
                    f"{most} are allowed"
                )
            if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise RefusedError("a shared segment is not sealed against shrinking")
            return cls(descriptor, num_bytes, writable=writable)
        except (RefusedError, OSError, ValueError) as error:  # ValueError: mmap's, or no seals
            os.close(descriptor)
            if isinstance(error, RefusedError):
                raise
            why = getattr(error, "strerror", None) or str(error)
            raise RefusedError(f"a shared segment cannot be mapped: {why}") from error

    def close(self) -> None:
        """Close the descriptor; arrays of the memory stay valid."""
        self._finalizer()
        self.descriptor = -1
