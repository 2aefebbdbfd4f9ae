"""Callers that show who they are, or try to: bare gRPC calls and bare greetings, for each way to
show it, without our own clients, which would hide what a server answers.
"""

import secrets
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from ropewalk.cluster.access import READER, Principal
from ropewalk.core.errors import (
    AccessError,
    OtherJobError,
    RopewalkError,
    UnauthenticatedError,
)
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.versions import own_versions
from ropewalk.core.wire import codec
from ropewalk.core.wire.error_table import from_detail, from_rpc_error
from ropewalk.net.auth import proof
from ropewalk.net.auth.credentials import AUTHORIZATION, key_of, since_boot_s
from ropewalk.net.auth.token import new_keys, sign_token
from ropewalk.net.connection import MAGIC
from ropewalk.net.tunnel import METHOD as TUNNEL
from ropewalk.proto.v1 import common_pb2, session_pb2

from .tls_files import authority, issued, tls_settings
from .waiting import scaled

TIMEOUT_S = 10.0
CA = "test CA"
LET_IN, REFUSED, UNKNOWN, NO_TLS, NO_SUCH = "x", ".", "?", "tls", "-"
"""Verdicts: let in; known, and refused; not known; no connection comes about; there is none."""


def verdict_of(error: RopewalkError | None) -> str:
    """What an answer says of whoever asked."""
    match error:
        case UnauthenticatedError():
            return UNKNOWN
        case AccessError() | OtherJobError():
            return REFUSED
    return LET_IN  # and then perhaps refused for what it asked


def frame(message: bytes, payload: bytes = b"") -> bytes:
    """A frame of a session."""
    return struct.pack("<IQ", len(message), len(payload)) + message + payload


@dataclass(frozen=True)
class Shown:
    """What somebody shows.

    Attributes:
        who: It says that it is this one.
        authorization: Authorization of a call or greeting, by operation and dialled port.
        certificate: Certificate and key, PEM; None: none.
    """

    who: Principal
    authorization: Callable[[str, int], str] = lambda operation, port: ""
    certificate: tuple[bytes, bytes] | None = None

    @property
    def incarnation(self) -> Incarnation:
        """As a sender of messages."""
        return Incarnation(TaskId(self.who.role, self.who.index or 0), 1, self.who.job)


class Way:
    """One way to show who one is, and everybody who may try.

    Args:
        mode: ``local``, ``token`` or ``mtls``.
        folder: For files.
        job: The servers' job.
    """

    def __init__(self, mode: str, folder: Path, job: str) -> None:
        self.mode = mode
        self._folder = folder
        self._job = job
        if mode == "token":
            self._signing, public = new_keys()
            (folder / "keys.pub").write_bytes(public)
        self._key_file = folder / "loopback.key"

    def settings(self, role: str, index: int = 0) -> Settings:
        """Of a server."""
        own: dict[str, Any] = {"key_file": str(self._key_file)}
        if self.mode != "local":
            own = tls_settings(role, index)
        if self.mode == "token":
            own = {**own, "token_keys": str(self._folder / "keys.pub")}
        return Settings(job_id=self._job, max_sessions=64, **own)

    def shown(self, who: Principal) -> Shown:
        """Somebody who has valid credentials."""
        if self.mode == "local":
            key = key_of(self.settings("ps"))
            return Shown(who, lambda operation, port: _proof(key, operation, port, who))
        if self.mode == "token":
            token = f"Bearer {sign_token(self._signing, who, 600)}"
            return Shown(who, lambda operation, port: token)
        made = issued(who.role, who.index, job=who.job)
        return Shown(who, certificate=(made.certificate, made.key))

    def strangers(self, who: Principal) -> dict[str, Shown]:
        """Those who say that they are ``who``, and cannot show it."""
        if self.mode == "local":
            return {"nothing": Shown(who), **self._false_proofs(who)}
        if self.mode == "token":
            other, _ = new_keys()
            tokens = {
                "other signer": sign_token(other, who, 600),
                "expired": sign_token(self._signing, who, 60, now=1_000_000_000),
                "cut": sign_token(self._signing, who, 600)[:-8],
            }
            said = {name: Shown(who, partial(_bearer, token)) for name, token in tokens.items()}
            return {"nothing": Shown(who), **said}
        names = who.role, who.index
        other_ca = issued(*names, ca="another CA", job=who.job)
        old = issued(*names, begins_in_days=-2, job=who.job)
        return {
            "nothing": Shown(who),
            "other CA": Shown(who, certificate=(other_ca.certificate, other_ca.key)),
            "expired": Shown(who, certificate=(old.certificate, old.key)),
        }

    def _false_proofs(self, who: Principal) -> dict[str, Shown]:
        key = key_of(self.settings("ps"))
        return {
            "other key": Shown(who, lambda o, p: _proof(bytes(32), o, p, who)),
            "other port": Shown(who, lambda o, p: _proof(key, o, p + 1, who)),
            "other operation": Shown(who, lambda o, p: _proof(key, "session who?", p, who)),
            "other caller": Shown(
                who,
                lambda o, p: _proof(key, o, p, Principal(READER)).replace(
                    "*/reader", f"{who.path}", 1
                ),
            ),
        }


