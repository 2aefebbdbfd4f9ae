"""Chiefs of this machine: how ``ropewalk status`` finds them.

A chief binds a Unix socket without a file, whose name has its address and its user's id. Linux
lists such names in ``/proc/net/unix`` and forgets them with the process, however that ends: nothing
has to be cleaned up. They belong to a network namespace; elsewhere than on Linux there are none.
"""

import contextlib
import os
import socket
from pathlib import Path

_PREFIX = "ropewalk-chief"
_NAMES = Path("/proc/net/unix")


class ChiefAnnouncement:
    """Lets this user's ``ropewalk status`` on this machine find a chief, until it is closed.

    A system that cannot do that announces nothing.

    Args:
        address: The chief's, host:port.
    """

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(f"\0{_PREFIX}|{os.getuid()}|{address}")
        except OSError:
            self._socket.close()

    def close(self) -> None:
        """Announce it no longer. Idempotent."""
        self._socket.close()


def announced_chiefs() -> list[str]:
    """List the addresses of this user's chiefs on this machine."""
    addresses: set[str] = set()
    with contextlib.suppress(OSError):
        for line in _NAMES.read_text(errors="replace").splitlines():
            prefix, *rest = line.rpartition(" @")[2].split("|")
            if prefix == _PREFIX and len(rest) == 2 and rest[0] == str(os.getuid()):
                addresses.add(rest[1])
    return sorted(addresses)
