"""Taking frames out of the bytes of a connection. Pure: bytes in, calls out.

Payloads of DATA frames are passed on as they come, so a frame of megabytes needs no memory of its
own; all other frames are short, and are collected first.
"""

from typing import Protocol

from .frames import (
    HEAD_BYTES,
    LARGEST_FRAME_BYTES,
    PADDED,
    Code,
    FrameHead,
    Http2Error,
    Kind,
    read_head,
)

_MOST_CONTROL_BYTES = 32 * 1024  # one frame that is not DATA
_NAMES = {int(kind): kind.name for kind in Kind}


class FrameSink(Protocol):
    """Handles the frames of a connection."""

    def on_control(self, head: FrameHead, payload: bytes) -> None:
        """Handle a whole frame that is not DATA."""
        ...

    def on_data_begin(self, head: FrameHead) -> None:
        """Handle the beginning of a DATA frame; its length counts against the windows."""
        ...

    def on_data(self, piece: memoryview) -> None:
        """Handle some bytes of a DATA frame, without padding."""
        ...

    def on_data_end(self) -> None:
        """Handle the end of a DATA frame."""
        ...


class FrameReader:
    """Takes frames out of bytes.

    Args:
        sink: Handles them.
        largest_frame_bytes: The limit that the peer was told.

    Attributes:
        data_left: Bytes of the current DATA frame that are still to come.
    """

    def __init__(self, sink: FrameSink, largest_frame_bytes: int = LARGEST_FRAME_BYTES) -> None:
        self.data_left = 0
        self._sink = sink
        self._largest = largest_frame_bytes
        self._padding_left = 0
        self._in_data = False
        self._rest = b""

    @property
    def is_inside_data(self) -> bool:
        """Whether the very next byte is one of a DATA frame's."""
        return self.data_left > 0 and not self._rest

    def took_data(self, count: int) -> None:
        """Count bytes of the current DATA frame that were read without this reader."""
        self.data_left -= count
        self._end_data()

    def forget(self) -> None:
        """Drop an incomplete frame."""
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Handle bytes that came.

        Raises:
            Http2Error: They are not HTTP/2, or a frame is too long.
        """
        view = memoryview(self._rest + data if self._rest else data)
        self._rest = b""
        at, size = 0, len(view)
        while True:
            if self._in_data:
                at = self._feed_data(view, at)
                if self._in_data:
                    return
            if size - at < HEAD_BYTES:
                break
            head = read_head(view, at)
            self._check(head)
            if head.kind == Kind.DATA:
                padded = bool(head.flags & PADDED)
                if size - at < HEAD_BYTES + padded:
                    break
                self._begin_data(head, view[at + HEAD_BYTES] if padded else -1)
                at += HEAD_BYTES + padded
                continue
            end = at + HEAD_BYTES + head.length
            if size < end:
                break
            self._sink.on_control(head, bytes(view[at + HEAD_BYTES : end]))
            at = end
        self._rest = bytes(view[at:])

    def _check(self, head: FrameHead) -> None:
        most = self._largest if head.kind == Kind.DATA else _MOST_CONTROL_BYTES
        if head.length > most:
            name = _NAMES.get(head.kind, f"type {head.kind}")
            raise Http2Error(
                Code.FRAME_SIZE_ERROR,
                f"a frame ({name}) announces {head.length} bytes, more than {most}",
            )

    def _begin_data(self, head: FrameHead, padding: int) -> None:
        self.data_left = head.length - (padding + 1 if padding >= 0 else 0)
        self._padding_left = max(0, padding)
        if self.data_left < 0:
            raise Http2Error(Code.PROTOCOL_ERROR, "the padding of a frame is longer than the frame")
        self._in_data = True
        self._sink.on_data_begin(head)
        self._end_data()

    def _feed_data(self, view: memoryview, at: int) -> int:
        """Pass on bytes of the current DATA frame; returns where they end."""
        piece = view[at : at + self.data_left]
        if piece:
            self.data_left -= len(piece)
            self._sink.on_data(piece)
            at += len(piece)
        if not self.data_left and self._padding_left:
            skipped = min(self._padding_left, len(view) - at)
            self._padding_left -= skipped
            at += skipped
        self._end_data()
        return at

    def _end_data(self) -> None:
        if self._in_data and not self.data_left and not self._padding_left:
            self._in_data = False
            self._sink.on_data_end()
