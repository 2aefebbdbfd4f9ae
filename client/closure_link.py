"""The coordinator's connection to one worker: sends closures, receives answers, reconnects."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..core.arrays.dtypes import Array
from ..core.backoff import Backoff
from ..core.errors import LimitExceededError, PeerLostError, RefusedError, RopewalkError, said_of
from ..core.process.threads import new_thread
from ..core.process.waiting import WaitLog
from ..core.settings import Settings
from ..core.task import Incarnation, TaskId
from ..net.connection import Connection
from ..net.dial import Dialer, reach, receive_message
from ..proto.v1 import session_pb2

log = logging.getLogger(__name__)

SERVICE = "closures"
_CONNECT_TIMEOUT_S = 5.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0  # also after a connection that lasted no longer
_SEND_TIMEOUT_S = 60.0  # for room behind what is being sent

Frame = tuple[session_pb2.ClientMessage, Sequence[memoryview]]


@dataclass(slots=True)
class Knowledge:
    """Things that a worker has received over a connection.

    Attributes:
        things: Numbers of functions and resources.
        optimizers: The version of the state, by optimizer.
        drops: Number of dropped things that it has been told about.
    """

    things: set[int] = field(default_factory=set)
    optimizers: dict[int, int] = field(default_factory=dict)
    drops: int = 0


MakeFrames = Callable[[Knowledge], Sequence[Frame]]


class WorkerLink(Protocol):
    """The coordinator's link to a worker.

    Attributes:
        worker: The worker.
        connections: Number of connections so far, and of the present one.
        replicas: Number of devices that compute there; 0: not known yet.
    """

    worker: TaskId
    connections: int
    replicas: int

    def start(self) -> None:
        """Begin to connect."""

    def send(self, number: int, frames: MakeFrames) -> None:
        """Send frames over connection ``number``; do nothing if that is gone.

        Args:
            number: See :attr:`connections`.
            frames: Makes them from what the worker knows, and adds to that.
        """

    def drop(self) -> None:
        """Treat the worker as lost, and reconnect."""

    def close(self) -> None:
        """Close the link."""


class LinkEvents(Protocol):
    """Events of a worker, from the link's thread."""

    def ready(self, link: WorkerLink) -> None:
        """Handle a connection to the worker, which knows nothing of earlier connections."""

    def answered(
        self, worker: TaskId, answer: session_pb2.ClosureAnswer, parts: list[memoryview]
    ) -> None:
        """Handle the end of a closure, or its beginning."""

    def lost(self, link: WorkerLink) -> None:
        """Handle the loss of the connection."""

    def refused(self, link: WorkerLink, error: RopewalkError) -> None:
        """Handle a refusal by the worker, or that it cannot be used any more."""


