"""TCP: connections between machines, and between processes that do not share memory."""

import contextlib
import socket

from .routes import connect_routed
from .stream import SocketStream

CONNECT_TIMEOUT_S = 2.0

# A machine that vanished is noticed within 25 s. Not TCP_USER_TIMEOUT, which ends connections to a
# live peer that does not read: a worker may compute for minutes before it reads an answer.
_OPTIONS = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


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
    routed = connect_routed(address, timeout_s)
    if routed is not None:
        return routed
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
