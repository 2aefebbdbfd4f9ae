"""Sockets: TCP between machines, and Unix sockets, over which processes of one machine can pass
open files.

The parent process of a container's task holds a port for probes without anything else of ``net``.
"""

import contextlib
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from ..core.errors import RefusedError
from ..core.settings import take_environment
from .stream import READ_BYTES, SocketStream

CONNECT_TIMEOUT_S = 2.0

# A machine that vanished is noticed within 25 s. Not TCP_USER_TIMEOUT, which ends connections to a
# live peer that does not read: a worker may compute for minutes before it reads an answer.
_OPTIONS = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

HELD_PORT = "ROPEWALK_HEALTH_FD"
"""Variable with the number of the socket that the parent process keeps open."""

_PROBE_BACKLOG = 64  # five minutes of probes that nobody takes
_MAX_DESCRIPTORS = 16  # received and not taken yet
_DESCRIPTOR = struct.Struct("i")

Connect = Callable[[float], socket.socket]
"""Connects to a task within so many seconds; raises OSError."""

routed: dict[str, Connect] = {}
"""Addresses that are reached otherwise than by dialling them: see
:func:`~ropewalk.net.routes.open_routes`.
"""


def tcp_stream(connection: socket.socket) -> SocketStream:
    """Make the stream over a connected TCP socket, which sends at once and notices a lost peer.

    Raises:
        OSError: The connection is broken.
    """
    connection.settimeout(None)
    notice_loss(connection)
    here = connection.getsockname()[0] == connection.getpeername()[0]
    return SocketStream(connection, "tcp", is_local=here)


