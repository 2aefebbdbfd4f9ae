"""Ports, open files, the address and the chiefs of this machine.

A port is free until its server binds it. Until then a Unix socket with the port's number in its
name reserves it against other launchers. A chief binds such a socket with its address and its
user's id, by which ``ropewalk status`` finds it: Linux lists the names in ``/proc/net/unix``. They
disappear with their process, however that ends, and like ports belong to a network namespace.

Each connection costs a descriptor. Without a reserve, strangers that connect and send nothing would
take the last one, and then no checkpoint could be written.
"""

import contextlib
import os
import resource
import socket
import threading
import time
from collections import deque
from pathlib import Path

from ..core.errors import AddressInUseError

_MAX_RESERVED_PORTS = 64
_FIRST, _PORTS = 20_000, 12_000  # below the range that connections of clients get ports from
_MOST_FILES = 65_536
_RESERVED_FILES = 128  # for checkpoints, logs, shared memory and connections of our own
_CHIEF = "ropewalk-chief"
_UNIX_NAMES = Path("/proc/net/unix")

_reserved: deque[int] = deque()  # descriptors, which the end of the process closes
_reserving = threading.Lock()


def free_ports(count: int, *, begin: int | None = None) -> list[int]:
    """Free ports outside the range from which the system takes ports of outgoing connections.

    No other process of this machine gets one of these ports from here as long as this process lives
    and has asked for no more than 64 others. Thread-safe.

    Args:
        count: Number of ports.
        begin: Number, in the range, with which the search begins. None: each process and moment has
            another one.

    Raises:
        AddressInUseError: There are not so many.
    """
    if begin is None:
        begin = (os.getpid() * 37 + time.time_ns() // 1000) % 10_000
    ports: list[int] = []
    for offset in range(_PORTS):
        port = _FIRST + (begin + offset) % _PORTS
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
        _reserved.append(reservation.detach())
        if len(_reserved) > _MAX_RESERVED_PORTS:
            os.close(_reserved.popleft())
    return True


def raise_limit() -> int:
    """Raise the limit of open files as far as allowed, up to 65,536; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else _MOST_FILES
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # not allowed here
        return soft
    return wanted


def has_spare(descriptor: int) -> bool:
    """Return whether more descriptors are free than the reserve, judged by one that was just
    opened.

    The kernel assigns the lowest free number, which therefore tells how many are in use.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft == resource.RLIM_INFINITY or descriptor < soft - min(_RESERVED_FILES, soft // 4)


def most_silent_connections(wanted: int) -> int:
    """Limit the connections that may be silent, such that most descriptors stay free."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 8))


def most_grpc_connections(wanted: int) -> int:
    """Limit the connections of gRPC, such that half of the descriptors stay free."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft // 2))


def own_host_towards(address: str) -> str:
    """Find the address of this machine on the way to another one; nothing is sent.

    Args:
        address: The other machine's, ``host:port``.

    Returns:
        An IP address, in brackets for version 6; ``127.0.0.1`` if the other machine's name is not
        known or there is no route to it.
    """
    host, _, port = address.rpartition(":")
    try:
        family, kind, *_, there = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)
            found = str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
    return f"[{found}]" if ":" in found else found


class ChiefAnnouncement:
    """Lets this user's ``ropewalk status`` on this machine find a chief, until it is closed.

    A system that cannot do that announces nothing.

    Args:
        address: The chief's, host:port.
    """

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(f"\0{_CHIEF}|{os.getuid()}|{address}")
        except OSError:
            self._socket.close()

    def close(self) -> None:
        """Announce it no longer. Idempotent."""
        self._socket.close()


def announced_chiefs() -> list[str]:
    """List the addresses of this user's chiefs on this machine."""
    addresses: set[str] = set()
    with contextlib.suppress(OSError):
        for line in _UNIX_NAMES.read_text(errors="replace").splitlines():
            prefix, *rest = line.rpartition(" @")[2].split("|")
            if prefix == _CHIEF and len(rest) == 2 and rest[0] == str(os.getuid()):
                addresses.add(rest[1])
    return sorted(addresses)