class ClosureLink:
    """A :class:`WorkerLink` over any number of connections, one after the other.

    Args:
        worker: The worker.
        address: Address of the worker, host:port.
        who: The coordinator.
        settings: Deadlines and bounds.
        events: Called with what happens.

    Attributes:
        connections: See :class:`WorkerLink`.
        replicas: See :class:`WorkerLink`.
    """

    def __init__(
        self, worker: TaskId, address: str, who: Incarnation, settings: Settings, events: LinkEvents
    ) -> None:
        self.worker = worker
        self._known = Knowledge()  # about this connection
        self.connections = 0
        self.replicas = 0
        self._settings = settings
        self._events = events
        self._peer = f"{worker} ({address})"
        self._who = who
        hello = session_pb2.Hello(service=SERVICE)
        self._address = address
        self._dialer = Dialer(address, self._peer, hello, who, settings, task=worker)
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._closing = threading.Event()
        self._thread = new_thread(f"closures-{worker.short}", self._run, failed=self._failed)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def send(self, number: int, frames: MakeFrames) -> None:
        """See :class:`WorkerLink`."""
        with self._lock:
            connection = self._connection
            if connection is None or number != self.connections:
                return
            try:
                for message, parts in frames(self._known):
                    connection.post(message.SerializeToString(), _joined(parts), _SEND_TIMEOUT_S)
            except Exception as error:  # noqa: BLE001 - also if a message cannot be made
                log.warning("%s: a closure could not be sent: %s", self._peer, said_of(error))
                connection.cancel()  # the link's thread notices

    def drop(self) -> None:
        """See :class:`WorkerLink`."""
        with self._lock:
            if self._connection is not None:
                self._connection.cancel()  # the link's thread notices

    def close(self) -> None:
        """Close the connection; the worker waits for another one, or for the end of the job."""
        self._closing.set()
        with self._lock:
            if self._connection is not None:
                self._connection.cancel()
        self._thread.join(_CONNECT_TIMEOUT_S + 1)

    def _run(self) -> None:
        waits, backoff = self._wait_log(), Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while not self._closing.is_set():
            try:
                connection = self._connect()
            except (PeerLostError, OSError) as error:
                waits.tick(self._peer, error)
            except RopewalkError as error:
                self._events.refused(self, error)
                return
            else:
                waits.done()
                waits, began = self._wait_log(), time.monotonic()
                self._serve(connection)
                if time.monotonic() - began > _LONGEST_PAUSE_S:
                    backoff.reset()
            self._closing.wait(backoff.next_s())

    def _failed(self, error: BaseException) -> None:
        """Report the worker as lost: the thread that reads its answers has failed."""
        with contextlib.suppress(Exception):  # it may be what has failed
            self._events.lost(self)
        why = f"{self._peer} is not heard any more: {said_of(error)}; the log shows where"
        self._events.refused(self, PeerLostError(why, peer=self._peer))

    def _wait_log(self) -> WaitLog:
        return WaitLog(self._who.task, limit="the others work on")

    def _connect(self) -> Connection:
        reached = reach(self._dialer, self._settings, _CONNECT_TIMEOUT_S, peer=self._peer)
        with self._lock:
            self._connection = reached.connection
            self.connections += 1
            self.replicas = reached.welcome.replicas
            self._known = Knowledge()
        return reached.connection

    def _serve(self, connection: Connection) -> None:
        """Receive answers until the connection ends, or one of them cannot be read."""
        try:
            self._events.ready(self)
            while not self._closing.is_set():
                answer = receive_message(connection).closure
                parts = receive_parts(connection, answer.part_bytes, self._settings.max_step_bytes)
                self._events.answered(self.worker, answer, parts)
        except Exception as error:  # a wrong answer, too, loses the worker
            if not self._closing.is_set():
                log.warning(
                    "%s is lost: %s; its closures are run elsewhere",
                    self._peer,
                    said_of(error),
                    exc_info=not isinstance(error, OSError | RopewalkError),
                )
        finally:
            with self._lock:
                self._connection = None
                connection.cancel()
                connection.close()
            if not self._closing.is_set():
                self._events.lost(self)


def receive_parts(
    connection: Connection, part_bytes: Sequence[int], max_bytes: int
) -> list[memoryview]:
    """Receive the payload of the frame that came last, in its parts.

    Args:
        connection: Connection whose message was received.
        part_bytes: The sizes in the message.
        max_bytes: Largest total.

    Raises:
        LimitExceededError: It is longer than allowed.
        RefusedError: The message announces another length.
        OSError: The connection is broken.
    """
    total = connection.unread_bytes
    if total > max_bytes:
        raise LimitExceededError(
            f"{connection.peer} sends {total} bytes for one closure, more than "
            f"max_step_bytes={max_bytes}; send less, or raise ROPEWALK_MAX_STEP_BYTES on both "
            "sides",
            limit="max_step_bytes",
            value=total,
        )
    if total != sum(part_bytes):
        raise RefusedError(f"{total} bytes follow a message that announces {sum(part_bytes)}")
    room = np.empty(total, np.uint8).data  # not filled with zeros first
    connection.read_into(room)
    parts, at = [], 0
    for size in part_bytes:
        parts.append(room[at : at + size])
        at += size
    return parts


def _joined(parts: Sequence[memoryview]) -> Array:
    if not parts:
        return np.empty(0, np.uint8)
    if len(parts) == 1:
        return np.frombuffer(parts[0], np.uint8)
    return np.concatenate([np.frombuffer(part, np.uint8) for part in parts])
