"""Faults on the one seam of the network: a byte stream that cuts, delays, drops or spoils.

::

    faults = Faults()
    peer = RemotePs(task, address, who, settings, faults.wrap)
    peer.connect(5)
    faults.stream.cut(100, "send")  # the connection breaks after 100 more bytes of ours
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from ropewalk.cluster.access import Principal
from ropewalk.net.stream import NEVER, Buffer, ByteStream

Direction = Literal["send", "receive", "both"]
Files = Literal["pass", "spoil", "refuse"]


class FaultyStream:
    """A stream around another one. See :class:`~ropewalk.net.stream.ByteStream`.

    Args:
        stream: Owned from now on.
        cut_after: The connection breaks after so many bytes; None: it does not.
        delay_s: Waited before every call.
        drop: Bytes vanish: they are sent to nobody, or never come.
        direction: The calls that all this applies to.
        files: What happens to open files: they pass, others take their place, or the stream says
            that it passes none.
        remote: Whether the stream says that its other end is on another machine.

    Attributes:
        sent: Bytes so far, the greeting's too.
        received: The same.
        before_send: Called before every send, with the number of bytes.
    """

    def __init__(
        self,
        stream: ByteStream,
        *,
        cut_after: int | None = None,
        delay_s: float = 0.0,
        drop: bool = False,
        direction: Direction = "both",
        files: Files = "pass",
        remote: bool = False,
    ) -> None:
        self._stream = stream
        self._remote = remote
        self._left = cut_after
        self._delay_s = delay_s
        self._dropping = drop
        self._direction = direction
        self._files = files
        self._over = threading.Event()
        self._ends_here = self._full = False
        self.sent = self.received = 0
        self.before_send: Callable[[int], object] = lambda _count: None

    def cut(self, after: int | None = 0, direction: Direction = "both") -> None:
        """Break the connection after so many more bytes; None: not at all."""
        self._left, self._direction = after, direction

    def delay(self, seconds: float, direction: Direction = "both") -> None:
        """Wait before every call."""
        self._delay_s, self._direction = seconds, direction

    def drop(self, direction: Direction = "both") -> None:
        """Let bytes vanish from now on."""
        self._dropping, self._direction = True, direction

    def pass_again(self) -> None:
        """Let bytes through that have not vanished yet."""
        self._dropping = False

    def fill(self) -> None:
        """Take nothing at once from now on, as if the receiver read too slowly."""
        self._full = True

    @property
    def on_silence(self) -> Callable[[], object]:
        return self._stream.on_silence

    @on_silence.setter
    def on_silence(self, call: Callable[[], object]) -> None:
        self._stream.on_silence = call

    @property
    def description(self) -> str:
        return self._stream.description

    @property
    def is_local(self) -> bool:
        return self._stream.is_local and not self._remote

    @property
    def peer_address(self) -> str:
        return self._stream.peer_address

    @property
    def principal(self) -> Principal | None:
        return self._stream.principal

    @property
    def passes_files(self) -> bool:
        return self._stream.passes_files and self._files != "refuse"

    def send(self, data: Buffer, deadline: float) -> None:
        self.before_send(len(data))
        now, broken = self._share("send", len(data))
        if now and not self._drops("send"):
            self._stream.send(memoryview(data)[:now], deadline)
        self.sent += now
        self._break_if(broken)

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        if self._full:
            return 0
        whole = b"".join(buffers)
        now, broken = self._share("send", len(whole))
        count = now if self._drops("send") else self._stream.send_now([whole[:now]])
        self.sent += count
        self._break_if(broken)
        return count

    def send_with_descriptor(self, data: bytes, descriptor: int, deadline: float) -> None:
        now, broken = self._share("send", len(data))
        if now and not self._drops("send"):
            other = os.open(os.devnull, os.O_RDONLY) if self._files == "spoil" else -1
            try:
                given = other if other >= 0 else descriptor
                self._stream.send_with_descriptor(data[:now], given, deadline)
            finally:
                if other >= 0:
                    os.close(other)
        self.sent += now
        self._break_if(broken)

    def take_descriptor(self) -> int:
        descriptor = self._stream.take_descriptor()
        if self._files != "spoil":
            return descriptor
        os.close(descriptor)
        return os.open(os.devnull, os.O_RDONLY)

    def receive(self, deadline: float) -> bytes:
        self._before_receive(deadline)
        data = self._stream.receive(deadline)
        return data[: self._let_in(len(data))]

    def receive_into(self, target: memoryview, deadline: float) -> int:
        self._before_receive(deadline)
        count = self._stream.receive_into(target, deadline)
        return self._let_in(count)

    def is_silent(self) -> bool:
        return not self._over.is_set() and self._stream.is_silent()

    def limit_messages(self, num_bytes: int) -> None:
        self._stream.limit_messages(num_bytes)

    def fileno(self) -> int:
        return self._stream.fileno()

    def cancel(self) -> None:
        self._over.set()
        self._stream.cancel()

    def close(self) -> None:
        self._over.set()
        self._stream.close()

    def _concerns(self, direction: Direction) -> bool:
        return self._direction in ("both", direction)

    def _drops(self, direction: Direction) -> bool:
        return self._dropping and self._concerns(direction)

    def _share(self, direction: Direction, count: int) -> tuple[int, bool]:
        """How many of so many bytes still get through, and whether the connection breaks then."""
        if self._over.is_set():
            return 0, True
        if not self._concerns(direction):
            return count, False
        if self._delay_s:
            self._over.wait(self._delay_s)
        if self._left is None:
            return count, False
        now = min(count, self._left)
        self._left -= now
        return now, now < count

    def _let_in(self, count: int) -> int:
        now, broken = self._share("receive", count)
        self.received += now
        if not now:
            self._break_if(broken)
        self._ends_here = broken  # the rest has come and is lost: nothing is to be waited for
        return now

    def _break_if(self, broken: bool) -> None:
        if broken:
            self.cancel()
            raise ConnectionResetError("cut by the test")

    def _before_receive(self, deadline: float) -> None:
        self._break_if(self._ends_here)
        if self._drops("receive"):
            left_s = None if deadline == NEVER else max(0.0, deadline - time.monotonic())
            if not self._over.wait(left_s):
                raise TimeoutError("timed out")
            raise ConnectionResetError("cancelled")


class Faults:
    """Wraps every stream of a peer, and remembers them.

    Args:
        files: See :class:`FaultyStream`.
        remote: The same.
        plan: Called with each of them, and its number from 0.

    Attributes:
        files: Of the next stream.
        streams: All of them.
    """

    def __init__(
        self,
        *,
        files: Files = "pass",
        remote: bool = False,
        plan: Callable[[FaultyStream, int], object] = lambda _stream, _number: None,
    ) -> None:
        self.files = files
        self._remote = remote
        self._plan = plan
        self.streams: list[FaultyStream] = []

    def wrap(self, stream: ByteStream) -> ByteStream:
        """For ``wrap=``."""
        wrapped = FaultyStream(stream, files=self.files, remote=self._remote)
        self.streams.append(wrapped)
        self._plan(wrapped, len(self.streams) - 1)
        return wrapped

    @property
    def stream(self) -> FaultyStream:
        """The one that carries the session now."""
        return self.streams[-1]
