"""Event files in a folder: one that grows on this machine's file systems; on object stores, which
append nothing, one more with every flush. TensorBoard reads both in the order of their names.
"""

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Sequence
from typing import IO, Protocol

from ...core.checkpoint.file_systems import open_folder
from ...core.checkpoint.folder import Folder
from ...core.checkpoint.local_folder import LocalFolder
from ...core.errors import ConfigurationError
from .encoding import record_of, version_event

_number = itertools.count()


class EventFile(Protocol):
    """Takes events; used by one thread."""

    def write(self, events: Sequence[bytes]) -> None:
        """Take serialized events.

        Raises:
            OSError: The file system refused.
        """

    def flush(self) -> None:
        """Let readers see what was written; errors as of :meth:`write`."""

    def close(self) -> None:
        """End the file; errors as of :meth:`write`."""


def open_event_file(logdir: str, suffix: str = "") -> EventFile:
    """Open a new file in a folder, which is made if it is missing.

    Args:
        logdir: Path or fsspec URL.
        suffix: Suffix of the file's name.

    Raises:
        ConfigurationError: No file system supports such URLs, or its package is not installed.
        OSError: The file system refused.
    """
    try:
        folder = open_folder(logdir)
    except (ValueError, ImportError) as error:
        raise ConfigurationError(
            f"event files cannot be written to {logdir!r}: {error}", path=logdir
        ) from error
    folder.make()
    host = socket.gethostname().replace("/", "-")
    name = f"events.out.tfevents.{int(time.time()):010d}.{host}.{os.getpid()}.{next(_number)}"
    if isinstance(folder, LocalFolder):
        return _GrowingFile(folder, f"{name}{suffix}")
    return _Parts(folder, name, suffix)


class _GrowingFile:
    def __init__(self, folder: Folder, name: str) -> None:
        self._open = contextlib.ExitStack()
        self._stream: IO[bytes] = self._open.enter_context(folder.create(name))
        self.write([version_event()])
        self.flush()

    def write(self, events: Sequence[bytes]) -> None:
        self._stream.write(b"".join(map(record_of, events)))

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._open.close()


class _Parts:
    def __init__(self, folder: Folder, name: str, suffix: str) -> None:
        self._folder, self._name, self._suffix = folder, name, suffix
        self._written = 0
        self._records: list[bytes] = []

    def write(self, events: Sequence[bytes]) -> None:
        self._records += map(record_of, events)

    def flush(self) -> None:
        if not self._records:
            return
        data = b"".join([record_of(version_event()), *self._records])
        self._folder.put(f"{self._name}.{self._written:06d}{self._suffix}", data)
        self._written += 1
        self._records.clear()

    def close(self) -> None:
        self.flush()
