"""Files, JSON and numbers from outside: read with a bound, and one kind of error."""

import errno
import json
import os
import re
import stat
from typing import Any, BinaryIO

# -- JSON and numbers from outside: one kind of error, whatever is wrong with them -------------
# The interpreter's own reader of JSON raises RecursionError for nested brackets, and what it does
# read can be nested so deeply that the next message about it is a RecursionError.


_MOST_LEVELS = 100


def read_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        json.JSONDecodeError: It is no JSON; says where.
        ValueError: It is nested more than 100 deep, has a number of thousands of digits, or is no
            text.
    """
    too_deep = f"it is nested more than {_MOST_LEVELS} deep"
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(too_deep) from None
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return value
    raise ValueError(too_deep)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def parse_number(text: str, most: int) -> int | None:
    """Parse a whole number in a text from outside: digits of ASCII; None: none, or above ``most``.

    ``int`` takes other digits and blanks, and raises for thousands of digits.
    """
    number = int(text) if re.fullmatch(r"[0-9]{1,18}", text) else -1
    return number if 0 <= number <= most else None


# -- Reading a file that somebody outside has named: a plain file of bounded size, or refused --
# To open a FIFO waits for whoever writes to it, a device never ends, a file of 20 GB takes all
# memory, and a path with a NUL is a ValueError of the interpreter. Here each is an OSError that
# says so, which callers turn into their own error as they do for a file that is missing.

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
