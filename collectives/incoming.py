"""Links that have come in, and the end of a gRPC stream that is one of them."""

import queue
import threading
import time
from collections.abc import Iterator

import numpy as np

from ..core.arrays import Array
from ..net.frames import read_fields
from ..proto.v1 import collective_pb2
from .ring_frames import Receiver

_HEAD = collective_pb2.LinkFrame.HEAD_FIELD_NUMBER
_PAYLOAD = collective_pb2.LinkFrame.PAYLOAD_FIELD_NUMBER
_BACKLOG = 8  # frames read ahead of the ring
_EMPTY: Array = np.zeros(0, np.uint8)


class Incoming:
    """Receivers by (ring, rank of the sender), for whoever waits for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._links: dict[tuple[int, int], Receiver] = {}
        self._closed = False

    def put(self, ring: int, rank: int, link: Receiver) -> None:
        """A link has come. An older one of the same sender is broken: its process is gone."""
        with self._changed:
            unwanted: Receiver | None = link
            if not self._closed:
                unwanted = self._links.get((ring, rank))
                self._links[(ring, rank)] = link
            self._changed.notify_all()
        if unwanted is not None:
            unwanted.close()

    def take(self, ring: int, rank: int, timeout_s: float) -> Receiver | None:
        """The link of a sender, waiting for it; None: it has not come."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while (ring, rank) not in self._links:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            return self._links.pop((ring, rank))

    def close(self) -> None:
        """Break links nobody took."""
        with self._changed:
            self._closed = True
            links, self._links = list(self._links.values()), {}
        for link in links:
            link.close()


class StreamReceiver:
    """Frames of a gRPC stream, read in its thread, a few ahead."""

    def __init__(self) -> None:
        self._frames: queue.Queue[tuple[bytes, Array] | None] = queue.Queue(_BACKLOG)
        self._closed = threading.Event()

    def feed(self, frames: Iterator[bytes]) -> None:
        """Read frames until the sender ends the stream or this end is closed."""
        for frame in frames:
            fields = dict(read_fields(frame))
            payload = fields.get(_PAYLOAD)
            data = _EMPTY if payload is None else np.frombuffer(payload, np.uint8)
            if not self._put((bytes(fields[_HEAD]), data)):
                return

    def end(self) -> None:
        """The stream is over."""
        self._put(None)

    def _put(self, item: tuple[bytes, Array] | None) -> bool:
        while not self._closed.is_set():
            try:
                self._frames.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def receive(self, timeout_s: float) -> tuple[bytes, Array] | None:
        """The next frame."""
        try:
            item = self._frames.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        if item is None:
            self._frames.put(None)  # so it stays
        return item

    def release(self) -> None:
        """Frames have memory of their own."""

    def close(self) -> None:
        """Read no more."""
        self._closed.set()
