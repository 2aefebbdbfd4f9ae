"""A mapped file of rows on the disk of a ps, which has no name and goes with the process.

All of the file is reserved when it is made: a full disk is an error then, and never the SIGBUS of a
write to a hole. The kernel reads no more than the page that is asked for (``MADV_RANDOM``): rows of
one batch lie anywhere.
"""

import errno
import mmap
import os
import platform
import tempfile
import weakref
from pathlib import Path

import numpy as np

from ....core.arrays.dtypes import Array
from ....core.errors import ConfigurationError, LimitExceededError, StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RowFile:
    """A mapped file, zero at first. Make one with :meth:`create`.

    Args:
        descriptor: The file, which has no name; owned from now on.
        num_bytes: Size of the file. Unit: bytes.

    Attributes:
        memory: All of the file, uint8, flat; lives as long as arrays of it do.
        page_bytes: Size of a page.
    """

    page_bytes = mmap.PAGESIZE

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self._descriptor = descriptor
        self._mapped = mmap.mmap(descriptor, num_bytes, mmap.MAP_SHARED)
        self._mapped.madvise(mmap.MADV_RANDOM)
        self.memory: Array = np.frombuffer(self._mapped, np.uint8)
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def create(cls, folder: Path, num_bytes: int, table: str) -> "RowFile":
        """Create a file of mode 0600 in a folder of mode 0700, which is made if it is not there.

        Args:
            folder: Folder on a local disk.
            num_bytes: Size of the file, which is reserved. Unit: bytes.
            table: Name of the table, for messages.

        Raises:
            ConfigurationError: The folder is open to others, or this system reserves no files.
            LimitExceededError: The disk has no room for it; names the table and both numbers.
            StorageError: The folder, or a file of it, cannot be used so.
        """
        if not hasattr(os, "posix_fallocate"):
            raise ConfigurationError(
                f"table {table!r} has memory_bytes, and {platform.system()} cannot reserve files "
                "for the rows beyond: run the ps on Linux, or leave memory_bytes out",
                table=table,
            )
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(folder)
            descriptor, name = tempfile.mkstemp(prefix="rows-", dir=folder)  # of mode 0600
            try:
                os.unlink(name)
                os.posix_fallocate(descriptor, 0, num_bytes)
                return cls(descriptor, num_bytes)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            if error.errno in _FULL:
                raise _no_room(folder, num_bytes, table, error) from error
            raise StorageError(
                f"rows of table {table!r} cannot be kept in {folder} (table_folder): "
                f"{error.strerror or error}",
                path=str(folder),
                table=table,
            ) from error

    def fetch(self, first: int, count: int) -> None:
        """Have the disk read pages that will be used; does not wait for it.

        Args:
            first: Number of the first page.
            count: Number of pages.
        """
        os.posix_fadvise(self._descriptor, *self._bytes(first, count), os.POSIX_FADV_WILLNEED)

    def drop(self, first: int, count: int) -> None:
        """Have pages leave memory; does not wait. Those that were written leave it by a second call
        only, after the disk has them.

        Args:
            first: Number of the first page.
            count: Number of pages.
        """
        where = self._bytes(first, count)
        # The kernel keeps what is mapped. What was written stays in its cache, as of any file.
        self._mapped.madvise(mmap.MADV_DONTNEED, *where)
        os.posix_fadvise(self._descriptor, *where, os.POSIX_FADV_DONTNEED)

    def _bytes(self, first: int, count: int) -> tuple[int, int]:
        return first * self.page_bytes, count * self.page_bytes


def _check_private(folder: Path) -> None:
    """Raise if others may look into the folder, or it is not this user's."""
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigurationError(
            f"{folder} (table_folder) has mode {status.st_mode & 0o777:o} and belongs to user "
            f"{status.st_uid}; rows need a folder of mode 700 of this user, {os.geteuid()}: name "
            "one that is not there yet, and it is made",
            path=str(folder),
        )


def _no_room(folder: Path, num_bytes: int, table: str, error: OSError) -> LimitExceededError:
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    return LimitExceededError(
        f"table {table!r} needs {num_bytes} bytes of {folder} (table_folder), where {free} are "
        f"free: {error.strerror}; free some, set ROPEWALK_TABLE_FOLDER to a larger disk, use more "
        "ps, or lower the table's max_rows",
        table=table,
        limit="table_folder",
        value=num_bytes,
    )
