"""Reading a file that somebody outside has named: a plain file of bounded size, or refused.

To open a FIFO waits for whoever writes to it, a device never ends, a file of 20 GB takes all
memory, and a path with a NUL is a ValueError of the interpreter. Here each is an OSError that says
so, which callers turn into their own error as they do for a file that is missing.
"""

import errno
import os
import stat
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


MOST_BYTES = 1024 * 1024
"""Largest size of a file that people or tools write for us: keys, certificates, a status."""


def open_plain(path: str | os.PathLike[str], *, follow_links: bool = True) -> BinaryIO:
    """Open a plain file for reading, without waiting.

    Raises:
        OSError: It cannot be opened, or is something else.
    """
    name = os.fspath(path)
    if "\0" in name:
        raise OSError(errno.EINVAL, "a path has no NUL", name)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    descriptor = os.open(name, flags)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFREG:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'no file')}, no plain file", name)


def read_plain(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Read all of a plain file.

    Raises:
        OSError: It cannot be read, is something else, or is larger than ``most_bytes``.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1) if size <= most_bytes else b""
    if size > most_bytes or len(data) > most_bytes:
        raise OSError(
            errno.EFBIG,
            f"it has {max(size, len(data))} bytes, at most {most_bytes} are read",
            os.fspath(path),
        )
    return data
