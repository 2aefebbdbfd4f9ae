"""Answers to workers in other processes: values behind the answer, or in the worker's segment.

Both are answers as :class:`~ropewalk.server.ps.session.Answer` describes them.
"""

import numpy as np

from ...core.arrays.copying import copy_into
from ...core.arrays.dtypes import Array
from ...core.errors import RefusedError
from ...core.wire import codec
from ...core.wire.steps import StepReply
from ...engine.rows import gather_rows
from ...net.connection import Connection, FrameWriter, Lender
from ...net.stream import READ_BYTES
from ...proto.v1 import session_pb2


class ConnectionAnswer:
    """Sends values behind the answer.

    Args:
        connection: Carries the answer.
        lend: Memory for large parts.
    """

    def __init__(self, connection: Connection, lend: Lender) -> None:
        self._connection = connection
        self._lend = lend
        self._room: Array | None = None
        self._writer: FrameWriter

    def begin(self, reply: StepReply) -> None:
        """Begin the frame."""
        self._writer = self._connection.frame(_message(reply), reply.payload_bytes, self._lend)

    def room(self, num_bytes: int) -> Array | None:
        """Lent memory, but for small parts: they are joined, and it is used again for the next."""
        self._room = self._lend(num_bytes)[:num_bytes] if num_bytes >= READ_BYTES else None
        return self._room

    def copy(self, values: Array, rows: Array | None = None) -> bytes | memoryview:
        """Copy values to lent memory, where they are not there already."""
        room, self._room = self._room, None
        if rows is None:
            if room is not None and _is_in(values, room):
                return room.data
            return self._writer.copy(values)
        num_bytes = rows.size * values.shape[1] * values.itemsize
        out = self._lend(num_bytes)[:num_bytes].view(values.dtype)
        gather_rows(values, rows, out.reshape(rows.size, values.shape[1]))
        # Small parts are joined, and the memory is used again for the next one.
        return out.tobytes() if num_bytes < READ_BYTES else out.view(np.uint8).data

    def write(self, part: bytes | memoryview) -> None:
        """Send a part."""
        self._writer.write(part)

    def finish(self) -> None:
        """Send what is left."""
        self._writer.finish()


class SegmentAnswer:
    """Leaves values in the worker's segment, and then says so.

    Args:
        connection: Carries the answer.
        room: Part of the segment, uint8. Nothing is read from it: the worker may write there.
    """

    def __init__(self, connection: Connection, room: Array) -> None:
        self._connection = connection
        self._left = room
        self._reply = StepReply(0)

    def begin(self, reply: StepReply) -> None:
        """Keep the reply: the worker reads the segment once it has it.

        Raises:
            RefusedError: The worker made less room than it asks for. The session is over.
        """
        if reply.payload_bytes > self._left.size:
            raise RefusedError(
                f"values of {reply.payload_bytes} bytes in a room of {self._left.size}"
            )
        self._reply = reply
        reply.values_in_segment = bool(reply.payload_bytes)

    def room(self, num_bytes: int) -> Array | None:
        """Return the memory where the next part goes."""
        return self._left[:num_bytes]

    def copy(self, values: Array, rows: Array | None = None) -> None:
        """Copy values to where they go, where they are not there already."""
        if rows is not None:
            values = gather_rows(values, rows)
        part, self._left = self._left[: values.nbytes], self._left[values.nbytes :]
        if not _is_in(values, part):
            copy_into(part, values.reshape(-1).view(np.uint8))

    def write(self, part: object) -> None:
        """Do nothing: the part is in the segment already."""

    def finish(self) -> None:
        """Send the reply."""
        self._connection.send([_message(self._reply)])


def _is_in(values: Array, room: Array) -> bool:
    """Return whether values were read into the memory that was there for them."""
    return values.ctypes.data == room.ctypes.data


def _message(reply: StepReply) -> bytes:
    return session_pb2.ServerMessage(step=codec.reply_to_wire(reply)).SerializeToString()
