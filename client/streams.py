"""What carries the frames of a session: a gRPC stream, or a Unix socket of this machine."""

import contextlib
import os
import queue
import socket
from collections.abc import Iterator
from typing import Any, Protocol

import grpc

from ..core.error_table import from_rpc_error
from ..core.errors import PeerLostError, RefusedError
from ..core.frame_socket import FrameSocket, peer_user

_EXCHANGE = "/windlass.proto.v1.ParameterServer/Exchange"
_CONNECT_TIMEOUT_S = 2.0


class Carrier(Protocol):
    """Frames there and back. Used by one thread at a time, but for :meth:`cancel`."""

    @property
    def description(self) -> str:
        """What it is, for people."""
        ...

    @property
    def sends_in_background(self) -> bool:
        """Whether :meth:`send` returns before all is sent, so that answers can be read meanwhile."""
        ...

    def send(self, frames: Iterator[bytes]) -> None:
        """Send frames; a broken connection shows at :meth:`next`."""
        ...

    def next(self, doing: str) -> bytes | bytearray:
        """The next frame of the peer.

        Raises:
            PeerLostError: The connection is broken, or was closed.
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
    """An open Exchange call."""

    description = "grpc"
    sends_in_background = True

    def __init__(self, channel: grpc.Channel, peer: str) -> None:
        self._peer = peer
        self._outgoing: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()
        # Frames are read and written by core/frames.py; grpc passes them on as they are.
        exchange = channel.stream_stream(_EXCHANGE, _as_it_is, _as_it_is)
        self._call: Any = exchange(self._requests())

    def _requests(self) -> Iterator[bytes]:
        # Runs in grpc's own thread, which so copies chunks while ours does something else.
        while (frames := self._outgoing.get()) is not None:
            yield from frames

    def send(self, frames: Iterator[bytes]) -> None:
        """Send frames, from grpc's thread: what they are made of must stay until the answer."""
        self._outgoing.put(frames)

    def next(self, doing: str) -> bytes:
        """The next frame."""
        try:
            frame: bytes = next(self._call)
        except StopIteration:
            raise PeerLostError(
                f"{doing}: {self._peer} closed the session", peer=self._peer
            ) from None
        except grpc.RpcError as failure:
            raise from_rpc_error(failure, peer=self._peer, doing=doing) from failure
        return frame

    def cancel(self) -> None:
        """End the call."""
        self._call.cancel()

    def close(self) -> None:
        """End the call and its thread."""
        self._outgoing.put(None)
        self._call.cancel()


class SocketStream:
    """A connection to the local socket of a ps.

    Args:
        name: In the abstract namespace.
        max_frame_bytes: Largest frame accepted.
        peer: For messages.

    Raises:
        RefusedError: It cannot be reached from here, or another user has it.
    """

    description = "unix socket"
    sends_in_background = False

    def __init__(self, name: str, max_frame_bytes: int, peer: str) -> None:
        self._peer = peer
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
        self._frames = FrameSocket(connection, max_frame_bytes)

    def send(self, frames: Iterator[bytes]) -> None:
        """Send frames, from this thread."""
        # The ps may have said why before it closed; `next` reads that, or finds the connection broken.
        with contextlib.suppress(OSError):
            for frame in frames:
                self._frames.send(frame)

    def next(self, doing: str) -> bytes | bytearray:
        """The next frame."""
        try:
            frame = self._frames.receive()
        except OSError as error:
            raise PeerLostError(
                f"{doing}: the connection to {self._peer} broke: {error.strerror or error}",
                peer=self._peer,
            ) from error
        if frame is None:
            raise PeerLostError(f"{doing}: {self._peer} closed the session", peer=self._peer)
        return frame

    def cancel(self) -> None:
        """Break the connection."""
        self._frames.cancel()

    def close(self) -> None:
        """Break and close the connection."""
        self._frames.cancel()
        self._frames.close()
