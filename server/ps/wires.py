"""How the frames of one session come and go: a gRPC stream, or a connected socket.

The servicer reads messages and payloads from a wire, and gives back pieces to be sent in order. A piece
may be memory that is used again, so each is sent before the next one is asked for.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from ...core.arrays import Array
from ...core.errors import RefusedError
from ...net.frame_socket import FrameSocket, SocketWriter
from ...net.frames import REQUEST_DATA, RESPONSE_DATA, FrameWriter, read_fields
from .payload import FramesReader, PayloadReader, SocketReader
from .scratch import ScratchPool

Piece = bytes | memoryview


class Writer(Protocol):
    """Makes the pieces of one answer."""

    def add(self, buffer: memoryview, /) -> Iterator[Piece]:
        """Take the next part of the payload; its memory may change when this is exhausted."""
        ...

    def finish(self) -> Iterator[Piece]:
        """What is left."""
        ...


class Wire(Protocol):
    """One session's way in and out. Used by one thread."""

    def messages(self) -> Iterator[bytes | memoryview]:
        """Serialized ExchangeRequests; see core/frames.py."""
        ...

    def payload(self, first: memoryview, total: int) -> PayloadReader:
        """The payload of the last message, ``first`` being what came inside it.

        Raises:
            RefusedError: Its size is not ``total``.
        """
        ...

    def writer(self, message: bytes, payload_bytes: int) -> Writer:
        """For an answer: complete fields, and a payload of so many bytes."""
        ...

    def is_open(self) -> bool:
        """Whether the worker is still there, as far as it can be known without waiting."""
        ...


class GrpcWire:
    """The two directions of an ``Exchange`` call. A payload is cut into the messages' ``data``.

    Args:
        requests: What gRPC receives.
        chunk_bytes: Most payload in one message.
        is_active: Whether the call goes on.
    """

    def __init__(
        self, requests: Iterator[bytes], chunk_bytes: int, is_active: Callable[[], bool]
    ) -> None:
        self._requests = requests
        self._chunk_bytes = chunk_bytes
        self._is_active = is_active

    def messages(self) -> Iterator[bytes]:
        """What gRPC receives."""
        return self._requests

    def payload(self, first: memoryview, total: int) -> PayloadReader:
        """The ``data`` of this message and those that follow."""
        return FramesReader(first, total, self._next_data)

    def writer(self, message: bytes, payload_bytes: int) -> Writer:  # noqa: ARG002 - the reply says it
        """Cuts it into messages."""
        return FrameWriter(message, RESPONSE_DATA, self._chunk_bytes)

    def is_open(self) -> bool:
        """Whether the call goes on."""
        return self._is_active()

    def _next_data(self) -> memoryview:
        frame = next(self._requests, None)
        if frame is None:
            raise RefusedError("the session ended in the middle of a step")
        return dict(read_fields(frame)).get(REQUEST_DATA, memoryview(b""))


class SocketWire:
    """A connected socket. A payload follows its message as it is.

    Args:
        frames: The connection.
        scratch: Lends memory for what is on its way.
    """

    def __init__(self, frames: FrameSocket, scratch: ScratchPool) -> None:
        self._frames = frames
        self._scratch = scratch
        self._memory: Array = np.empty(0, np.uint8)

    def messages(self) -> Iterator[memoryview]:
        """What arrives; a step's memory is given back when the next message is asked for."""
        try:
            while (message := self._frames.receive()) is not None:
                yield message
                self._give_back()
        finally:
            self._give_back()

    def payload(self, first: memoryview, total: int) -> PayloadReader:
        """What follows the message."""
        if first:
            raise RefusedError(f"{len(first)} bytes inside a message on a socket")
        return SocketReader(self._frames, total, self._take)

    def writer(self, message: bytes, payload_bytes: int) -> Writer:
        """Copies large parts into the memory that gradients came into: it is free by then."""
        return SocketWriter(message, payload_bytes, self._take)

    def is_open(self) -> bool:
        """Whether nothing came: a worker is silent until its step is answered."""
        return self._frames.is_silent()

    def _take(self, num_bytes: int) -> Array:
        if self._memory.size < num_bytes:
            self._give_back()
            self._memory = self._scratch.take(num_bytes)
        return self._memory

    def _give_back(self) -> None:
        if self._memory.size:
            self._scratch.give_back(self._memory)
            self._memory = np.empty(0, np.uint8)