def notice_loss(connection: socket.socket) -> None:
    """Have a TCP socket send at once and notice a lost peer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if hasattr(socket, name):  # systems differ in what they offer
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` into host and port; an IPv6 host stands in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def connect_tcp(address: str, timeout_s: float = CONNECT_TIMEOUT_S) -> SocketStream:
    """Connect to ``host:port``.

    Raises:
        OSError: The connection is refused, the name is not known, or nothing answers in time.
    """
    connection = _connect(address, timeout_s)
    try:
        return tcp_stream(connection)
    except OSError:
        connection.close()
        raise


def is_listening(address: str, timeout_s: float) -> bool:
    """Return whether ``host:port`` accepts connections. Nothing is sent."""
    return _failure_to_connect(address, timeout_s) is None


def is_refused(address: str, timeout_s: float) -> bool:
    """Return whether the machine of ``host:port`` says that nothing listens there. Nothing is
    sent.
    """
    return isinstance(_failure_to_connect(address, timeout_s), ConnectionRefusedError)


def _failure_to_connect(address: str, timeout_s: float) -> OSError | None:
    try:
        _connect(address, timeout_s).close()
    except OSError as error:
        return error
    return None


def _connect(address: str, timeout_s: float) -> socket.socket:
    connect = routed.get(address)
    if connect is not None:
        return connect(timeout_s)
    return socket.create_connection(split_address(address), timeout_s)


def listen_tcp(host: str, port: int, backlog: int) -> socket.socket:
    """Open a TCP socket that listens.

    Args:
        host: An address or name of this machine; ``0.0.0.0``: every interface, IPv6 included.
        port: 0: any free one.
        backlog: Number of connections that the system keeps until they are accepted.

    Raises:
        OSError: The port is taken, or the host is not this machine.
    """
    if host == "0.0.0.0":  # noqa: S104 - asked for
        with contextlib.suppress(OSError):  # without IPv6
            return listen_tcp("::", port, backlog)
    candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # A name may stand for several addresses; clients try all of them.
    family, kind, protocol, _, address = min(
        candidates, key=lambda candidate: candidate[0] != socket.AF_INET
    )
    listener = socket.socket(family, kind, protocol)
    try:
        # The port of a process that just ended may be used again; one that is in use may not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        listener.bind(address)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


class UnixStream(SocketStream):
    """A connected Unix socket, over which open files can be passed to the other process.

    Args:
        connection: Owned from now on; blocking.
    """

    passes_files = True

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection, "unix", is_local=True)
        self._descriptors: deque[int] = deque()

    def send_with_descriptor(self, data: bytes, descriptor: int, deadline: float) -> None:
        """Send bytes and an open file."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(descriptor))]
        sent = 0
        while not sent:
            try:
                sent = self._socket.sendmsg([data], rights, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._sleep(select.POLLOUT, deadline - time.monotonic())
        self.send(data[sent:], deadline)

    def take_descriptor(self) -> int:
        """Take the next open file that was received."""
        if not self._descriptors:
            raise RefusedError("the peer handed over no file with its message")
        return self._descriptors.popleft()

    def close(self) -> None:
        """Close the socket, and files that were not taken."""
        super().close()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    # A plain recv over a message with a descriptor would close it.

    def _try_receive(self) -> bytes | None:
        self._raise_if_cancelled()
        try:
            data, rights, flags, _ = self._socket.recvmsg(READ_BYTES, _ROOM, _FLAGS)
        except BlockingIOError:
            return None
        if rights or flags & socket.MSG_CTRUNC:
            self._keep(rights, flags)
        return data

    def _try_receive_into(self, target: memoryview) -> int | None:
        self._raise_if_cancelled()
        try:
            count, rights, flags, _ = self._socket.recvmsg_into([target], _ROOM, _FLAGS)
        except BlockingIOError:
            return None
        if rights or flags & socket.MSG_CTRUNC:
            self._keep(rights, flags)
        return count

    def _keep(self, rights: Sequence[tuple[int, int, bytes]], flags: int) -> None:
        for level, kind, data in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                whole = len(data) - len(data) % _DESCRIPTOR.size
                self._descriptors.extend(n for (n,) in _DESCRIPTOR.iter_unpack(data[:whole]))
        if flags & socket.MSG_CTRUNC or len(self._descriptors) > _MAX_DESCRIPTORS:
            raise ConnectionError(
                f"more than {_MAX_DESCRIPTORS} open files came that no message speaks of"
            )


_ROOM = socket.CMSG_SPACE(_MAX_DESCRIPTORS * _DESCRIPTOR.size)
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC


def peer_user(connection: socket.socket) -> int:
    """Find the user id of the process at the other end of a Unix socket."""
    return _peer(connection)[1]


def peer_process(descriptor: int) -> int:
    """Find the process id at the other end of a Unix socket; 0: it is not known here, or closed."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            return _peer(connection)[0]
    except OSError:
        return 0


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Process id and user id at the other end."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    process, user, _ = struct.unpack("3i", credentials)
    return int(process), int(user)


def connect_unix(name: str) -> UnixStream:
    """Connect to a Unix socket of this user.

    Raises:
        OSError: It cannot be reached from here.
        RefusedError: Another user has it.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(CONNECT_TIMEOUT_S)
        connection.connect(_system_name(name))
        user = peer_user(connection)
        if user != os.getuid():
            raise RefusedError(f"user {user} has the Unix socket {name}, we are {os.getuid()}")
        connection.settimeout(None)
    except (OSError, RefusedError):
        connection.close()
        raise
    return UnixStream(connection)


def listen_unix(name: str, backlog: int) -> socket.socket:
    """Open a Unix socket that listens. A path is made for this user alone, and replaces one left
    behind.

    Raises:
        OSError: The name is taken, or the folder cannot be written.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not name.startswith("@"):
            with contextlib.suppress(FileNotFoundError):
                Path(name).unlink()
        listener.bind(_system_name(name))
        if not name.startswith("@"):
            Path(name).chmod(0o600)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def _system_name(name: str) -> str:
    return f"\0{name[1:]}" if name.startswith("@") else name


def unix_stream(connection: socket.socket) -> UnixStream:
    """Make the stream over a connection that was accepted.

    Raises:
        PermissionError: Another user is at its other end.
    """
    user = peer_user(connection)
    if user != os.getuid():
        raise PermissionError(f"user {user} called, we are {os.getuid()}")
    return UnixStream(connection)


class HeldPort:
    """A port for probes at which nothing answers yet. Use as a context manager.

    The parent process of a container's task keeps it open while it starts the task again: the
    kernel accepts connections meanwhile, which is all that a liveness probe asks, and a question
    for readiness waits for the next task's answer, or until its time is over.

    Args:
        where: host:port.

    Attributes:
        number: Number of the open file, which a task inherits.
        variables: Environment variables by which the task knows that.

    Raises:
        OSError: The port is taken.
    """

    def __init__(self, where: str) -> None:
        self._socket = listen_for_probes(where)
        self.number = self._socket.fileno()
        self.variables = {HELD_PORT: str(self.number)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def listen_for_probes(where: str) -> socket.socket:
    """Open a TCP socket at host:port that keeps probes until they are answered.

    Raises:
        OSError: The port is taken.
    """
    return listen_tcp(*split_address(where), _PROBE_BACKLOG)


def held_port() -> socket.socket | None:
    """Take over the parent's socket; None: it keeps none."""
    number = take_environment(HELD_PORT)
    if not number.isdecimal():
        return None
    held = socket.socket(fileno=int(number))
    held.set_inheritable(False)
    return held
