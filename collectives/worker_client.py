"""Reaching the other workers of a synchronous job: the link to the next one in the ring, and probes."""

import contextlib
import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from ..client.ps.streams import tcp_connection
from ..core.arrays import Array
from ..core.backoff import attempts
from ..core.error_table import from_detail
from ..core.errors import PeerLostError, WindlassError
from ..core.settings import Settings
from ..core.task import TaskId
from ..core.versions import Versions, check_protocol, own_versions
from ..net.channel import invoke, open_channel
from ..net.frame_socket import peer_user
from ..net.frames import field, prefix
from ..proto.v1 import collective_pb2, common_pb2
from .local_link import LocalSender
from .ring_frames import Place, Progress, Sender
from .tcp_link import TcpSender

log = logging.getLogger(__name__)

_SEND = "/windlass.proto.v1.Collective/Send"
_FRAME = collective_pb2.LinkFrame
_CALL_S = 5.0
_CONNECT_S = 2.0
_BACKLOG = 8  # frames that wait for grpc's thread


class WorkerClient:
    """One other worker.

    Args:
        task: Which.
        address: Where it serves.
        settings: Timeouts and bounds.
    """

    def __init__(self, task: TaskId, address: str, settings: Settings) -> None:
        self.task = task
        self.address = address
        self._settings = settings
        self._channel = open_channel(address, settings)
        self._join = self._channel.unary_unary(
            "/windlass.proto.v1.Collective/Join",
            collective_pb2.JoinRingRequest.SerializeToString,
            collective_pb2.JoinRingResponse.FromString,
        )
        self._probe = self._channel.unary_unary(
            "/windlass.proto.v1.Collective/Probe",
            collective_pb2.ProbeRequest.SerializeToString,
            collective_pb2.ProbeResponse.FromString,
        )

    @property
    def peer(self) -> str:
        """For messages."""
        return f"{self.task} ({self.address})"

    def open_link(
        self,
        who: TaskId,
        place: Place,
        *,
        timeout_s: float,
        still_wanted: Callable[[], None] = lambda: None,
    ) -> Sender:
        """The link to this worker, waiting for it to start: the best of those that can be reached.

        Shared memory on one machine, a TCP connection between two, a gRPC stream for want of both.

        Raises:
            PeerLostError: It did not answer in time.
            ProtocolMismatchError: It speaks another protocol.
        """

        def waiting(error: Exception | None) -> None:
            still_wanted()
            log.debug("waiting for %s: %s", self.peer, error)

        ours = own_versions()
        request = collective_pb2.JoinRingRequest(
            place=collective_pb2.RingPlace(
                ring=place.ring, rank=place.rank, size=place.size, life=place.life
            ),
            versions=common_pb2.Versions(
                protocol=ours.protocol, windlass=ours.windlass, python=ours.python, numpy=ours.numpy
            ),
            **{"from": common_pb2.Task(type=who.type, index=who.index)},
        )
        for attempt in attempts(timeout_s=timeout_s, max_s=0.5, before_sleep=waiting):
            with attempt:
                answer = invoke(
                    self._join, request, peer=self.peer, doing="join the ring", timeout_s=_CALL_S
                )
        theirs = answer.versions
        check_protocol(
            ours,
            Versions(theirs.protocol, theirs.windlass, theirs.python, theirs.numpy),
            peer=self.peer,
        )
        if answer.local_socket and self._settings.shared_memory:
            try:
                return _local_link(answer.local_socket, place)
            except (OSError, WindlassError) as error:
                log.debug("%s: no shared memory: %s", self.peer, error)
        if answer.session_port and self._settings.tcp_sessions:
            host = self.address.rpartition(":")[0]
            try:
                return _tcp_link(host, answer.session_port, place, answer.ticket)
            except (OSError, WindlassError) as error:
                log.info("%s: the link stays with gRPC: %s", self.peer, error)
        return StreamSender(self._channel, place, self.peer)

    def progress(self, ring: int, timeout_s: float) -> Progress:
        """How far it is.

        Raises:
            PeerLostError: It does not answer.
        """
        answer = invoke(
            self._probe,
            collective_pb2.ProbeRequest(ring=ring),
            peer=self.peer,
            doing="probe",
            timeout_s=timeout_s,
        )
        failure = from_detail(answer.failure) if answer.HasField("failure") else None
        return Progress(answer.calls, answer.doing, answer.waiting, failure)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def _local_link(name: str, place: Place) -> LocalSender:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_S)
        connection.connect(f"\0{name}")
        if peer_user(connection) != os.getuid():
            raise ConnectionError("another user has it")
        connection.settimeout(None)
        return LocalSender(connection, place)
    except (OSError, WindlassError):
        connection.close()
        raise


def _tcp_link(host: str, port: int, place: Place, ticket: bytes) -> TcpSender:
    connection = tcp_connection(host, port)
    try:
        return TcpSender(connection, place, ticket)
    except OSError:
        connection.close()
        raise


def _as_it_is(frame: bytes) -> bytes:
    return frame


class StreamSender:
    """A link over a gRPC stream; frames are sent from grpc's thread.

    Args:
        channel: To the worker.
        place: Whose link it is.
        peer: For messages.
    """

    description = "grpc"

    def __init__(self, channel: grpc.Channel, place: Place, peer: str) -> None:
        self._peer = peer
        self._frames: queue.Queue[bytes | None] = queue.Queue(_BACKLOG)
        self._broken = threading.Event()
        hello = collective_pb2.RingPlace(
            ring=place.ring, rank=place.rank, size=place.size, life=place.life
        )
        self._frames.put(field(_FRAME.HELLO_FIELD_NUMBER, hello.SerializeToString()))
        self._call: Any = channel.stream_stream(_SEND, _as_it_is, _as_it_is)(self._requests())
        overdue = threading.Timer(_CALL_S, self._call.cancel)
        overdue.start()
        try:
            next(self._call)  # taken in
        except (grpc.RpcError, StopIteration) as error:
            self._frames.put(None)
            raise PeerLostError(
                f"{peer} did not take the link in within {_CALL_S:g} s: {error}", peer=peer
            ) from error
        finally:
            overdue.cancel()
        self._call.add_callback(self._broken.set)

    def _requests(self) -> Iterator[bytes]:
        while (frame := self._frames.get()) is not None:
            yield frame

    def send(self, head: bytes, payload: Array, timeout_s: float) -> None:
        """Send one frame."""
        if self._broken.is_set():
            raise ConnectionError("the stream ended")
        data = payload.data if payload.size else b""
        frame = b"".join(
            (
                field(_FRAME.HEAD_FIELD_NUMBER, head),
                prefix(_FRAME.PAYLOAD_FIELD_NUMBER, payload.size),
                data,
            )
        )
        try:
            self._frames.put(frame, timeout=timeout_s)
        except queue.Full:
            if self._broken.is_set():
                raise ConnectionError("the stream ended") from None
            raise TimeoutError from None

    def close(self, linger_s: float = 1.0) -> None:
        """End the stream, once the receiver has read what was sent or for ``linger_s`` reads nothing."""
        with contextlib.suppress(queue.Full):
            self._frames.put(None, timeout=linger_s)
            if self._broken.wait(linger_s):
                return
        self._call.cancel()
