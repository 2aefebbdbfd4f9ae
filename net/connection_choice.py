"""Choice of the connection of a session, and the reason for it. Pure.

Shared memory is fastest, then a Unix socket, TCP, TLS, and a tunnel through gRPC. What could be
used is found out by trying; this says what the findings mean, for the status and for a warning.
"""

from dataclasses import dataclass
from enum import StrEnum, auto


class ConnectionKind(StrEnum):
    """Kind of a connection, from the fastest to the slowest."""

    SHARED_MEMORY = "shm"
    UNIX = auto()
    TCP = auto()
    TLS = auto()
    GRPC = auto()


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings about the ways to a peer.

    Attributes:
        wants_tcp: The setting ``tcp_sessions``.
        tcp_failure: Why the peer's port does not answer our greeting; empty: it does.
        is_local: The peer is on this machine, as far as the connection tells.
        wants_memory: The setting ``shared_memory``.
        memory_obstacle: Why memory cannot be shared; empty: it can.
        unix_offered: The peer has Unix sockets.
        unix_failure: Why none of them can be used; empty: one is, or none was tried.
        encrypts: The port answers over TLS.
    """

    wants_tcp: bool = True
    tcp_failure: str = ""
    is_local: bool = False
    wants_memory: bool = True
    memory_obstacle: str = ""
    unix_offered: bool = False
    unix_failure: str = ""
    encrypts: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionChoice:
    """A connection and the reason for it.

    Attributes:
        kind: Kind of the connection.
        reason: Why not something faster; empty if nobody would expect that.
        is_degraded: Whether something faster was to be expected: a warning says the reason.
    """

    kind: ConnectionKind
    reason: str = ""
    is_degraded: bool = False

    @property
    def description(self) -> str:
        """Description for the status: ``tcp (connection refused)``."""
        return f"{self.kind} ({self.reason})" if self.reason else str(self.kind)


def choose_connection(findings: Findings) -> ConnectionChoice:
    """Choose the best connection that was found, with its reason."""
    if findings.wants_memory and findings.unix_offered and not findings.unix_failure:
        if findings.memory_obstacle:
            return ConnectionChoice(ConnectionKind.UNIX, findings.memory_obstacle, is_degraded=True)
        return ConnectionChoice(ConnectionKind.SHARED_MEMORY)
    if findings.wants_tcp and not findings.tcp_failure:
        kind = ConnectionKind.TLS if findings.encrypts else ConnectionKind.TCP
        if findings.is_local and findings.wants_memory:
            off = "the peer shares no memory"
            return ConnectionChoice(
                kind,
                findings.unix_failure or off,
                is_degraded=bool(findings.unix_failure),
            )
        return ConnectionChoice(kind)
    if not findings.wants_tcp:
        return ConnectionChoice(ConnectionKind.GRPC, "tcp_sessions is off")
    return ConnectionChoice(ConnectionKind.GRPC, findings.tcp_failure, is_degraded=True)
