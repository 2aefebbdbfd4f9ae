"""Dialling: a greeted connection to a task, over the best way there is.

The task's one port is tried first. If it does not answer our greeting, a proxy that only knows
HTTP/2 may be in between (a mesh, an ingress), and a tunnel is tried. On one machine the session
then moves to a Unix socket, where memory can be shared.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from ..cluster.access import principal_of_task
from ..core.errors import (
    AccessError,
    ConfigurationError,
    LimitExceededError,
    PeerLostError,
    RefusedError,
    RopewalkError,
)
from ..core.process.events import event
from ..core.settings import Settings
from ..core.task import Incarnation, TaskId
from ..core.versions import check_protocol, own_versions
from ..core.wire import codec
from ..core.wire.error_table import from_detail
from ..proto.v1 import session_pb2
from .auth.credentials import SecurityMode, credentials_for, dialled_address, security_mode
from .auth.tls_files import credential_files
from .auth.tls_handshake import PROBE_TIMEOUT_S, TlsClient
from .auth.tls_stream import TlsStream
from .connection import MAGIC, Connection
from .connection_choice import ConnectionChoice, Findings, choose_connection
from .shared_memory import unavailable
from .sockets import CONNECT_TIMEOUT_S, connect_tcp, connect_unix
from .stream import NEVER, ByteStream
from .tunnel import METHOD, open_tunnel

_REFUSAL_BYTES = 64 * 1024
_UPGRADE_TIMEOUT_S = 2.0  # for the greeting over a better connection: there is one that works
_LATE_S = 0.2  # for a greeting that was late, once the peer has answered through a tunnel
_LEAST_S = 0.1

_Greeted = tuple[Connection, session_pb2.Welcome]

_M = TypeVar("_M", bound=Message)

WrapStream = Callable[[ByteStream], ByteStream]
"""A wrapper for tests: puts a stream in between that cuts, delays or drops bytes."""


class Dialer:
    """Dials one task, for one service.

    Args:
        address: The task's, host:port.
        peer: The task's name, for messages.
        hello: The greeting; its versions and bounds are filled in.
        who: The caller.
        settings: Settings, for the bounds.
        wrap: Wraps every stream.
        task: The task that the certificate must name; None: any task of the job.
    """

    def __init__(
        self,
        address: str,
        peer: str,
        hello: session_pb2.Hello,
        who: Incarnation,
        settings: Settings,
        wrap: WrapStream = lambda stream: stream,
        task: TaskId | None = None,
    ) -> None:
        self._address = dialled_address(settings, address)
        self._tls = tls_client(address, peer, settings, task, who.job)
        self._peer = peer
        self._settings = settings
        self._wrap = wrap
        self._credentials = credentials_for(settings, address, principal_of_task(who.task, who.job))
        self._operation = f"session {hello.service}"
        self.hello = hello
        hello.versions.CopyFrom(codec.versions_to_wire(own_versions()))
        hello.max_message_bytes = settings.max_message_bytes
        getattr(hello, "from").CopyFrom(codec.incarnation_to_wire(who))

    def tcp(self, timeout_s: float) -> Connection:
        """Connect over TCP, through TLS if the mode encrypts, without a greeting yet.

        Raises:
            PeerLostError: The connection is refused, or nothing answers.
            OSError: It is accepted, and the TLS handshake fails: it may not be one of our tasks.
            UnauthenticatedError: One of the two sides refuses the other one's certificate.
            PermissionDeniedError: It is another task.
        """
        deadline = time.monotonic() + timeout_s
        try:
            stream = connect_tcp(self._address, timeout_s)
            if self._tls is None:
                return self._begin(stream, deadline)
            _say_magic(stream, deadline)
        except OSError as error:
            raise self.lost("connect", error) from error
        # Half of the time: a mesh that only knows HTTP/2 says nothing, and a tunnel is tried then.
        secured = self._tls.connect(stream, time.monotonic() + (deadline - time.monotonic()) / 2)
        return self._connection(self._wrap(secured))

    def check_tls(self) -> None:
        """Look for a reason in TLS why the peer cannot be reached.

        Raises:
            AccessError: There is one.
        """
        if self._tls is not None:
            find_refusal(self._tls, self._address)

    def unix(self, name: str) -> Connection:
        """Connect over a Unix socket, without a greeting yet.

        Raises:
            OSError: It cannot be reached from here.
            RefusedError: Another user has it.
        """
        return self._begin(connect_unix(name), time.monotonic() + CONNECT_TIMEOUT_S)

    def tunnel(self, timeout_s: float) -> Connection:
        """Open a tunnel, without a greeting yet.

        Raises:
            OSError: The connection is refused, or the TLS handshake fails.
            UnauthenticatedError: One of the two sides refuses the other one's certificate.
            PermissionDeniedError: It is another task.
        """
        deadline = time.monotonic() + timeout_s
        plain = connect_tcp(self._address, timeout_s)
        stream = plain if self._tls is None else self._tls.connect(plain, deadline)
        tunnel = open_tunnel(
            stream,
            self._address,
            self._credentials.authorization(METHOD),
            self._settings.chunk_bytes,
            deadline,
        )
        return self._connection(self._wrap(tunnel))

    def greet(
        self, connection: Connection, timeout_s: float, unix_ticket: bytes = b""
    ) -> session_pb2.Welcome:
        """Send the greeting and read the answer. The connection is closed if that fails.

        Args:
            connection: Not greeted yet.
            timeout_s: Longest time for sending and reading. Unit: seconds.
            unix_ticket: Ticket from the welcome that named this Unix socket.

        Raises:
            OSError: The connection broke, or no answer came in time: the server may not be ours.
            RopewalkError: The server's refusal.
            ProtocolMismatchError: It speaks another protocol.
        """
        try:
            shown = self.send_hello(connection, timeout_s, unix_ticket)
            return self.read_welcome(connection, timeout_s, shown)
        except BaseException:
            connection.cancel()
            connection.close()
            raise

    def send_hello(self, connection: Connection, timeout_s: float, unix_ticket: bytes = b"") -> str:
        """Send the greeting.

        Returns:
            Authorization that was sent, for :meth:`read_welcome`.

        Raises:
            OSError: The connection is broken.
        """
        connection.deadline = time.monotonic() + timeout_s
        self.hello.authorization = self._credentials.authorization(self._operation)
        self.hello.unix_ticket = unix_ticket
        connection.send([session_pb2.ClientMessage(hello=self.hello).SerializeToString()])
        return self.hello.authorization

    def read_welcome(
        self, connection: Connection, timeout_s: float, shown: str
    ) -> session_pb2.Welcome:
        """Read the answer to the greeting. After a timeout the call may be repeated.

        Args:
            connection: The greeting was sent on it.
            timeout_s: Unit: seconds.
            shown: Authorization that :meth:`send_hello` returned for this connection: the answer
                must prove the same key for that greeting, and another may have been sent elsewhere
                since.

        Raises:
            TimeoutError: None came.
            OSError: The connection broke, or the server is not one of our tasks.
            RopewalkError: The server's refusal.
            ProtocolMismatchError: It speaks another protocol.
        """
        connection.deadline = time.monotonic() + timeout_s
        try:
            data = connection.receive()
            if data is None:
                raise ConnectionError("it closed the connection")
            message = parse(session_pb2.ServerMessage, data)
        except (LimitExceededError, RefusedError) as error:
            raise ConnectionError(f"what answers is not Ropewalk: {error.message}") from error
        if message.WhichOneof("kind") == "failure":
            failure = from_detail(message.failure)
            self._credentials.check_refusal(failure)
            raise failure
        welcome = message.welcome
        if not welcome.HasField("versions"):
            raise ConnectionError("the answer to the greeting is no Welcome")
        theirs = codec.versions_from_wire(welcome.versions)
        check_protocol(own_versions(), theirs, peer=self._peer)
        self._credentials.check_answer(self._operation, shown, welcome.authorization)
        connection.deadline = NEVER
        if welcome.max_message_bytes:
            connection.stream.limit_messages(welcome.max_message_bytes)
        return welcome

    def lost(self, doing: str, error: object) -> PeerLostError:
        """Make the error for a peer that cannot be reached, or whose connection broke."""
        reason = getattr(error, "strerror", None) or str(error)
        return PeerLostError(f"{doing}: {self._peer} cannot be reached: {reason}", peer=self._peer)

    def _begin(self, stream: ByteStream, deadline: float) -> Connection:
        try:
            stream = self._wrap(stream)
            _say_magic(stream, deadline)
        except OSError:
            stream.close()
            raise
        return self._connection(stream)

    def _connection(self, stream: ByteStream) -> Connection:
        return Connection(stream, self._settings.max_message_bytes, self._peer)


def _say_magic(stream: ByteStream, deadline: float) -> None:
    try:
        stream.send(MAGIC, deadline)
    except OSError:
        stream.close()
        raise


def tls_client(
    address: str, peer: str, settings: Settings, task: TaskId | None = None, job: str = ""
) -> TlsClient | None:
    """Make the TLS client for a task; None: this process dials in plaintext.

    Args:
        address: The task's, host:port.
        peer: The task's name, for messages.
        settings: Name the files.
        task: The task that the certificate must name; None: any.
        job: The job that it must name; empty: any.

    Raises:
        ConfigurationError: No way to authenticate is set, or no CA.
    """
    mode = security_mode(settings, address)
    if not mode.encrypts:
        return None
    if not settings.tls_ca:
        raise ConfigurationError(
            f"{peer} is reached through TLS, so tls_ca (--tls-ca, ROPEWALK_TLS_CA) is needed: who "
            "signs the certificates of this cluster; those of the system's are not taken"
        )
    files = credential_files(settings, mutual=mode is SecurityMode.MTLS)
    return TlsClient(files, address, peer, task, job)


def find_refusal(client: TlsClient, address: str, timeout_s: float = PROBE_TIMEOUT_S) -> None:
    """Raise the reason for which a TLS handshake with a task fails, if it does.

    After a failed handshake gRPC only reports that the peer is not available.

    Raises:
        AccessError: The handshake fails, and trying again would fail again.
    """
    deadline = time.monotonic() + timeout_s
    try:
        stream = connect_tcp(address, timeout_s)
        _say_magic(stream, deadline)
        secured = client.connect(stream, deadline)
        with contextlib.closing(Connection(secured, _REFUSAL_BYTES, address)) as connection:
            # A server checks our certificate when our side of the handshake is over already.
            secured.end()
            connection.deadline = deadline
            receive_message(connection)
    except AccessError:
        raise
    except (OSError, RopewalkError):  # it closes, as expected, or cannot be reached
        return


def receive_message(connection: Connection) -> session_pb2.ServerMessage:
    """Receive the next message of a server.

    Raises:
        OSError: The connection is broken, or was closed.
        RopewalkError: The error with which the server ended the session.
        RefusedError: The message cannot be parsed.
    """
    data = connection.receive()
    if data is None:
        raise ConnectionError("it closed the connection")
    message = parse(session_pb2.ServerMessage, data)
    if message.WhichOneof("kind") == "failure":
        raise from_detail(message.failure)
    return message


def parse(kind: type[_M], data: bytes | memoryview) -> _M:
    """Parse a message of a connection.

    Raises:
        RefusedError: It cannot be parsed.
    """
    try:
        return kind.FromString(bytes(data))
    except DecodeError as error:
        raise RefusedError(f"a {kind.__name__} cannot be read: {error}") from error


log = logging.getLogger(__name__)


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
        slow = event("connection.slow", peer=peer, kind=choice.kind, reason=choice.reason)
        log.warning("%s is reached over %s only: %s", peer, choice.kind, choice.reason, extra=slow)
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
