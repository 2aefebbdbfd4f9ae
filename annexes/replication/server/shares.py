"""All shares of one ps: its own, and those that it follows or leads for another one."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from ....cluster.replication.configuration import CopyTo, Lead, PsReport, ReplicaRole, ShareState
from ....cluster.replication.replica import GRANT_S
from ....core.arrays.dtypes import Array, as_bytes
from ....core.errors import FencedError, RefusedError, RopewalkError
from ....core.process.processes import memory_bytes
from ....core.process.threads import new_thread
from ....core.report import PsCounters, total_counters
from ....core.settings import Settings
from ....core.task import Incarnation, TaskId
from ....core.wire import codec
from ....core.wire.bounds import MAX_NAME_BYTES, check_text
from ....net.connection import Connection
from ....net.connection_choice import ConnectionKind
from ....net.dial import Dialer, WrapStream, reach, receive_message
from ....net.shared_memory import SharedSegment
from ....proto.v1 import replication_pb2, session_pb2
from ....server.ps.limits import HeldBytes
from ....server.ps.store import Store
from ....telemetry.catalogue import Sample
from ....telemetry.task_metrics import follower_samples
from .follower import FollowerLink, SegmentsSent
from .record_codec import RecordEncoder
from .records import BlockUpdated, CopiedTile, HandedOver, Record
from .share import ReplicatedShare
from .share_part import SERVICE
from .stream import RecordStream

log = logging.getLogger(__name__)

# -- A leader's link to one follower -----------------------------------------------------------


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


_HELD = (ReplicaRole.LEADING, ReplicaRole.FOLLOWING)
_MAX_SHARES = 4096  # a number from the network makes no more


class PsShares:
    """The shares of one ps, where they move. Thread-safe.

    The chief says who leads: this process may be a second one, started after the share was lost
    here, or one more than the job had at its start.

    Args:
        task: Task of this ps.
        settings: Settings of this ps.
        process: Identity of this process.
        job: The job served here; empty: none yet.
    """

    def __init__(
        self, task: TaskId, settings: Settings, process: int, job: Callable[[], str] = str
    ) -> None:
        self._task = task
        self._settings = settings
        self._process = process
        self._job = job
        self._lock = threading.Lock()
        self._shares: dict[int, ReplicatedShare] = {}
        self._change = threading.Condition()
        self._changes = 1
        self.draining = False
        self.at(task.index)
        self._closing = threading.Event()
        new_thread("check-followers", self._check, failed=self._check_failed).start()

    def _check(self) -> None:
        while not self._closing.wait(GRANT_S / 4):
            for share in self._all():
                share.check()

    @staticmethod
    def _check_failed(error: BaseException) -> None:
        log.error("followers are not asked any more, and reads wait for them: %r", error)

    def at(self, number: int) -> ReplicatedShare:
        """Find the share of a number, which this ps may not hold.

        Raises:
            RefusedError: There are no such shares.
        """
        if number >= _MAX_SHARES:
            raise RefusedError(f"share {number} is beyond {_MAX_SHARES}")
        with self._lock:
            share = self._shares.get(number)
            if share is None:
                share = self._shares[number] = ReplicatedShare(
                    number,
                    self._task,
                    self._settings,
                    contents=self._process,
                    changed=self._changed,
                    beside=lambda: self._bytes_beside(number),
                )
            return share

    def _bytes_beside(self, number: int) -> HeldBytes:
        others = [share for share in tuple(self._shares.values()) if share.number != number]
        held = [share.store.table.held() for share in others]
        return HeldBytes(sum(each.memory for each in held), sum(each.disk for each in held))

    def counters(self, sessions: int = 0) -> PsCounters:
        """Add up the counters of the shares that this ps leads.

        Args:
            sessions: Workers connected.
        """
        led = (share.store.counters() for share in self._all() if share.leads)
        return total_counters(led, sessions)

    def held(self) -> tuple[int, int, bool]:
        """Count what a restarted chief asks for.

        Returns:
            (shards, global step) of the shares that this ps has whole, led or followed; and whether
            it has any part in a share.
        """
        shares = [share for share in self._all() if share.is_held]
        counters = total_counters((share.store.counters() for share in shares), 0)
        takes_part = any(share.replica.role is not ReplicaRole.NONE for share in self._all())
        return counters.shards, counters.global_step, takes_part

    @property
    def max_bytes(self) -> int:
        """Most bytes of values and slots of all shares."""
        return self._settings.max_ps_bytes or memory_bytes() * 4 // 5

    def led(self, number: int) -> Store:
        """Return the store of a share that this ps leads.

        Raises:
            MovedError: It does not.
        """
        return self.at(number).led()

    def copy(self, order: CopyTo, address: str) -> None:
        """Obey an order to copy a share; see :meth:`ReplicatedShare.copy_to`."""
        self.at(order.share).copy_to(order, address, self._open_link)

    def succeed(
        self, share: ReplicatedShare, leader: TaskId, said: HandedOver, take: Callable[[], None]
    ) -> None:
        """Lead a share as the last record of its leader says; see :meth:`ReplicatedShare.succeed`.

        Args:
            share: The share.
            leader: Leader that this ps has followed.
            said: The record.
            take: Takes it.
        """
        check_text(said.address, MAX_NAME_BYTES, "the address of the ps that led", leader)
        lead = Lead(share.number, said.epoch, self._task, (leader,), leader_ended=True)
        follow_on = CopyTo(share.number, said.epoch, self._task, leader)

        def open_former(stream: RecordStream) -> FollowerLink:
            return self._open_link(follow_on, said.address, stream, goes_on=True)

        share.succeed(lead, take, open_former if said.address else None)

    def _open_link(
        self, order: CopyTo, address: str, stream: RecordStream, *, goes_on: bool = False
    ) -> FollowerLink:
        if order.follower == self._task:
            raise FencedError(f"{self._task} cannot follow itself", task=self._task)
        return RemoteLink(
            order.follower,
            address,
            Incarnation(self._task, 1, self._job()),  # the chief gives out none to ps
            share=order.share,
            epoch=order.epoch,
            goes_on=goes_on,
            stream=stream,
            settings=self._settings,
        )

    # -- reporting -----------------------------------------------------------------------------

    def watch(self, seen: int, wait_s: float) -> tuple[int, PsReport]:
        """Report the roles of this ps in its shares; waits for a change beyond ``seen``.

        Returns:
            (number of changes until now, the report)
        """
        with self._change:
            self._change.wait_for(lambda: self._changes != seen, wait_s)
            changes = self._changes
        return changes, PsReport(self._process, self.draining, tuple(self.states()))

    def states(self) -> list[ShareState]:
        """List the state of each share on this ps, by number."""
        return [share.state for share in self._all()]

    def samples(self) -> Iterator[Sample]:
        """Yield roles of this ps, and how far its followers are behind."""
        states = self.states()
        return follower_samples(
            [each.role.value for each in states if each.role in _HELD],
            [
                (each.share, follower.task, follower.position - follower.acknowledged)
                for each in states
                for follower in each.followers
            ],
        )

    def drain(self) -> None:
        """Report that this ps was asked to leave."""
        self.draining = True
        self._changed()

    def _changed(self) -> None:
        with self._change:
            self._changes += 1
            self._change.notify_all()

    def _all(self) -> list[ReplicatedShare]:
        with self._lock:
            return [self._shares[number] for number in sorted(self._shares)]

    def close(self) -> None:
        """Break all links."""
        self._closing.set()
        for share in self._all():
            share.close()