def _bearer(token: str, _operation: str, _port: int) -> str:
    return f"Bearer {token}"


def _proof(key: bytes, operation: str, port: int, who: Principal) -> str:
    nonce = secrets.token_hex(proof.NONCE_BYTES)
    purpose = proof.Purpose(operation, f"127.0.0.1:{port}")
    return proof.ask(key, purpose, who, nonce, since_boot_s())


@dataclass
class Caller:
    """Somebody at a port.

    Attributes:
        shown: What they show.
        port: The server's port.
        encrypts: Whether it speaks TLS.
        folder: For files.
    """

    shown: Shown
    port: int
    encrypts: bool
    folder: Path
    _channel: grpc.Channel | None = field(default=None, init=False)

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *error: object) -> None:
        if self._channel is not None:
            self._channel.close()

    # -- calls -------------------------------------------------------------------------------

    @property
    def channel(self) -> grpc.Channel:
        """Of gRPC, and nothing of ours in it."""
        if self._channel is None:
            options = [("grpc.use_local_subchannel_pool", 1)]
            address = f"127.0.0.1:{self.port}"
            if not self.encrypts:
                self._channel = grpc.insecure_channel(address, options)
            else:
                certificate, key = self.shown.certificate or (None, None)
                credentials = grpc.ssl_channel_credentials(authority(CA).pem, key, certificate)
                self._channel = grpc.secure_channel(address, credentials, options)
        return self._channel

    def metadata(self, operation: str) -> list[tuple[str, str]]:
        """What comes with a call."""
        said = self.shown.authorization(operation, self.port)
        return [(AUTHORIZATION, said)] if said else []

    def call(self, operation: str, request: bytes) -> str:
        """Call a unary method, and tell what it came to."""
        stub: Any = self.channel.unary_unary(operation)
        for is_last in (False, True):
            try:
                stub(request, timeout=scaled(TIMEOUT_S), metadata=self.metadata(operation))
            except grpc.RpcError as failure:
                # A busy machine loses a connection now and then: that is no verdict on who calls.
                if failure.code() is grpc.StatusCode.UNAVAILABLE and not is_last:
                    continue
                return self._verdict(failure)
            break
        return LET_IN

    def _verdict(self, failure: grpc.RpcError) -> str:
        code = failure.code()
        if code is grpc.StatusCode.UNAVAILABLE:
            assert self.encrypts, failure
            return NO_TLS
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return NO_SUCH
        return verdict_of(from_rpc_error(failure, peer="", doing=""))

    # -- greetings -----------------------------------------------------------------------------

    def hello(self, service: str, ticket: bytes = b"", who: Incarnation | None = None) -> bytes:
        """A greeting, in a frame."""
        message = session_pb2.Hello(
            service=service,
            max_message_bytes=2**20,
            authorization=self.shown.authorization(f"session {service}", self.port),
            unix_ticket=ticket,
            ring=session_pb2.RingMember(ring=7, rank=0, size=2),
        )
        message.versions.CopyFrom(codec.versions_to_wire(own_versions()))
        sender = codec.incarnation_to_wire(who or self.shown.incarnation)
        getattr(message, "from").CopyFrom(sender)
        return frame(session_pb2.ClientMessage(hello=message).SerializeToString())

    @contextmanager
    def tcp(self) -> Iterator[socket.socket]:
        """A connection over TCP, as far as a greeting."""
        plain = socket.create_connection(("127.0.0.1", self.port), scaled(TIMEOUT_S))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.sendall(MAGIC)
        if not self.encrypts:
            with plain:
                yield plain
            return
        context = ssl.create_default_context(cadata=authority(CA).pem.decode())
        if self.shown.certificate is not None:
            certificate, key = self.shown.certificate
            folder = self.folder / secrets.token_hex(4)
            folder.mkdir()
            (folder / "crt").write_bytes(certificate)
            (folder / "key").write_bytes(key)
            context.load_cert_chain(folder / "crt", folder / "key")
        with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            yield secured

    @contextmanager
    def unix(self, name: str) -> Iterator[socket.socket]:
        """A connection over a Unix socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(scaled(TIMEOUT_S))
            connection.connect("\0" + name[1:] if name.startswith("@") else name)
            connection.sendall(MAGIC)
            yield connection

    def greet(self, connection: socket.socket, service: str, ticket: bytes = b"") -> "Heard":
        """Greet, and hear the answer."""
        connection.sendall(self.hello(service, ticket))
        return read_answer(connection)

    def greet_tcp(self, service: str) -> "Heard":
        """Greet over TCP."""
        try:
            with self.tcp() as connection:
                return self.greet(connection, service)
        except (ssl.SSLError, ConnectionError):
            return Heard(NO_TLS)

    def greet_unix(self, name: str, service: str, ticket: bytes = b"") -> "Heard":
        """Greet over a Unix socket."""
        with self.unix(name) as connection:
            return self.greet(connection, service, ticket)

    def greet_in_tunnel(self, service: str) -> "Heard":
        """Greet in a tunnel."""
        stub: Any = self.channel.stream_stream(TUNNEL)
        over = threading.Event()

        def messages() -> Iterator[bytes]:
            yield self.hello(service)
            over.wait(scaled(TIMEOUT_S))

        call = stub(messages(), timeout=scaled(TIMEOUT_S), metadata=self.metadata(TUNNEL))
        data = b""
        try:
            while len(data) < 12 or len(data) < 12 + struct.unpack_from("<I", data)[0]:
                data += next(call)
        except StopIteration:
            return Heard("closed")
        except grpc.RpcError as failure:
            return Heard(self._verdict(failure))
        finally:
            over.set()
            call.cancel()
        return _heard(data[12:])


@dataclass(frozen=True)
class Heard:
    """The answer to a greeting.

    Attributes:
        verdict: What it says.
        welcome: If there is one.
    """

    verdict: str
    welcome: session_pb2.Welcome | None = None


def read_answer(connection: socket.socket) -> Heard:
    """Read the answer to a greeting."""
    try:
        data = read_frame(connection)
    except ssl.SSLError:
        return Heard(NO_TLS)
    return _heard(data)


def read_frame(connection: socket.socket) -> bytes:
    """Read a frame's message, and drop its payload; empty: the connection is closed."""
    head = _read(connection, 12)
    if not head:
        return b""
    length, payload = struct.unpack("<IQ", head)
    message = _read(connection, length)
    _read(connection, payload)
    return message


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            return b""
        data += more
    return data


