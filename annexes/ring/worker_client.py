"""Reaching the other workers of a synchronous job: the link to the next one in the ring, and
probes.
"""

import logging
import time
from collections.abc import Callable

from ...cluster.access import principal_of_task
from ...core.backoff import attempts
from ...core.errors import PeerLostError, RefusedError
from ...core.process.waiting import WaitLog
from ...core.settings import Settings
from ...core.task import Incarnation, TaskId
from ...core.wire.error_table import from_detail
from ...net.channel import UnaryClient
from ...net.connection import Connection
from ...net.connection_choice import ConnectionKind
from ...net.dial import Dialer, WrapStream, reach, receive_message
from ...net.shared_memory import SharedSegment
from ...net.stream import NEVER
from ...proto.v1 import collective_pb2, collective_pb2_grpc, session_pb2
from .slot_link import LINK_BYTES, SlotSender
from .stream_link import RingMember, RingProgress, Sender, StreamSender

log = logging.getLogger(__name__)

SERVICE = "ring"
_ATTEMPT_TIMEOUT_S = 5.0


class WorkerClient(UnaryClient):
    """A client of another worker.

    Args:
        task: Task of the other worker.
        address: Address at which the other worker serves.
        settings: Timeouts and bounds.
        caller: Incarnation of this worker.
        wrap: Put around every byte stream: the seam for faults.
    """

    def __init__(
        self,
        task: TaskId,
        address: str,
        settings: Settings,
        caller: TaskId,
        wrap: WrapStream = lambda stream: stream,
    ) -> None:
        principal = principal_of_task(caller, settings.job_id)
        super().__init__(address, f"{task} ({address})", settings, principal)
        self.task = task
        self._wrap = wrap
        self._stub = collective_pb2_grpc.CollectiveStub(self._channel)

    def open_link(
        self,
        who: Incarnation,
        member: RingMember,
        *,
        timeout_s: float,
        began: float | None = None,
        still_wanted: Callable[[], None] = lambda: None,
    ) -> Sender:
        """Open the link to the worker, waiting for it to start: over the best connection there is.

        Args:
            who: The caller.
            member: Place of the caller in the ring.
            timeout_s: Longest time that it may take since ``began``. Unit: seconds.
            began: Time at which the wait began, by ``time.monotonic``; None: now.
            still_wanted: Called while waiting; raises to give up.

        Raises:
            PeerLostError: It did not answer in time.
            ProtocolMismatchError: It speaks another protocol.
        """
        now = time.monotonic()
        began = now if began is None else began
        left_s = began + timeout_s - now
        waits = WaitLog(who.task, limit_s=timeout_s, limit="join_timeout_s", began=began)

        def waiting(error: Exception | None) -> None:
            still_wanted()
            waits.tick(f"{self.peer} to join the ring", error or "")

        for attempt in attempts(timeout_s=left_s, max_s=0.5, before_sleep=waiting):
            with attempt:
                link = self._open_link(who, member, self._settings)
        waits.done()
        return link

    def _open_link(self, who: Incarnation, member: RingMember, settings: Settings) -> Sender:
        hello = session_pb2.Hello(
            service=SERVICE,
            ring=session_pb2.RingMember(ring=member.ring, rank=member.rank, size=member.size),
        )
        dialer = Dialer(self.address, self.peer, hello, who, settings, self._wrap, self.task)
        reached = reach(dialer, settings, _ATTEMPT_TIMEOUT_S, peer=self.peer)
        connection = reached.connection
        connection.deadline = time.monotonic() + _ATTEMPT_TIMEOUT_S
        try:
            if reached.choice.kind is ConnectionKind.SHARED_MEMORY:
                return _begin_with_slots(connection)
            message = session_pb2.ClientMessage(begin_link=session_pb2.BeginLink())
            connection.send([message.SerializeToString()])
            connection.deadline = NEVER
            return StreamSender(connection)
        except (OSError, RefusedError) as error:
            connection.cancel()
            connection.close()
            if reached.choice.kind is ConnectionKind.SHARED_MEMORY:
                log.warning("%s: the link shares no memory: %s", self.peer, error)
                without = settings.model_copy(update={"shared_memory": False})
                return self._open_link(who, member, without)
            raise PeerLostError(
                f"{self.peer} did not take the link in: {error}", peer=self.peer
            ) from error

    def progress(self, ring: int, timeout_s: float) -> RingProgress:
        """Ask for the worker's progress.

        Raises:
            PeerLostError: It does not answer.
        """
        answer = self._call(
            self._stub.Probe, collective_pb2.ProbeRequest(ring=ring), "probe", timeout_s
        )
        failure = from_detail(answer.failure) if answer.HasField("failure") else None
        return RingProgress(answer.calls, answer.doing, answer.waiting, failure)


def _begin_with_slots(connection: Connection) -> SlotSender:
    segment = SharedSegment.create(LINK_BYTES)
    try:
        begin = session_pb2.BeginLink(segment_bytes=segment.num_bytes)
        message = session_pb2.ClientMessage(begin_link=begin)
        connection.send_with_descriptor(message.SerializeToString(), segment.descriptor)
        receive_message(connection)  # it is mapped
    finally:
        segment.close()
    connection.deadline = NEVER
    return SlotSender(connection, segment)
