"""Temporary folders that outlive nobody for long: one that a killed process left is removed by the
next process that makes one of its kind.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path


class TemporaryFolder:
    """A folder of this process and this user alone, with a lock that ends with the process.

    Args:
        kind: Begins its name, e.g. ``"windlass-node"``.

    Attributes:
        path: Of the folder.
    """

    def __init__(self, kind: str) -> None:
        _remove_left(kind)
        self.path = Path(tempfile.mkdtemp(prefix=f"{kind}-"))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Delete it with all that is in it. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_left(kind: str) -> None:
    """Delete folders of that kind that no living process holds."""
    for path in Path(tempfile.gettempdir()).glob(f"{kind}-*"):
        try:
            found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # gone, or another user's
        try:
            if os.fstat(found).st_uid == os.getuid():
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue  # it is in use
        finally:
            os.close(found)
