"""A leader's link to one follower."""

import time
from collections.abc import Sequence
from contextlib import suppress

from ....core.arrays.dtypes import Array, as_bytes
from ....core.errors import WindlassError
from ....core.process.threads import new_thread
from ....core.settings import Settings
from ....core.task import Incarnation, TaskId
from ....core.wire import codec
from ....net.connection import Connection
from ....net.dial import Dialer, WrapStream, receive_message
from ....net.reach import reach
from ....proto.v1 import replication_pb2, session_pb2
from .following import SERVICE
from .record_codec import RecordEncoder
from .records import Record
from .stream import RecordStream


class RemoteLink:
    """Sends records to a follower, and reads its acknowledgements.

    See :class:`~windlass.server.ps.replication.stream.FollowerLink`.

    Args:
        follower: The ps that follows.
        address: Where it is.
        leader: This ps.
        share: Number of the share.
        epoch: In which this ps leads it.
        stream: Hears the acknowledgements.
        settings: Deadlines and bounds.
        wrap: Put around every byte stream: the seam for faults.

    Raises:
        PeerLostError: The follower cannot be reached.
        WindlassError: It refused.
    """

    def __init__(
        self,
        follower: TaskId,
        address: str,
        leader: Incarnation,
        *,
        share: int,
        epoch: int,
        stream: RecordStream,
        settings: Settings,
        wrap: WrapStream = lambda stream: stream,
    ) -> None:
        self._follower = follower
        self._stream = stream
        self._timeout_s = settings.request_timeout_s
        self._failure: BaseException | None = None
        peer = f"{follower} ({address})"
        hello = session_pb2.Hello(service=SERVICE, share=share)
        dialer = Dialer(address, peer, hello, leader, settings, wrap, follower)
        reached = reach(dialer, settings, settings.reconnect_timeout_s, peer=peer)
        self._connection: Connection = reached.connection
        self._encoder = RecordEncoder(epoch)
        begin = replication_pb2.Record(epoch=epoch)
        begin.begin.share = share
        begin.begin.leader.CopyFrom(codec.task_to_wire(leader.task))
        try:
            self._send(begin, ())
        except OSError as error:
            self._connection.close()
            raise dialer.lost("follow", error) from error
        new_thread(f"{follower.short}-follows", self._read, failed=self._ended).start()

    def send(self, position: int, record: Record) -> None:
        """Send a record. One thread at a time.

        Raises:
            OSError: The link broke, or took nothing for ``request_timeout_s``.
            WindlassError: The follower has ended it, for this reason.
        """
        if self._failure is not None:
            raise self._failure
        self._send(*self._encoder.encode(position, record))

    def cancel(self) -> None:
        """Break the link. From any thread."""
        self._connection.cancel()

    def lead_in(self, epoch: int) -> None:
        """See :meth:`~windlass.server.ps.replication.stream.FollowerLink.lead_in`."""
        self._encoder.epoch = epoch

    def _send(self, message: replication_pb2.Record, arrays: Sequence[Array]) -> None:
        parts = [as_bytes(array) for array in arrays]
        size = sum(part.nbytes for part in parts)
        # One that takes nothing would hold up every session, which waits for the stream.
        self._connection.deadline = time.monotonic() + self._timeout_s
        self._connection.send([message.SerializeToString()], parts, size)

    def _read(self) -> None:
        try:
            while True:
                self._connection.deadline = time.monotonic() + self._timeout_s
                with suppress(TimeoutError):  # nothing was sent to it for so long
                    said = receive_message(self._connection).acknowledged
                    self._stream.acknowledge(self, said.position)
        except (OSError, WindlassError) as error:
            self._ended(error)
        self._connection.close()

    def _ended(self, error: BaseException) -> None:
        self._failure = error
        self._stream.link_ended(self, error)
