"""Chiefs of this machine: how ``windlass status`` finds them.

A chief binds a Unix socket without a file, whose name has its address and its user's id. Linux
lists such names in ``/proc/net/unix`` and forgets them with the process, however that ends: nothing
has to be cleaned up. They belong to a network namespace; elsewhere than on Linux there are none.
"""

import contextlib
import os
import socket
from pathlib import Path

_PREFIX = "windlass-chief"
_NAMES = Path("/proc/net/unix")


def announce_chief(address: str) -> socket.socket | None:
    """Let this machine's ``windlass status`` find a chief, as long as the socket is open.

    None if the system cannot do it.
    """
    announcement = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        announcement.bind(f"\0{_PREFIX}|{os.getuid()}|{address}")
    except OSError:
        announcement.close()
        return None
    return announcement


def announced_chiefs() -> list[str]:
    """Addresses of this user's chiefs on this machine."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for line in _NAMES.read_text(errors="replace").splitlines():
            prefix, *rest = line.rpartition(" @")[2].split("|")
            if prefix == _PREFIX and len(rest) == 2 and rest[0] == str(os.getuid()):
                found.add(rest[1])
    return sorted(found)
