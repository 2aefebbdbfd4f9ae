"""A byte stream without a socket: what is sent is kept, what is received was put in."""

from collections.abc import Callable, Sequence

from ropewalk.cluster.access import Principal
from ropewalk.core.errors import RefusedError
from ropewalk.net.stream import Buffer


class MemoryStream:
    """See :class:`~ropewalk.net.http2.reading.Transport`. Receiving never waits: it times out.

    Attributes:
        sent: What the other side would receive.
        takes: How many bytes are taken before the "socket" is full.
        piece: Most bytes that are received at a time.
    """

    description = "memory"
    is_local = True
    passes_files = False
    peer_address = "memory"
    principal: Principal | None = None

    def __init__(self, *, takes: int = 2**62, piece: int = 2**62) -> None:
        self.sent = bytearray()
        self.takes = takes
        self.piece = piece
        self.is_cut = False
        self.on_silence: Callable[[], object] = lambda: None
        self.more: Callable[[], bytes] = lambda: b""
        self._came = bytearray()
        self._ended = False

    def put(self, data: bytes) -> None:
        """Let bytes come."""
        self._came += data

    def end(self) -> None:
        """Let the end come."""
        self._ended = True

    def take_sent(self) -> bytes:
        """What was sent since the last time."""
        sent = bytes(self.sent)
        self.sent.clear()
        return sent

    def send(self, data: Buffer, deadline: float) -> None:
        if self.send_now([data]) < len(data):
            raise TimeoutError("timed out")

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        if self.is_cut:
            raise ConnectionError("cancelled")
        data = b"".join(buffers)[: self.takes]
        self.takes -= len(data)
        self.sent += data
        return len(data)

    def receive(self, deadline: float) -> bytes:
        data = self.receive_now(self.piece)
        if data is None:
            raise TimeoutError("timed out")
        return data

    def receive_into(self, target: memoryview, deadline: float) -> int:
        data = self.receive_now(min(self.piece, len(target)))
        if data is None:
            raise TimeoutError("timed out")
        target[: len(data)] = data
        return len(data)

    def receive_now(self, most_bytes: int) -> bytes | None:
        if self.is_cut:
            raise ConnectionError("cancelled")
        if not self._came:
            self._came += self.more()
        if not self._came:
            return b"" if self._ended else None
        data = bytes(self._came[:most_bytes])
        del self._came[: len(data)]
        return data

    def readiness_fileno(self) -> int:
        return -1

    def send_with_descriptor(self, data: bytes, descriptor: int, deadline: float) -> None:
        raise RefusedError("no")

    def take_descriptor(self) -> int:
        raise RefusedError("no")

    def is_silent(self) -> bool:
        return not self._came

    def fileno(self) -> int:
        return -1

    def limit_messages(self, num_bytes: int) -> None:
        pass

    def cancel(self) -> None:
        self.is_cut = True

    def close(self) -> None:
        self.is_cut = True
