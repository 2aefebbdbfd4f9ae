"""The server of one worker of a synchronous job, shared by the rings of its strategies.

Lets the worker before it in the ring send to it.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from google.protobuf.descriptor import ServiceDescriptor

from ...core.errors import LimitExceededError, OtherJobError, RefusedError
from ...core.settings import Settings
from ...core.task import TaskId, is_other_job
from ...core.wire import codec, error_table
from ...core.wire.bounds import check_number
from ...net.auth.guard import Guard, Visitor
from ...net.connection import Connection
from ...net.dial import parse
from ...net.endpoint import Greeting
from ...net.host import HostedServer, TaskHost
from ...net.listener import GREETING_TIMEOUT_S
from ...net.shared_memory import SharedSegment
from ...net.stream import NEVER
from ...net.unary import Servicer
from ...proto.v1 import collective_pb2, common_pb2, session_pb2
from .slot_link import SlotReceiver
from .stream_link import Receiver, RingProgress, StreamReceiver
from .worker_client import SERVICE

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor

    from ...net.unary import Servicer

# -- Accepted links that wait for their ring ---------------------------------------------------


class Incoming:
    """Receivers by (ring, rank of the sender). Thread-safe.

    Args:
        limit: Most of them.
    """

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._links: dict[tuple[int, int], Receiver] = {}
        self._closed = False

    def put(self, ring: int, rank: int, link: Receiver) -> None:
        """Add a link. An older one of the same sender is closed: that process is gone.

        Raises:
            LimitExceededError: Too many wait already.
        """
        with self._changed:
            if len(self._links) >= self._limit and (ring, rank) not in self._links:
                raise LimitExceededError(
                    f"{self._limit} links wait already for rings that have not begun; this one, of "
                    f"rank {rank} in ring {ring}, is refused",
                    limit="links",
                    value=self._limit,
                )
            unwanted: Receiver | None = link
            if not self._closed:
                unwanted = self._links.get((ring, rank))
                self._links[(ring, rank)] = link
            self._changed.notify_all()
        if unwanted is not None:
            unwanted.close()

    def take(self, ring: int, rank: int, timeout_s: float) -> Receiver | None:
        """Take the link of a sender; None if it does not come within ``timeout_s``."""
        with self._changed:
            self._changed.wait_for(lambda: (ring, rank) in self._links, timeout_s)
            return self._links.pop((ring, rank), None)

    def close(self) -> None:
        """Close all links that were not taken, and those that still come."""
        with self._changed:
            self._closed = True
            links, self._links = list(self._links.values()), {}
        for link in links:
            link.close()


_CALLS = collective_pb2.DESCRIPTOR.services_by_name["Collective"]
_THREADS = 32
_MAX_RING = 65_536
_MAX_LINK_BYTES = 64 * 1024 * 1024  # of a link's segment, which has four slots of 1 MiB
_MAX_LINKS = 64  # rings of one program, and links that are about to be replaced

Probe = Callable[[], RingProgress]


class CollectiveServer(HostedServer):
    """Answers the other workers. One per process; every ring of the process uses it.

    Args:
        task: Task of this process.
        settings: Settings, for the bind rule and the bounds.
        more: Methods of a service at the same port: the chief's.
    """

    def __init__(
        self,
        task: TaskId,
        settings: Settings,
        more: Mapping[ServiceDescriptor, Servicer] | None = None,
    ) -> None:
        self._job_id = settings.job_id
        self._task = task
        self.incoming = Incoming(_MAX_LINKS)
        self._lock = threading.Lock()
        self._probes: dict[int, Probe] = {}
        self._host = TaskHost(
            task,
            threads=_THREADS,
            settings=settings,
            calls={_CALLS: {"Probe": self._answer_probe}, **(more or {})},
            guard=Guard(task, settings, job=lambda: self._job_id),
            sessions={SERVICE: self._accept_link},
            max_sessions=_MAX_LINKS,
        )

    def stop(self) -> None:
        """Stop serving."""
        self.incoming.close()
        self._host.stop(0)

    def set_probe(self, ring: int, probe: Probe) -> None:
        """Set the function that tells how far a ring is."""
        with self._lock:
            self._probes[ring] = probe

    def forget_probe(self, ring: int) -> None:
        """Forget the probe of a ring that is closed."""
        with self._lock:
            self._probes.pop(ring, None)

    def _answer_probe(
        self, request: collective_pb2.ProbeRequest, _: Visitor
    ) -> collective_pb2.ProbeResponse:
        with self._lock:
            probe = self._probes.get(request.ring)
        progress = probe() if probe is not None else RingProgress()
        return collective_pb2.ProbeResponse(
            task=common_pb2.Task(type=self._task.type, index=self._task.index),
            calls=progress.calls,
            doing=progress.doing,
            waiting=progress.waiting,
            failure=error_table.to_detail(progress.failure)
            if progress.failure is not None
            else None,
        )

    def _accept_link(self, greeting: Greeting) -> bool:
        """Take a link in once its sender begins: one that gave up must not replace a good link."""
        connection = greeting.connection
        who = codec.sender_of(greeting.hello)
        if is_other_job(self._job_id, who.job):
            raise OtherJobError(
                f"{self._task} trains in job {self._job_id!r}, {who.task} in job {who.job!r}: two "
                "jobs use one address. Stop one of them, or give this job addresses of its own",
                task=who.task,
                job=who.job,
            )
        member = greeting.hello.ring
        check_number(member.size, _MAX_RING, "the size of its ring", who.task, least=1)
        check_number(member.rank, member.size - 1, "its rank in the ring", who.task)
        greeting.welcome()
        connection.deadline = time.monotonic() + GREETING_TIMEOUT_S
        data = connection.receive()
        if data is None:
            return False  # the sender went on over something better, or gave up
        message = parse(session_pb2.ClientMessage, data)
        if message.WhichOneof("kind") != "begin_link":
            raise RefusedError(f"{connection.peer}: a link begins with BeginLink")
        link = self._receiver(connection, message.begin_link)
        connection.deadline = NEVER
        self.incoming.put(member.ring, member.rank, link)
        return True

    @staticmethod
    def _receiver(connection: Connection, begin: session_pb2.BeginLink) -> Receiver:
        if not begin.segment_bytes:
            return StreamReceiver(connection)
        descriptor = connection.stream.take_descriptor()
        segment = SharedSegment.receive(descriptor, begin.segment_bytes, most=_MAX_LINK_BYTES)
        segment.close()  # the mapping stays
        receiver = SlotReceiver(connection, segment)
        mapped = session_pb2.ServerMessage(slab=session_pb2.Segment(num_bytes=segment.num_bytes))
        connection.send([mapped.SerializeToString()])
        return receiver


# -- One for each address ------------------------------------------------------------------------

_lock = threading.Lock()
_servers: "dict[str, tuple[CollectiveServer, int]]" = {}  # by address: (server, open rings)
_rings: dict[tuple[str, ...], int] = {}  # by own and all addresses: rings made


def borrow_server(
    task: TaskId, address: str, cluster: Sequence[str], settings: Settings
) -> "tuple[CollectiveServer, int]":
    """Find the server at this worker's address, started on first use, and the number of a new ring.

    Workers that create their strategies in the same order get the same numbers.

    Raises:
        AddressInUseError: The port is taken.
    """
    server = hold_server(task, address, settings)
    with _lock:
        mine = (address, *cluster)
        count = _rings[mine] = _rings.get(mine, 0) + 1
        return server, crc32(f"{','.join(cluster)} {count}".encode())


def hold_server(
    task: TaskId,
    address: str,
    settings: Settings,
    more: "Mapping[ServiceDescriptor, Servicer] | None" = None,
) -> "CollectiveServer":
    """Find the server at this worker's address, started on first use; to be released.

    Args:
        task: Task of this process.
        address: Address at which the worker listens.
        settings: Settings, for the bind rule and the bounds.
        more: Methods of further services, for a server that is started now.

    Raises:
        AddressInUseError: The port is taken.
    """
    # Imported late: workers of a parameter-server job do not need it.

    with _lock:
        server, users = _servers.get(address, (None, 0))
        if server is None:
            server = CollectiveServer(task, settings, more)
            server.start(address)
        _servers[address] = (server, users + 1)
        return server


def forget_ring(address: str, cluster: Sequence[str]) -> None:
    """Reuse the last ring's number, since it was not formed: the next strategy tries it again."""
    with _lock:
        _rings[(address, *cluster)] -= 1


def release_server(address: str) -> None:
    """Release the server when a ring is closed or a job left; it stops with the last one."""
    with _lock:
        server, users = _servers.pop(address, (None, 0))
        if server is not None and users > 1:
            _servers[address] = (server, users - 1)
            return
    if server is not None:
        server.stop()
