"""Temporary folders that outlive nobody for long: one that a killed process left is removed by the
next process that makes one of its kind, in the background.
"""

import errno
import fcntl
import os
import tempfile
from pathlib import Path

from .remover import Remover
from .tree_removal import open_folder

_REMOVE_S = 5.0  # for which the end of a process waits; the next one goes on
_TRIES = 10  # another process may take a new folder for left, before it is locked

_remover = Remover()


class TemporaryFolder:
    """A folder of this process and this user alone, with a lock that ends with the process.

    Args:
        kind: Begins its name, e.g. ``"windlass-node"``.

    Attributes:
        path: Of the folder.

    Raises:
        OSError: No folder can be made, or the file system knows no locks.
    """

    def __init__(self, kind: str) -> None:
        _remover.add(lambda: _remove_left(kind))
        for _ in range(_TRIES):
            self.path = Path(tempfile.mkdtemp(prefix=f"{kind}-"))
            self._lock = _locked(self.path)
            if self._lock >= 0:
                return
        raise OSError(errno.ENOLCK, "folders cannot be locked", tempfile.gettempdir())

    def discard(self, path: Path) -> None:
        """Delete a folder in it with all that is in it, in the background."""
        _remover.remove(path)

    def remove(self, timeout_s: float = _REMOVE_S) -> None:
        """Delete it with all that is in it. Idempotent.

        Args:
            timeout_s: So long it is waited for; it goes on in the background, and what the end of
                the process leaves is removed by the next one. Unit: seconds.
        """
        lock, self._lock = self._lock, -1
        if lock >= 0:
            _remover.remove(self.path, then=lambda: os.close(lock)).wait(timeout_s)


def _remove_left(kind: str) -> bool:
    """Delete folders of that kind that no living process holds."""
    for path in Path(tempfile.gettempdir()).glob(f"{kind}-*"):
        lock = _locked(path)
        if lock >= 0:
            _remover.remove(path, then=lambda lock=lock: os.close(lock))  # type: ignore[misc]
    return True


def _locked(path: Path) -> int:
    """The folder opened and locked; -1: it is in use, gone or another user's."""
    try:
        found = open_folder(path)
    except OSError:
        return -1
    try:
        status = os.fstat(found)
        if status.st_uid == os.getuid():
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(status, path.lstat()):
                return found
    except OSError:
        pass
    os.close(found)
    return -1
