"""What carries a session: a gRPC stream, or a socket."""

import contextlib
import logging
import os
import queue
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import grpc

from ...core.error_table import from_rpc_error
from ...core.errors import PeerLostError, RefusedError
from ...net.frame_socket import FrameSocket, SocketWriter, frame_head, peer_user, prepare_tcp
from ...net.frames import REQUEST_DATA, RESPONSE_DATA, FrameWriter, read_fields

log = logging.getLogger(__name__)

_EXCHANGE = "/windlass.proto.v1.ParameterServer/Exchange"
_CONNECT_TIMEOUT_S = 2.0
_BACKGROUND_BYTES = (
    1024 * 1024
)  # below, handing a payload to another thread costs more than it saves


class Carrier(Protocol):
    """Messages there and back, with payloads. Used by one thread at a time, but for :meth:`cancel`."""

    @property
    def description(self) -> str:
        """What it is, for people."""
        ...

    def sends_in_background(self, payload_bytes: int) -> bool:
        """Whether :meth:`send` returns before so much is sent, so that answers can be read meanwhile."""
        ...

    def send(
        self, messages: Sequence[bytes], payload_bytes: int = 0, parts: Iterable[memoryview] = ()
    ) -> None:
        """Send messages, the last with a payload; a broken connection shows at :meth:`next`.

        What the parts are made of must stay as it is until the answer.
        """
        ...

    def next(self, doing: str) -> bytes | memoryview:
        """The next message of the peer.

        Raises:
            PeerLostError: The connection is broken, or was closed.
        """
        ...

    def is_silent(self) -> bool:
        """Whether :meth:`next` would wait. False if that cannot be known."""
        ...

    def fill(self, first: memoryview, into: Sequence[memoryview], doing: str) -> None:
        """Copy the payload of the last message to where its parts belong.

        Args:
            first: What came inside the message.
            into: As many bytes as the payload has.
            doing: For errors.

        Raises:
            PeerLostError: The connection is broken, or was closed.
            RefusedError: The payload has another size.
        """
        ...

    def cancel(self) -> None:
        """Make a running and every later call fail. From any thread."""
        ...

    def close(self) -> None:
        """End the stream."""
        ...


def _as_it_is(frame: bytes) -> bytes:
    return frame


class GrpcStream:
    """An open Exchange call. A payload is cut into the messages' ``data``.

    Args:
        channel: To the ps.
        peer: For messages.
        chunk_bytes: Most payload in one message; may be lowered.
    """

    description = "grpc"

    def __init__(self, channel: grpc.Channel, peer: str, chunk_bytes: int) -> None:
        self._peer = peer
        self.chunk_bytes = chunk_bytes
        self._outgoing: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()
        # Frames are read and written by core/frames.py; grpc passes them on as they are.
        exchange = channel.stream_stream(_EXCHANGE, _as_it_is, _as_it_is)
        self._call: Any = exchange(self._requests())

    def _requests(self) -> Iterator[bytes]:
        # Runs in grpc's own thread, which so copies chunks while ours does something else.
        while (frames := self._outgoing.get()) is not None:
            yield from frames

    def sends_in_background(self, payload_bytes: int) -> bool:  # noqa: ARG002 - always
        """Always."""
        return True

    def send(
        self,
        messages: Sequence[bytes],
        payload_bytes: int = 0,  # noqa: ARG002 - the step says it
        parts: Iterable[memoryview] = (),
    ) -> None:
        """Send, from grpc's thread."""
        self._outgoing.put(self._frames(messages, parts))

    def _frames(self, messages: Sequence[bytes], parts: Iterable[memoryview]) -> Iterator[bytes]:
        *before, last = messages
        yield from before
        writer = FrameWriter(last, REQUEST_DATA, self.chunk_bytes)
        for part in parts:
            yield from writer.add(part)
        yield from writer.finish()

    def next(self, doing: str) -> bytes:
        """The next message."""
        try:
            frame: bytes = next(self._call)
        except StopIteration:
            raise PeerLostError(
                f"{doing}: {self._peer} closed the session", peer=self._peer
            ) from None
        except grpc.RpcError as failure:
            raise from_rpc_error(failure, peer=self._peer, doing=doing) from failure
        return frame

    def is_silent(self) -> bool:
        """Not known."""
        return False

    def fill(self, first: memoryview, into: Sequence[memoryview], doing: str) -> None:
        """Copy this message's ``data`` and that of those which follow."""
        frame = first
        for target in into:
            filled = 0
            while filled < len(target):
                if not frame:
                    frame = dict(read_fields(self.next(doing))).get(RESPONSE_DATA, memoryview(b""))
                piece = frame[: len(target) - filled]
                target[filled : filled + len(piece)] = piece
                filled += len(piece)
                frame = frame[len(piece) :]

    def cancel(self) -> None:
        """End the call."""
        self._call.cancel()

    def close(self) -> None:
        """End the call and its thread."""
        self._outgoing.put(None)
        self._call.cancel()


