"""Ports for tasks that are about to start on this machine.

A port is free until its server binds it. Until then a Unix socket with the port's number in its
name reserves it against other launchers: the name disappears with this process, and like ports it
belongs to a network namespace.
"""

import os
import socket
import threading
import time
from collections import deque

from ..core.errors import AddressInUseError

_MAX_RESERVED_PORTS = 64
_FIRST, _PORTS = 20_000, 12_000  # below the range that connections of clients get ports from

_reserved: deque[socket.socket] = deque()
_reserving = threading.Lock()


def free_ports(count: int) -> list[int]:
    """Free ports outside the range from which the system takes ports of outgoing connections.

    No other process of this machine gets one of these ports from here as long as this process lives
    and has asked for no more than 64 others. Thread-safe.

    Raises:
        AddressInUseError: There are not so many.
    """
    start = (os.getpid() * 37 + time.time_ns() // 1000) % 10_000
    ports: list[int] = []
    for offset in range(_PORTS):
        port = _FIRST + (start + offset) % _PORTS
        if not _reserve(port):
            continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise AddressInUseError(f"no {count} free ports between {_FIRST} and {_FIRST + _PORTS}")


def _reserve(port: int) -> bool:
    """Reserve a port against other launchers; False if it is taken."""
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        reservation.bind(f"\0ropewalk-port-{port}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        reservation.close()
        return False
    with _reserving:
        _reserved.append(reservation)
        if len(_reserved) > _MAX_RESERVED_PORTS:
            _reserved.popleft().close()
    return True
