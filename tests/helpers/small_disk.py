"""A small file system that a test fills; it needs ``a file system of its own``.

It is a tmpfs in the mount namespace of a process that sleeps, reached by ``/proc``: nothing is
mounted where other processes see it, and it ends with that process.
"""

import contextlib
import errno
import subprocess
from pathlib import Path

from .waiting import wait_until

_PIECE = bytes(64 * 1024)
COMMAND = ("unshare", "--map-root-user", "--mount", "sh", "-c")


class SmallDisk:
    """A file system of a few megabytes.

    Args:
        megabytes: Its size.

    Attributes:
        folder: Where it is.
    """

    def __init__(self, megabytes: int) -> None:
        mount = f"mount -t tmpfs -o size={megabytes}m none /mnt && echo mounted && exec sleep 86400"
        self._holder = subprocess.Popen([*COMMAND, mount], stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "mounted\n"
        self.folder = Path(f"/proc/{self._holder.pid}/root/mnt")
        self._ballast = self.folder / "ballast"

    def fill(self) -> None:
        """Leave no room."""
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while file.write(_PIECE):
                pass
        assert self.is_full()

    def is_full(self) -> bool:
        """Whether nothing can be written."""
        probe = self.folder / "probe"
        try:
            probe.write_bytes(_PIECE)
        except OSError as error:
            return error.errno == errno.ENOSPC
        finally:
            probe.unlink(missing_ok=True)
        return False

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)
        wait_until(lambda: not self.is_full(), 5)

    def close(self) -> None:
        """Give up the file system."""
        self._holder.kill()
        self._holder.communicate(timeout=10)