class SocketStream:
    """A connected socket. A payload follows its message as it is.

    Args:
        connection: Owned from now on.
        description: What it is, for people.
        max_message_bytes: Longest message accepted.
        peer: For messages.
        duplex: Send large payloads from a thread of its own, so that the answer can come meanwhile: on a
            network that carries both directions at once. On one machine there is nothing to gain.
    """

    def __init__(
        self,
        connection: socket.socket,
        description: str,
        max_message_bytes: int,
        peer: str,
        *,
        duplex: bool,
    ) -> None:
        self.description = description
        self._peer = peer
        self._duplex = duplex
        self._frames = FrameSocket(connection, max_message_bytes)
        self._outgoing: queue.SimpleQueue[Iterator[bytes | memoryview] | None] | None = None
        self._sender: threading.Thread | None = None

    def sends_in_background(self, payload_bytes: int) -> bool:
        """Large payloads, if both directions are used at once."""
        return self._duplex and payload_bytes > _BACKGROUND_BYTES

    def send(
        self, messages: Sequence[bytes], payload_bytes: int = 0, parts: Iterable[memoryview] = ()
    ) -> None:
        """Send."""
        pieces = _pieces(messages, payload_bytes, parts)
        if not self.sends_in_background(payload_bytes):
            self._write(pieces)
            return
        if self._outgoing is None:
            self._outgoing = queue.SimpleQueue()
            self._sender = threading.Thread(
                target=self._write_all, args=(self._outgoing,), name="send", daemon=True
            )
            self._sender.start()
        self._outgoing.put(pieces)

    def _write_all(
        self, outgoing: "queue.SimpleQueue[Iterator[bytes | memoryview] | None]"
    ) -> None:
        while (pieces := outgoing.get()) is not None:
            try:
                self._write(pieces)
            except Exception:
                # Say, no memory for a copy. Whoever waits for the answer finds the connection broken.
                log.exception("a step for %s could not be sent", self._peer)
                self._frames.cancel()
            del pieces  # the step's arrays are not kept until the next one

    def _write(self, pieces: Iterator[bytes | memoryview]) -> None:
        # The ps may have said why before it closed; `next` reads that, or finds the connection broken.
        with contextlib.suppress(OSError):
            for piece in pieces:
                self._frames.write(piece)

    def next(self, doing: str) -> memoryview:
        """The next message."""
        try:
            message = self._frames.receive()
        except OSError as error:
            raise self._broken(doing, error) from error
        if message is None:
            raise PeerLostError(f"{doing}: {self._peer} closed the session", peer=self._peer)
        return message

    def is_silent(self) -> bool:
        """Whether nothing has come."""
        return self._frames.is_silent()

    def fill(self, first: memoryview, into: Sequence[memoryview], doing: str) -> None:
        """Receive into place."""
        if first:
            raise RefusedError(f"{self._peer} sent {len(first)} bytes inside a message")
        try:
            for target in into:
                self._frames.read_into(target)
        except OSError as error:
            raise self._broken(doing, error) from error

    def _broken(self, doing: str, error: OSError) -> PeerLostError:
        return PeerLostError(
            f"{doing}: the connection to {self._peer} broke: {error.strerror or error}",
            peer=self._peer,
        )

    def cancel(self) -> None:
        """Break the connection."""
        self._frames.cancel()

    def close(self) -> None:
        """Break and close the connection."""
        self._frames.cancel()
        if self._outgoing is not None and self._sender is not None:
            self._outgoing.put(None)
            # It must not write to whatever gets our descriptor's number next.
            self._sender.join()
        self._frames.close()


def _pieces(
    messages: Sequence[bytes], payload_bytes: int, parts: Iterable[memoryview]
) -> Iterator[bytes | memoryview]:
    *before, last = messages
    if before:
        yield b"".join(map(frame_head, before))
    writer = SocketWriter(last, payload_bytes)
    for part in parts:
        yield from writer.add(part)
    yield from writer.finish()


def local_connection(name: str) -> socket.socket:
    """A connection to a Unix socket in the abstract namespace.

    Raises:
        RefusedError: It cannot be reached from here, or another user has it.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_TIMEOUT_S)
        connection.connect(f"\0{name}")
        user = peer_user(connection)
        connection.settimeout(None)
    except OSError as error:
        connection.close()
        raise RefusedError(f"not on one machine: {error.strerror or error}") from error
    if user != os.getuid():
        connection.close()
        raise RefusedError(f"not one user: {user} has it, we are {os.getuid()}")
    return connection


def tcp_connection(host: str, port: int) -> socket.socket:
    """A connection to a ps's session port.

    Raises:
        RefusedError: It cannot be reached from here.
    """
    connection: socket.socket | None = None
    try:
        connection = socket.create_connection((host.strip("[]"), port), _CONNECT_TIMEOUT_S)
        prepare_tcp(connection)
        connection.settimeout(None)
    except OSError as error:
        if connection is not None:
            connection.close()
        raise RefusedError(
            f"its port {port} cannot be reached: {error.strerror or error}"
        ) from error
    return connection


def is_here(connection: socket.socket) -> bool:
    """Whether both ends of a TCP connection are this machine's."""
    return bool(connection.getsockname()[0] == connection.getpeername()[0])
