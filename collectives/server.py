"""The server of one worker of a synchronous job: lets the worker before it in the ring send to it."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from ..core import error_table
from ..core.errors import AddressInUseError, WindlassError
from ..core.settings import Settings
from ..core.task import TaskId
from ..core.versions import Versions, check_protocol, own_versions
from ..net.frames import field, read_fields
from ..net.hosting import GrpcHost, bind_address
from ..net.listeners import LocalListener, TcpListener
from ..net.shared_memory import unavailable
from ..net.tickets import Tickets
from ..proto.v1 import collective_pb2, common_pb2
from .incoming import Incoming, StreamReceiver
from .local_link import LocalReceiver
from .ring_frames import Progress
from .tcp_link import TcpReceiver

log = logging.getLogger(__name__)

_SERVICE = collective_pb2.DESCRIPTOR.services_by_name["Collective"]
_HELLO = collective_pb2.LinkFrame.HELLO_FIELD_NUMBER
_THREADS = 32
_MAX_LINKS = 64  # rings of one program, and links that are about to be replaced

Probe = Callable[[], Progress]


class CollectiveServer:
    """Answers the other workers. One per process; every ring of the process uses it.

    Args:
        task: This worker.
        settings: For the bind rule and the bounds.
    """

    def __init__(self, task: TaskId, settings: Settings) -> None:
        self._task = task
        self.incoming = Incoming()
        self._lock = threading.Lock()
        self._probes: dict[int, Probe] = {}
        shares = settings.shared_memory and not unavailable()
        self._local = LocalListener(self._local_link, _MAX_LINKS) if shares else None
        self._tcp = TcpListener(task, self._tcp_link, _MAX_LINKS) if settings.tcp_sessions else None
        self._tcp_port = 0
        self._tickets = Tickets(_MAX_LINKS)
        self._settings = settings
        self._host = GrpcHost(
            task,
            threads=_THREADS,
            daemon=True,  # a link of a neighbour that lives on must not keep this process
            settings=settings,
            add=self._add_to_server,
            services=[_SERVICE.full_name],
        )

    def start(self, address: str) -> None:
        """Listen.

        Raises:
            AddressInUseError: The port is taken.
            ConfigurationError: The address is not loopback and ``insecure`` was not said.
        """
        # First where links come in: whoever hears of it at the port may come at once.
        try:
            if self._tcp is not None:
                self._tcp_port = self._listen(self._tcp, address)
            if self._local is not None:
                self._local.start()
            self._host.start(address)
        except WindlassError:
            self.stop()
            raise

    def _listen(self, listener: TcpListener, address: str) -> int:
        host = bind_address(address, self._settings).rpartition(":")[0]
        try:
            return listener.start(host, self._settings.session_port)
        except AddressInUseError as error:
            # Several workers of one host share memory, and only one can have the port that was named.
            log.warning("links come in over gRPC if not in shared memory: %s", error)
            return 0

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._host.port

    def stop(self) -> None:
        """Answer nobody any more."""
        for listener in (self._local, self._tcp):
            if listener is not None:
                listener.stop()
        self.incoming.close()
        self._host.stop(0)

    def set_probe(self, ring: int, probe: Probe) -> None:
        """What tells how far a ring is."""
        with self._lock:
            self._probes[ring] = probe

    def forget_probe(self, ring: int) -> None:
        """The ring is closed."""
        with self._lock:
            self._probes.pop(ring, None)

    def _add_to_server(self, server: grpc.Server) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Join": grpc.unary_unary_rpc_method_handler(
                self._join,
                request_deserializer=collective_pb2.JoinRingRequest.FromString,
                response_serializer=collective_pb2.JoinRingResponse.SerializeToString,
            ),
            # Frames pass as they are.
            "Send": grpc.stream_stream_rpc_method_handler(self._send),
            "Probe": grpc.unary_unary_rpc_method_handler(
                self._probe,
                request_deserializer=collective_pb2.ProbeRequest.FromString,
                response_serializer=collective_pb2.ProbeResponse.SerializeToString,
            ),
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers),)
        )

    def _join(
        self, request: collective_pb2.JoinRingRequest, context: grpc.ServicerContext
    ) -> collective_pb2.JoinRingResponse:
        ours, theirs = own_versions(), request.versions
        try:
            check_protocol(
                ours,
                Versions(theirs.protocol, theirs.windlass, theirs.python, theirs.numpy),
                peer=f"/job:{getattr(request, 'from').type}/task:{getattr(request, 'from').index}",
            )
        except WindlassError as error:
            error_table.abort(context, error)
        return collective_pb2.JoinRingResponse(
            versions=common_pb2.Versions(
                protocol=ours.protocol,
                windlass=ours.windlass,
                python=ours.python,
                numpy=ours.numpy,
            ),
            local_socket=self._local.name if self._local is not None else "",
            session_port=self._tcp_port,
            ticket=self._tickets.issue(),
        )

    def _send(
        self,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> Iterator[bytes]:
        receiver = StreamReceiver()
        try:
            hello = collective_pb2.RingPlace.FromString(
                bytes(dict(read_fields(next(requests)))[_HELLO])
            )
            self.incoming.put(hello.ring, hello.rank, receiver)
            yield field(_HELLO, b"")  # taken in
            receiver.feed(requests)
        except (grpc.RpcError, StopIteration):
            log.debug("a link broke off")
        finally:
            receiver.end()

    def _probe(
        self,
        request: collective_pb2.ProbeRequest,
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> collective_pb2.ProbeResponse:
        with self._lock:
            probe = self._probes.get(request.ring)
        found = probe() if probe is not None else Progress()
        return collective_pb2.ProbeResponse(
            task=common_pb2.Task(type=self._task.type, index=self._task.index),
            calls=found.calls,
            doing=found.doing,
            waiting=found.waiting,
            failure=error_table.to_detail(found.failure) if found.failure is not None else None,
        )

    def _local_link(self, connection: socket.socket) -> None:
        try:
            receiver = LocalReceiver(connection)
        except (OSError, ValueError, WindlassError) as error:
            log.debug("a local link was refused: %s", error)
            connection.close()
            return
        self.incoming.put(receiver.place.ring, receiver.place.rank, receiver)

    def _tcp_link(self, connection: socket.socket) -> None:
        try:
            receiver = TcpReceiver(connection)
            if not self._tickets.redeem(receiver.ticket):
                raise ConnectionError("a link begins with a call of Join")
            receiver.accept()
        except (OSError, ValueError, WindlassError) as error:
            log.debug("a link over TCP was refused: %s", error)
            connection.close()
            return
        self.incoming.put(receiver.place.ring, receiver.place.rank, receiver)