def _heard(data: bytes) -> Heard:
    if not data:
        return Heard("closed")
    message = session_pb2.ServerMessage.FromString(data)
    if message.WhichOneof("kind") == "failure":
        return Heard(verdict_of(from_detail(message.failure)))
    return Heard(LET_IN, message.welcome)


def claim(request: Any, who: Incarnation) -> bool:
    """Have a request say that it comes from a task; whether it has a sender."""
    has = False
    for each in request.DESCRIPTOR.fields:
        if each.message_type is common_pb2.Incarnation.DESCRIPTOR and each.name != "workers":
            getattr(request, each.name).CopyFrom(codec.incarnation_to_wire(who))
            has = True
        elif each.message_type is common_pb2.Task.DESCRIPTOR and each.name == "task":
            getattr(request, each.name).CopyFrom(codec.task_to_wire(who.task))
            if "job" in request.DESCRIPTOR.fields_by_name:
                request.job = who.job
            has = True
    return has


def step_frames(number: int, **fields: Any) -> bytes:
    """A layout of one entry, and a step with it."""
    entry = session_pb2.LayoutEntry(**fields)
    is_pull = entry.operation == session_pb2.OPERATION_PULL
    layout: Message = session_pb2.ClientMessage(
        layout=session_pb2.Layout(layout_id=number, entries=[entry])
    )
    payload = b"" if is_pull else struct.pack("<2f", 1, 2)
    step = session_pb2.Step(
        request_id=number,
        sequence=0 if is_pull else number,
        pull_layout=number if is_pull else 0,
        push_layout=0 if is_pull else number,
        payload_bytes=len(payload),
    )
    message = session_pb2.ClientMessage(step=step)
    return frame(layout.SerializeToString()) + frame(message.SerializeToString(), payload)
