"""Greetings: how every connection begins, on every kind of stream.

The client sends :data:`~ropewalk.net.connection.MAGIC` (not in a tunnel, which is ours from its
first byte) and a ``Hello``: which service it wants, who it is, which versions it runs. The service
answers with a ``Welcome``, or with an error and the end of the connection.

A tunnel costs a thread before its greeting has come. A client that opens many and sends nothing
would have all threads, so only so many may be silent at once: one more takes the place of the one
that has been silent for longest, which is cancelled.
"""

import contextlib
import itertools
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from google.protobuf.message import DecodeError

from ..cluster.access import Principal
from ..core.errors import (
    ConfigurationError,
    ProtocolMismatchError,
    RefusedError,
    RopewalkError,
    TooManyWorkersError,
)
from ..core.files.trusted_folder import UnsafeFolderError, check_shared
from ..core.process.log_records import RareLog
from ..core.settings import Settings
from ..core.task import TaskId
from ..core.versions import check_caller, own_versions
from ..core.wire import codec, error_table
from ..core.wire.bounds import LEAST_MESSAGE_BYTES, MAX_COUNT, check_number
from ..proto.v1 import session_pb2
from .arrival import GREETING_BYTES
from .auth.guard import Guard, Visitor, one_caller
from .auth.proof import Tickets
from .connection import Connection, frame_of
from .http2.shares import Places
from .listener import GREETING_TIMEOUT_S
from .sockets import listen_unix
from .stream import NEVER, ByteStream

log = logging.getLogger(__name__)

WHO = "who"  # a service of every task
MAX_SILENT = 32
"""Most tunnels that have not greeted."""

UNIX_TICKET_S = 10.0  # to greet again over a Unix socket
_UNIX_TICKETS = 1024
# A message comes with its call, or soon after: a tunnel is not cancelled earlier.
_LEAST_S = 0.1


class Greeting:
    """A greeting that was admitted, and may be answered.

    Attributes:
        connection: The connection that it came over.
        hello: The greeting itself.
        visitor: Sender of the greeting.
    """

    def __init__(
        self,
        connection: Connection,
        hello: session_pb2.Hello,
        visitor: Visitor,
        welcome: session_pb2.Welcome,
    ) -> None:
        self.connection = connection
        self.hello = hello
        self.visitor = visitor
        self._welcome = welcome

    def welcome(self, **fields: int) -> None:
        """Answer it. From then on the connection has no deadline.

        Args:
            fields: The service's own fields of the ``Welcome``.

        Raises:
            OSError: The connection is broken.
        """
        self._welcome.MergeFrom(session_pb2.Welcome(**fields))  # type: ignore[arg-type]
        message = session_pb2.ServerMessage(welcome=self._welcome)
        # A peer that does not take it would have its place for ever.
        self.connection.deadline = time.monotonic() + GREETING_TIMEOUT_S
        self.connection.send([message.SerializeToString()])
        self.connection.deadline = NEVER


Service = Callable[[Greeting], bool]
"""Serves a connection; returns whether it keeps it, otherwise the connection is closed."""


class Newcomers:
    """Tunnels that have not sent anything yet, each until its greeting's deadline. Thread-safe.

    Args:
        limit: Most at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = threading.Condition()
        self._silent: dict[int, tuple[float, Callable[[], object]]] = {}
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def silent(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Count a tunnel as silent while the block runs. Waits a moment if there are too many.

        Args:
            cancel: Called from another thread to end the tunnel.
        """
        number = self._enter(cancel)
        try:
            yield
        finally:
            with self._left:
                self._silent.pop(number, None)
                self._left.notify()

    def _enter(self, cancel: Callable[[], object]) -> int:
        with self._left:
            number = next(self._numbers)
            while len(self._silent) >= self._limit:
                oldest = next(iter(self._silent))
                left_s = self._silent[oldest][0] + _LEAST_S - time.monotonic()
                if left_s <= 0:
                    self._silent.pop(oldest)[1]()
                else:
                    self._left.wait(left_s)
            self._silent[number] = time.monotonic(), cancel
            return number


