"""The network between the tasks of a job on one machine: a proxy before each task, which a test has
delay, hold back, lose or cut what one task sends to another.

A task listens at an address of its own and is known to the others by that of its proxy. Who dials
is seen by the socket: ``/proc`` says which process has it. Both directions of a connection are
apart, so that a partition may be one-way. What is held back comes late, as after TCP has sent it
again; or it is lost, and then the connection is, too. Tasks on one machine must not share memory
here, for that goes past the proxies.
"""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PIECE_BYTES = 256 * 1024
_RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: close() sends RST


@dataclass(slots=True)
class _Direction:
    """What one task sends to another one."""

    delay_s: float = 0.0
    is_held: bool = False


@dataclass(eq=False, slots=True)
class _Connection:
    """One connection through a proxy; ``dialer`` has opened it."""

    dialer: str
    target: str
    client: socket.socket
    server: socket.socket = field(default_factory=socket.socket)
    is_cut: bool = False

    def cut(self) -> None:
        self.is_cut = True
        for each in (self.client, self.server):
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                each.shutdown(socket.SHUT_RDWR)


class Links:
    """Proxies before some tasks.

    Args:
        tasks: By task (where the proxy listens, where the task itself listens): host and port.
        pids: The processes of tasks as they run now.
    """

    can_delay = True

    def __init__(
        self,
        tasks: Mapping[str, tuple[tuple[str, int], tuple[str, int]]],
        pids: Callable[[], Mapping[str, int]],
    ) -> None:
        self._pids = pids
        self._directions: dict[tuple[str, str], _Direction] = {}
        self._connections: list[_Connection] = []
        self._changed = threading.Condition()
        self._closed = False
        self._listeners = []
        for task, (outer, inner) in tasks.items():
            listener = socket.create_server(outer, backlog=64)
            self._listeners.append(listener)
            _start(self._accept, listener, task, inner)

    # -- what happens to the network ---------------------------------------------------------

    def delay(self, source: str, target: str, seconds: float) -> None:
        """Deliver every piece that one task sends to another this much later."""
        with self._changed:
            self._direction(source, target).delay_s = seconds

    def hold(self, source: str, target: str) -> None:
        """Deliver nothing of what one task sends to another, until :meth:`heal`."""
        with self._changed:
            self._direction(source, target).is_held = True

    def cut(self, one: str, other: str) -> int:
        """Break all connections between two tasks; says how many there were."""
        with self._changed:
            found = [
                each for each in self._connections if {each.dialer, each.target} == {one, other}
            ]
            for each in found:
                each.cut()
            self._changed.notify_all()
        return len(found)

    def heal(self, pairs: Iterable[tuple[str, str]] | None = None, *, loses: bool = False) -> None:
        """Deliver everything again.

        Args:
            pairs: Of whom: (who sends, to whom); None: of all.
            loses: What was held back is lost, and with it the connections that it was on.
        """
        with self._changed:
            healed = list(self._directions) if pairs is None else list(pairs)
            for pair in healed:
                direction = self._directions.pop(pair, None)
                if loses and direction is not None and direction.is_held:
                    for each in self._connections:
                        if {each.dialer, each.target} == set(pair):
                            each.cut()
            self._changed.notify_all()

    def close(self) -> None:
        """End all of it."""
        with self._changed:
            self._closed = True
            for each in self._connections:
                each.cut()
            self._changed.notify_all()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    # -- proxies -----------------------------------------------------------------------------

    def _direction(self, source: str, target: str) -> _Direction:
        return self._directions.setdefault((source, target), _Direction())

    def _accept(self, listener: socket.socket, task: str, inner: tuple[str, int]) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, peer = listener.accept()
                _start(self._serve, client, peer, task, inner)

    def _serve(
        self, client: socket.socket, peer: tuple[str, int], task: str, inner: tuple[str, int]
    ) -> None:
        connection = _Connection(dialer_of(peer, self._pids()), task, client)
        with self._changed:
            self._connections.append(connection)
        try:
            if not self._pass(connection, connection.dialer, task):  # a SYN is held back, too
                return
            connection.server.connect(inner)
            for each in (client, connection.server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = _start(
                self._copy, connection, connection.server, client, (task, connection.dialer)
            )
            self._copy(connection, client, connection.server, (connection.dialer, task))
            back.join()
        except OSError:  # no process listens there: the dialer is refused in its turn
            connection.cut()
        finally:
            with self._changed:
                self._connections.remove(connection)
            for each in (client, connection.server):
                each.close()

    def _copy(
        self,
        connection: _Connection,
        source: socket.socket,
        target: socket.socket,
        pair: tuple[str, str],
    ) -> None:
        try:
            while data := source.recv(_PIECE_BYTES):
                if not self._pass(connection, *pair):
                    return
                target.sendall(data)
            if self._pass(connection, *pair):  # an end of stream is held back, too
                target.shutdown(socket.SHUT_WR)
        except OSError:
            if self._pass(connection, *pair):
                connection.cut()

    def _pass(self, connection: _Connection, source: str, target: str) -> bool:
        """Wait until something may go from one task to another; False: the connection is cut."""
        delay_s = self._directions.get((source, target), _Direction()).delay_s
        if delay_s:
            time.sleep(delay_s)
        with self._changed:
            while not (self._closed or connection.is_cut):
                direction = self._directions.get((source, target))
                if direction is None or not direction.is_held:
                    return True
                self._changed.wait()
        return False


def dialer_of(peer: tuple[str, int], pids: Mapping[str, int]) -> str:
    """The task that has the socket of an address; empty: none of them."""
    host, port = peer
    where = f"{int.from_bytes(socket.inet_aton(host), 'little'):08X}:{port:04X}"
    # A row may be passed over while others come and go.
    inode = next(filter(None, (_inode(where) for _ in range(5))), None)
    for task, pid in pids.items() if inode is not None else ():
        with contextlib.suppress(OSError):
            for each in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{each}") == f"socket:[{inode}]":
                        return task
    return ""


def _inode(where: str) -> str | None:
    """The socket of an address as the kernel writes it."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):  # gRPC has IPv6 sockets for both
        for row in map(str.split, table.read_text().splitlines()):
            if row[1].endswith(where) and row[9] != "0":
                return row[9]
    return None


def _start(function: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread
