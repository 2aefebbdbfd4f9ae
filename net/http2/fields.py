"""Header fields, compressed and not.

What is sent is never put into the dynamic table, so blocks can be made by any thread and sent in
any order.
"""

from collections.abc import Iterable

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple

from .frames import END_HEADERS, END_STREAM, Code, Http2Error, Kind, frame

Fields = list[tuple[str, str]]

_ENCODER = Encoder()  # without a dynamic table it has no state


def encode_fields(fields: Iterable[tuple[str, str]]) -> bytes:
    """Encode fields as a header block."""
    return bytes(
        _ENCODER.encode([NeverIndexedHeaderTuple(*pair) for pair in fields], huffman=False)
    )


def fields_frames(number: int, fields: Fields, most_bytes: int, *, end: bool) -> bytes:
    """Make the frames of a block of fields, to be sent in one piece.

    Args:
        number: The stream's.
        fields: Names and values.
        most_bytes: Largest payload of one frame.
        end: Whether this side of the stream ends with them.
    """
    block = encode_fields(fields)
    pieces = [block[at : at + most_bytes] for at in range(0, len(block), most_bytes)]
    kinds = [Kind.HEADERS] + [Kind.CONTINUATION] * (len(pieces) - 1)
    flags = [0] * (len(pieces) - 1) + [END_HEADERS]
    flags[0] |= END_STREAM if end else 0
    return b"".join(
        frame(kind, flag, number, piece)
        for kind, flag, piece in zip(kinds, flags, pieces, strict=True)
    )


class FieldsDecoder:
    """Reads the header blocks of one connection, in their order.

    Args:
        most_bytes: Longest block: bytes of names and values, and 32 for each field.
    """

    def __init__(self, most_bytes: int) -> None:
        self._decoder = Decoder(most_bytes)

    def read(self, block: bytes) -> Fields:
        """Decode the fields of a block.

        Raises:
            Http2Error: It cannot be decoded, or is too long.
        """
        try:
            pairs = self._decoder.decode(block, raw=True)
        except HPACKError as error:
            raise Http2Error(Code.COMPRESSION_ERROR, f"fields cannot be read: {error}") from error
        return [(_text(name), _text(value)) for name, value in pairs]


def _text(data: bytes) -> str:
    return bytes(data).decode("latin-1")
