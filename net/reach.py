"""Reaching a peer over the best connection there is.

The peer's one port is tried first. If it does not answer our greeting, a proxy that only knows
HTTP/2 may be in between (a mesh, an ingress), and a tunnel is tried. On one machine the session
then moves to a Unix socket, where memory can be shared.
"""

import logging
import time
from dataclasses import dataclass, replace

from ..core.errors import RopewalkError
from ..core.settings import Settings
from ..proto.v1 import session_pb2
from .connection import Connection
from .connection_choice import ConnectionChoice, Findings, choose_connection
from .dial import Dialer
from .shared_memory import unavailable
from .tls.stream import TlsStream

log = logging.getLogger(__name__)

_UPGRADE_TIMEOUT_S = 2.0  # for the greeting over a better connection: there is one that works
_LATE_S = 0.2  # for a greeting that was late, once the peer has answered through a tunnel
_LEAST_S = 0.1

_Greeted = tuple[Connection, session_pb2.Welcome]


@dataclass(frozen=True, slots=True)
class Reached:
    """A connection to a peer.

    Attributes:
        connection: Greeted.
        welcome: The peer's answer.
        choice: Kind of the connection, and the reason for it.
    """

    connection: Connection
    welcome: session_pb2.Welcome
    choice: ConnectionChoice


def reach(
    dialer: Dialer,
    settings: Settings,
    timeout_s: float,
    *,
    peer: str,
) -> Reached:
    """Open the best connection to a peer.

    Args:
        dialer: Dials it.
        settings: Settings that say which connections may be used.
        timeout_s: Longest time for the whole call. Unit: seconds.
        peer: The peer's name, for messages.

    Raises:
        PeerLostError: It cannot be reached.
        RopewalkError: It refused.
    """
    deadline = time.monotonic() + timeout_s
    findings = Findings(
        wants_tcp=settings.tcp_sessions,
        wants_memory=settings.shared_memory,
        memory_obstacle=unavailable() if settings.shared_memory else "",
    )
    if settings.tcp_sessions:
        first, findings = _greet_port(dialer, findings, deadline)
    else:
        first = _open_tunnel(dialer, deadline, "")
    reached = first
    if settings.shared_memory:
        better, failure = _upgrade_to_unix(dialer, reached[1], deadline)
        offered = bool(reached[1].unix_sockets)
        findings = replace(findings, unix_offered=offered, unix_failure=failure)
        if better is not None:
            reached[0].close()
            reached = better
            stream = better[0].stream
            if not stream.passes_files and not findings.memory_obstacle:
                obstacle = f"no files can be handed over on {stream.description}"
                findings = replace(findings, memory_obstacle=obstacle)
    choice = choose_connection(findings)
    report_choice(peer, choice)
    return Reached(*reached, choice)


def _greet_port(dialer: Dialer, findings: Findings, deadline: float) -> tuple[_Greeted, Findings]:
    """Greet the peer's port, or a tunnel if none of our tasks answers there."""
    try:
        connection = dialer.tcp(_left(deadline))
    except OSError as error:  # the port answers, but does not begin TLS with us
        failure = f"its port does not begin TLS: {error}"
        return _open_tunnel(dialer, deadline, failure), replace(findings, tcp_failure=failure)
    stream = connection.stream
    findings = replace(
        findings, is_local=stream.is_local, encrypts=stream.description == TlsStream.description
    )
    timeout_s = _left(deadline) / 2
    try:
        shown = dialer.send_hello(connection, timeout_s)
        return (connection, dialer.read_welcome(connection, timeout_s, shown)), findings
    except TimeoutError:
        # A mesh that waits for HTTP/2, or a busy peer, which takes as long with both.
        failure = f"its port did not greet within {timeout_s:.1f} s"
        try:
            tunnel = _open_tunnel(dialer, deadline, failure)
            try:
                late = connection, dialer.read_welcome(connection, _LATE_S, shown)
            except OSError:
                connection.cancel()
                connection.close()
                return tunnel, replace(findings, tcp_failure=failure, is_local=False)
        except BaseException:
            connection.cancel()
            connection.close()
            raise
        tunnel[0].close()
        return late, findings
    except OSError as error:
        connection.cancel()
        connection.close()
        failure = f"its port does not greet: {error}"
        tunnel = _open_tunnel(dialer, deadline, failure)
        return tunnel, replace(findings, tcp_failure=failure, is_local=False)
    except BaseException:
        connection.cancel()
        connection.close()
        raise


def _open_tunnel(dialer: Dialer, deadline: float, failure: str) -> _Greeted:
    try:
        connection = dialer.tunnel(_left(deadline))
        return connection, dialer.greet(connection, _left(deadline))
    except OSError as error:
        dialer.check_tls()
        raise dialer.lost("connect", failure or error) from error


def _left(deadline: float) -> float:
    return max(_LEAST_S, deadline - time.monotonic())


def report_choice(peer: str, choice: ConnectionChoice) -> None:
    """Log a choice; as a warning if a faster connection was to be expected."""
    if choice.is_degraded:
        log.warning("%s is reached over %s only: %s", peer, choice.kind, choice.reason)
    else:
        log.debug("%s is reached over %s", peer, choice.description)


def _upgrade_to_unix(
    dialer: Dialer, welcome: session_pb2.Welcome, deadline: float
) -> tuple[_Greeted | None, str]:
    """Connect over one of the peer's Unix sockets; otherwise return the reason why not."""
    failure = ""
    for name in welcome.unix_sockets:
        try:
            connection = dialer.unix(name)
            answer = dialer.greet(
                connection, min(_UPGRADE_TIMEOUT_S, _left(deadline)), welcome.unix_ticket
            )
            if answer.instance == welcome.instance:
                return (connection, answer), ""
            connection.close()
            raise ConnectionError(
                f"another process has {name}; give each job a socket_dir of its own"
            )
        except (OSError, RopewalkError) as error:
            # The first failure is reported: the other sockets are for special mounts.
            failure = failure or f"no Unix socket of it can be used: {error}"
    return None, failure
