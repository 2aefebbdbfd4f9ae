"""The files of one folder, of this machine's file systems or of any that fsspec knows.

Checkpoints are read and written through a :class:`Folder` alone, so how files are opened safely and
replaced in one step is decided here. Names are those of single files: nothing leads out of a
folder.
"""

import contextlib
import errno
import re
from typing import IO, Protocol

from ..errors import RefusedError

_NOT_PLAIN = re.compile(r"[/\0-\x1f]|^\.{0,2}$")


class Folder(Protocol):
    """A folder, which need not exist. Thread-safe.

    Attributes:
        url: Path or URL as the user named it, for messages and for people.
    """

    url: str

    def subfolder(self, name: str) -> "Folder":
        """Return a folder in this one."""
        ...

    def beside(self, name: str) -> "Folder":
        """Return a folder beside this one, in the one that it is in."""
        ...

    def make(self) -> None:
        """Make the folder, and those above it, if they are missing.

        Raises:
            OSError: The file system refused.
        """
        ...

    def check_trusted(self) -> None:
        """Check that no other user of this machine could have planted the folder; it exists.

        Raises:
            UnsafeFolderError: One could have.
        """
        ...

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading.

        Raises:
            FileNotFoundError: There is none.
            UnsafeFileError: It is a link, a FIFO or a device.
            OSError: The file system refused.
        """
        ...

    def read(self, name: str, most_bytes: int) -> bytes:
        """Read all of a file; errors as of :meth:`open`, and UnsafeFileError: it is larger than
        that.
        """
        ...

    def create(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Write a file, in place of an older one; on stable storage when the block has ended.

        Raises:
            UnsafeFileError: A link, a FIFO or a device has the name.
            OSError: The file system refused.
        """
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a small file in one step: readers see the older one or this one, whole.

        Raises:
            OSError: The file system refused.
        """
        ...

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None: there is none."""
        ...

    def names(self) -> list[str]:
        """List the entries of the folder; none if it does not exist."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it; a link without what it leads to."""
        ...

    def rename(self, name: str, to: str) -> None:
        """Rename a file or folder."""
        ...


class UnsafeFileError(OSError):
    """A link, a FIFO, a device or a huge file has the place of a file or folder."""


def check_size(num_bytes: int, most_bytes: int) -> None:
    """Check that a file may be read as a whole.

    Raises:
        UnsafeFileError: It is larger than that.
    """
    if num_bytes > most_bytes:
        raise UnsafeFileError(
            errno.EFBIG, f"has {num_bytes} bytes, at most {most_bytes} are read: it is no such file"
        )


def plain_name(name: str) -> str:
    """Check that ``name`` is that of a single file or folder, and return it.

    Raises:
        RefusedError: It leads elsewhere, or is none.
    """
    if _NOT_PLAIN.search(name) or len(name) > 255:
        raise RefusedError(f"{name!r:.200} is no plain name of a file", name=name[:200])
    return name