class Endpoint:
    """Reads greetings, and calls the service that they name.

    Args:
        task: The server, for messages.
        settings: Settings, for the bounds.
        services: Services by name.
        guard: Admits callers.
        max_sessions: Most greeted connections at once.
        greeting_timeout_s: Longest time that a complete greeting may take. Unit: seconds.

    Attributes:
        unix_sockets: Names where this process can be reached from this machine.
    """

    def __init__(
        self,
        task: TaskId,
        settings: Settings,
        services: Mapping[str, Service],
        guard: Guard,
        max_sessions: int = 64,
        greeting_timeout_s: float = GREETING_TIMEOUT_S,
    ) -> None:
        self._task = task
        self._settings = settings
        self._services = services
        self._guard = guard
        self._newcomers = Newcomers(MAX_SILENT)
        self._greeting_timeout_s = greeting_timeout_s
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self._served = Places(max_sessions)
        self._stopped = False
        self._refusals = RareLog(log)
        self._instance = secrets.randbits(63)
        self._tickets: Tickets[Principal] = Tickets(UNIX_TICKET_S, _UNIX_TICKETS)
        self.unix_sockets: list[str] = []
        self._socket_file: tuple[Path, int] | None = None

    def listen_unix(self, backlog: int) -> Iterator[socket.socket]:
        """Listen at Unix sockets; owned by the caller.

        Raises:
            ConfigurationError: The folder ``socket_dir`` cannot be used.
        """
        if not self._services:
            return
        # Not to be guessed, so that no other process can bind it before us.
        name = f"@ropewalk-{secrets.token_hex(16)}"
        yield listen_unix(name, backlog)
        self.unix_sockets.append(name)
        if not self._settings.socket_dir:
            return
        path = Path(self._settings.socket_dir) / f"{self._task.type}-{self._task.index}.sock"
        try:
            check_shared(path.parent)
            listening = listen_unix(str(path), backlog)
        except UnsafeFolderError as error:
            raise ConfigurationError(
                f"{self._task} does not listen in socket_dir {path.parent}: {error}",
                task=self._task,
            ) from error
        except OSError as error:
            raise ConfigurationError(
                f"{self._task} cannot listen at {path} ({error.strerror or error}): socket_dir "
                "(ROPEWALK_SOCKET_DIR) must be a folder this user may write to, with a short path",
                task=self._task,
            ) from error
        self._socket_file = path, path.stat().st_ino
        yield listening
        self.unix_sockets.append(str(path))

    def serve(self, stream: ByteStream, received: bytes = b"") -> None:
        """Read a greeting and serve the connection to its end. Blocks.

        The greeting phase, in which a peer costs little and has little time, ends when its hello is
        admitted. From a socket the listener has read the hello before, without a thread; in a
        tunnel this waits for it, and only so many tunnels may be silent at once.

        Args:
            stream: Owned from now on.
            received: Bytes that were read already.
        """
        connection = Connection(stream, GREETING_BYTES, "a peer that has not greeted", received)
        kept = False
        with self._lock:
            self._open.add(connection)
            if self._stopped:
                connection.cancel()
        try:
            kept = self._greeted(connection)
        except RopewalkError as error:
            if isinstance(error, ProtocolMismatchError):  # to be mended here, maybe
                self._refusals.warning("%s", error, about="caller.refused", why=error)
            _say(connection, error)
        except OSError as error:
            log.debug("a session with %s broke off: %s", connection.peer, error)
        except Exception as error:
            log.exception("a session with %s failed", connection.peer)
            _say(connection, error)
        finally:
            with self._lock:
                self._open.discard(connection)
            if not kept:
                connection.close()

    def _greeted(self, connection: Connection) -> bool:
        connection.deadline = time.monotonic() + self._greeting_timeout_s
        with self._newcomers.silent(connection.cancel):
            data = connection.receive()
        if data is None:
            return False
        try:
            hello = session_pb2.ClientMessage.FromString(bytes(data)).hello
        except DecodeError as error:
            raise RefusedError(f"{self._task}: a greeting cannot be read: {error}") from error
        service = _say_who if hello.service == WHO else self._services.get(hello.service)
        if service is None:
            raise RefusedError(
                f"{self._task} has no service {hello.service!r}, only {sorted(self._services)}; is "
                "this the address of another task?",
                task=self._task,
            )
        who = codec.incarnation_from_wire(getattr(hello, "from"))
        theirs = codec.versions_from_wire(hello.versions)
        check_caller(own_versions(), theirs, caller=str(who.task), task=str(self._task))
        operation = f"session {hello.service}"
        stream = connection.stream
        visitor = self._guard.admit(
            operation, hello.authorization, self._shown(connection, hello), stream.peer_address
        )
        if hello.service != WHO:  # which does nothing in the name of a task
            visitor.check_claim(who)
        connection.peer = str(who.task)
        connection.max_message_bytes = self._settings.max_message_bytes
        if hello.max_message_bytes:
            check_number(
                hello.max_message_bytes,
                MAX_COUNT,
                "max_message_bytes",
                connection.peer,
                least=LEAST_MESSAGE_BYTES,
            )
            connection.stream.limit_messages(hello.max_message_bytes)
        welcome = session_pb2.Welcome(
            versions=codec.versions_to_wire(own_versions()),
            max_message_bytes=self._settings.max_message_bytes,
            unix_sockets=self.unix_sockets,
            instance=self._instance,
            authorization=self._guard.answer(operation, hello.authorization),
            task=codec.task_to_wire(self._task),
        )
        if visitor.principal is not None and self.unix_sockets:
            welcome.unix_ticket = self._tickets.issue(visitor.principal)
        greeting = Greeting(connection, hello, visitor, welcome)
        if service is _say_who:  # over at once, and needs no place
            return service(greeting)
        with self._served_by(connection.peer, visitor.principal):
            return service(greeting)

    def _shown(self, connection: Connection, hello: session_pb2.Hello) -> Principal | None:
        """Find the sender of a greeting by its certificate, or by the ticket of an earlier
        greeting.
        """
        if connection.stream.principal is not None:
            return connection.stream.principal
        return self._tickets.redeem(hello.unix_ticket) if hello.unix_ticket else None

    @contextlib.contextmanager
    def _served_by(self, peer: str, caller: Principal | None) -> Iterator[None]:
        """Count a greeted connection while it is served.

        Raises:
            TooManyWorkersError: There are too many, or half of them are this caller's.
        """
        with self._lock:
            if not self._served.take(one_caller(caller)):
                raise TooManyWorkersError(
                    f"{self._task} serves {self._served.count} connections already, of "
                    f"{self._served.limit} and half as many for one caller, so {peer} is refused; "
                    "raise ROPEWALK_MAX_SESSIONS there, or run fewer workers",
                    task=self._task,
                    limit="max_sessions",
                    value=self._served.limit,
                )
        try:
            yield
        finally:
            with self._lock:
                self._served.give_back(one_caller(caller))

    def stop(self) -> None:
        """End every session. Idempotent."""
        with self._lock:
            self._stopped = True
            connections = list(self._open)
        for connection in connections:
            connection.cancel()
        if self._socket_file is not None:
            path, inode = self._socket_file
            with contextlib.suppress(OSError):
                if path.stat().st_ino == inode:  # a task that replaces this one may listen already
                    path.unlink()


def _say_who(greeting: Greeting) -> bool:
    """Serve :data:`WHO`: every welcome names the task."""
    greeting.welcome()
    return False


def refusal_frame(error: RopewalkError) -> bytes:
    """Make the frame that answers a greeting which is refused unread."""
    return frame_of(_failure(error))


def _failure(error: Exception) -> bytes:
    return session_pb2.ServerMessage(failure=error_table.to_detail(error)).SerializeToString()


def _say(connection: Connection, error: Exception) -> None:
    try:
        connection.deadline = time.monotonic() + GREETING_TIMEOUT_S
        connection.send([_failure(error)])
    except OSError:
        log.debug("%s does not hear why its session ends: %s", connection.peer, error)
