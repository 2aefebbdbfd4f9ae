"""A leader's link to one follower."""

import time
from collections.abc import Sequence

from ....core.arrays.dtypes import Array, as_bytes
from ....core.errors import RopewalkError
from ....core.settings import Settings
from ....core.task import Incarnation, TaskId
from ....core.wire import codec
from ....net.connection import Connection
from ....net.connection_choice import ConnectionKind
from ....net.dial import Dialer, WrapStream, reach, receive_message
from ....net.shared_memory import SharedSegment
from ....proto.v1 import replication_pb2, session_pb2
from .following import SERVICE
from .record_codec import RecordEncoder
from .records import BlockUpdated, CopiedTile, Record
from .segments import SegmentsSent
from .stream import RecordStream

_GOES_ON_S = 2.0  # for the ps that led before: it is there at once, or not at all


class RemoteLink:
    """Sends records to a follower, and reads its acknowledgements when it is told to.

    See :class:`~ropewalk.annexes.replication.server.follower.FollowerLink`.

    Args:
        follower: The ps that follows.
        address: Address of the follower.
        leader: Incarnation of this ps, which leads.
        share: Number of the share.
        epoch: Epoch in which this ps leads it.
        goes_on: The follower has what this ps has, and is copied nothing: this ps followed it, and
            it has handed over.
        stream: Hears the acknowledgements.
        settings: Deadlines and bounds.
        wrap: Put around every byte stream: the seam for faults.

    Raises:
        PeerLostError: The follower cannot be reached.
        RopewalkError: It refused.
    """

    def __init__(
        self,
        follower: TaskId,
        address: str,
        leader: Incarnation,
        *,
        share: int,
        epoch: int,
        goes_on: bool = False,
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
        within_s = _GOES_ON_S if goes_on else settings.reconnect_timeout_s
        reached = reach(dialer, settings, within_s, peer=peer)
        self._connection: Connection = reached.connection
        passes_files = reached.choice.kind is ConnectionKind.SHARED_MEMORY
        self._segments = SegmentsSent() if passes_files else None
        self._encoder = RecordEncoder(epoch, self._segments)
        begin = replication_pb2.Record(epoch=epoch)
        begin.begin.share = share
        begin.begin.leader.CopyFrom(codec.task_to_wire(leader.task))
        begin.begin.goes_on = goes_on
        try:
            self._send(begin, ())
        except BaseException as error:
            self._connection.close()
            if isinstance(error, OSError):
                raise dialer.lost("follow", error) from error
            raise

    @property
    def shares_memory(self) -> bool:
        """See :class:`~ropewalk.annexes.replication.server.follower.FollowerLink`."""
        return self._segments is not None

    def send(self, position: int, record: Record) -> None:
        """Send a record. One thread at a time.

        Raises:
            OSError: The link broke, or took nothing for ``request_timeout_s``.
            RopewalkError: The follower has ended it, for this reason.
        """
        if self._failure is not None:
            raise self._failure
        segments = self._segments
        if segments is not None and isinstance(record, (BlockUpdated, CopiedTile)):
            self._hand_on(record.segment, segments)
        message, arrays = self._encoder.encode(position, record)
        if segments is not None:
            message.gone_segments.extend(segments.take_gone())
        self._send(message, arrays)

    def _hand_on(self, segment: SharedSegment | None, segments: SegmentsSent) -> None:
        """Pass a segment to the follower, if it has not got it yet."""
        if segment is None or segment.descriptor < 0 or segments.number_of(segment):
            return
        message = replication_pb2.Record()
        message.segment.number = segments.add(segment)
        message.segment.num_bytes = segment.num_bytes
        self._connection.deadline = time.monotonic() + self._timeout_s
        self._connection.send_with_descriptor(message.SerializeToString(), segment.descriptor)

    def cancel(self) -> None:
        """Break the link. From any thread."""
        self._connection.cancel()

    def close(self) -> None:
        """Close the connection; no call runs any more."""
        self._connection.close()

    def lead_in(self, epoch: int) -> None:
        """See :meth:`~ropewalk.annexes.replication.server.follower.FollowerLink.lead_in`."""
        self._encoder.epoch = epoch

    def _send(self, message: replication_pb2.Record, arrays: Sequence[Array]) -> None:
        parts = [as_bytes(array) for array in arrays]
        size = sum(part.nbytes for part in parts)
        # One that takes nothing would hold up every session, which waits for the stream.
        self._connection.deadline = time.monotonic() + self._timeout_s
        self._connection.send([message.SerializeToString()], parts, size)

    def read(self, timeout_s: float) -> None:
        """See :meth:`~ropewalk.annexes.replication.server.follower.FollowerLink.read`."""
        connection, last = self._connection, 0
        connection.receive_deadline = time.monotonic() + timeout_s
        try:
            while not last or connection.has_begun_another:
                last = receive_message(connection).acknowledged.position
        except TimeoutError:
            pass
        except (OSError, RopewalkError) as error:
            self._failure = error
            self._stream.link_ended(self, error)
        if last:
            self._stream.acknowledge(self, last)
