"""A call that is served: its request and its answer."""

import contextlib
import time

from ...core.errors import LimitExceededError, ProtocolMismatchError, RefusedError
from .call import CONTENT_TYPE, PREFIX, Status, response_fields, timeout_s
from .fields import Fields
from .frames import Code
from .link import Http2Link
from .origin import Origin
from .stream import Http2Stream

_ANSWER_S = 60.0  # for a client to take its answer, or the beginning of a stream
_NO_MESSAGE_YET = -1


class ServedCall:
    """A call of a client.

    Args:
        link: Connection of the call.
        stream: Stream of the call.
        origin: Origin of the call's connection.
        most_bytes: Longest request.

    Attributes:
        path: The method, as ``/package.Service/Method``.
        metadata: The client's, by name.
        began: Time at which the call began, on the clock of ``time.monotonic``.
        most_bytes: Longest request.
        was_dispatched: Whether a thread works on the answer, or the call was refused: that thread
            takes the rest of what the client sends.
    """

    def __init__(
        self, link: Http2Link, stream: Http2Stream, origin: Origin, most_bytes: int
    ) -> None:
        self.link = link
        self.stream = stream
        self.origin = origin
        self.metadata = dict(stream.fields)
        self.path = self.metadata.get(":path", "")
        self.began = time.monotonic()
        self.was_dispatched = False
        limit_s = timeout_s(self.metadata.get("grpc-timeout", ""))
        self._deadline = None if limit_s is None else self.began + limit_s
        self.most_bytes = most_bytes
        self._request = bytearray()
        self._size = _NO_MESSAGE_YET

    @property
    def request_bytes(self) -> int:
        """Number of bytes of the request that have come."""
        return len(self._request)

    @property
    def is_grpc(self) -> bool:
        """Whether it is a gRPC call at all."""
        fields = self.metadata
        return fields.get(":method") == "POST" and fields.get("content-type", "").startswith(
            CONTENT_TYPE
        )

    def is_waiting(self) -> bool:
        """Return whether the client still waits for the answer."""
        if self.stream.broken or self.link.broken:
            return False
        return self._deadline is None or time.monotonic() < self._deadline

    def request(self) -> bytes | None:
        """Return the message of a call that has one; None: it has not come completely.

        Raises:
            LimitExceededError: It is too long.
            ProtocolMismatchError: It is compressed.
            RefusedError: The call has ended without one.
        """
        while self.stream.pieces:
            self._request += self.link.take(self.stream, 0.0)
            self._read_prefix()
            if self._size != _NO_MESSAGE_YET and len(self._request) >= PREFIX.size + self._size:
                return bytes(memoryview(self._request)[PREFIX.size : PREFIX.size + self._size])
        if self.stream.has_ended:
            raise RefusedError(f"{self.path}: no message came")
        return None

    def _read_prefix(self) -> None:
        if self._size != _NO_MESSAGE_YET or len(self._request) < PREFIX.size:
            return
        compressed, self._size = PREFIX.unpack_from(self._request)
        if compressed:
            raise ProtocolMismatchError(
                f"{self.path}: the request is compressed, which is not read"
            )
        if self._size > self.most_bytes:
            raise LimitExceededError(
                f"{self.path}: the request has {self._size} bytes, more than "
                f"max_message_bytes={self.most_bytes}",
                limit="max_message_bytes",
            )

    # -- answering ---------------------------------------------------------------------------

    def answer(self, message: bytes, metadata: Fields) -> None:
        """Answer with a message, which is sent as the client takes it; never blocks.

        Raises:
            OSError: The client is gone.
        """
        self._say([PREFIX.pack(0, len(message)), message], metadata, Status())

    def fail(self, status: Status, metadata: Fields) -> None:
        """Answer with an error, as with a message.

        Raises:
            OSError: The client is gone.
        """
        self._say([], metadata, status)

    def fail_soon(self, status: Status) -> None:
        """Answer with an error without waiting: for the thread that reads the connection.

        Raises:
            OSError: The client is gone.
        """
        self.was_dispatched = True
        self.link.send_last_fields_soon(self.stream, [*response_fields([]), *status.as_fields()])
        self._end()

    def refuse_http(self, status: str) -> None:
        """Answer a request that is not a gRPC call.

        Raises:
            OSError: The client is gone.
        """
        self.was_dispatched = True
        self.link.send_last_fields_soon(self.stream, [(":status", status)])
        self._end()

    def begin_stream(self, metadata: Fields) -> None:
        """Begin an answer of many messages.

        Raises:
            OSError: The client is gone.
        """
        self.link.send_fields(self.stream, response_fields(metadata), self._until())

    def finish_stream(self, deadline: float) -> None:
        """End an answer of many messages in order.

        Raises:
            OSError: The client is gone.
        """
        self.link.send_fields(self.stream, Status().as_fields(), deadline, end=True)
        self._end()

    def cancel(self) -> None:
        """End the call at once."""
        self.link.reset(self.stream, Code.CANCEL, "cancelled")

    def _say(self, message: list[bytes], metadata: Fields, status: Status) -> None:
        self.link.send_answer_soon(
            self.stream, response_fields(metadata), message, status.as_fields(), self._until()
        )

    def _end(self) -> None:
        """Stop a client that still sends, after the answer."""
        if not self.stream.has_ended:
            with contextlib.suppress(OSError):
                self.link.reset(self.stream, Code.NO_ERROR, "answered")

    def _until(self) -> float:
        return time.monotonic() + _ANSWER_S
