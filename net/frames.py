"""Frames of the ``Exchange`` stream, written and read without protobuf where the bytes are many.

A frame is an ``ExchangeRequest`` or ``ExchangeResponse`` of ``proto/v1/ps.proto``, to the bit. But protobuf's
Python runtime copies a ``bytes`` field into the message, again when it serializes, and twice more on the
other side; here a piece of a payload is copied once into its frame, and read where it arrived.
All top-level fields of both messages are length-delimited with numbers below 16, so a frame is a row of
(tag byte, varint length, bytes).
"""

from collections.abc import Iterator

from ..core.errors import RefusedError

_LENGTH_DELIMITED = 2

# Field numbers of the payload; tests hold them against the descriptors.
REQUEST_DATA = 4
RESPONSE_DATA = 3


def field(number: int, content: bytes) -> bytes:
    """One length-delimited field."""
    return prefix(number, len(content)) + content


def read_fields(frame: bytes | memoryview) -> Iterator[tuple[int, memoryview]]:
    """(field number, content) of a frame's top-level fields; contents are views of ``frame``.

    Raises:
        RefusedError: It is no frame.
    """
    view, position = memoryview(frame), 0
    while position < len(frame):
        number, kind = frame[position] >> 3, frame[position] & 7
        length, shift, ended = 0, 0, False
        position += 1
        while not ended and position < len(frame) and shift < 35:
            byte = frame[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            ended = byte < 0x80
        fits = ended and position + length <= len(frame)
        if kind != _LENGTH_DELIMITED or not number or not fits:
            raise RefusedError("a frame of the stream cannot be read: it is cut or not one of ours")
        yield number, view[position : position + length]
        position += length


class FrameWriter:
    """Cuts a payload into frames. The first one carries ``head`` before its piece.

    Args:
        head: Complete fields, from :func:`field`.
        data: Field number of the payload.
        chunk_bytes: Most payload in one frame.
    """

    def __init__(self, head: bytes, data: int, chunk_bytes: int) -> None:
        self._head = head
        self._data = data
        self._chunk_bytes = chunk_bytes
        self._pieces: list[bytes | memoryview] = []
        self._size = 0

    def add(self, buffer: memoryview) -> Iterator[bytes]:
        """Take the next part of the payload, and give the frames it fills.

        Every byte is copied before this ends, so the memory behind ``buffer`` may change then. Exhaust it.
        """
        start = 0
        while start < len(buffer):
            piece = buffer[start : start + self._chunk_bytes - self._size]
            start += len(piece)
            self._size += len(piece)
            self._pieces.append(piece)
            if self._size == self._chunk_bytes:
                yield self._frame()
        if self._pieces and start:
            self._pieces[-1] = bytes(self._pieces[-1])

    def finish(self) -> Iterator[bytes]:
        """The last frame, if one is left; the first one comes even without a payload."""
        if self._pieces or self._head:
            yield self._frame()

    def _frame(self) -> bytes:
        tag = prefix(self._data, self._size) if self._size else b""
        frame = b"".join([self._head, tag, *self._pieces])
        self._head, self._pieces, self._size = b"", [], 0
        return frame


def prefix(number: int, length: int) -> bytes:
    """Tag and length of a field, whose content follows."""
    out = bytearray([number << 3 | _LENGTH_DELIMITED])
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)
