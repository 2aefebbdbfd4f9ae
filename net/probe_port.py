"""A port for health probes alone, in plaintext, which strangers cannot exhaust.

The parent process of a container's task keeps it open while it starts the task again: the kernel
accepts connections meanwhile, which is all that a liveness probe asks, and a question for readiness
waits for the next task's answer, or until its time is over.
"""

import socket
from typing import Self

from ..core.settings import take_environment
from .health import Health
from .http2.server import Http2Server
from .http2.shares import CallPool
from .listener import Listener
from .tcp import listen_tcp, split_address, tcp_stream

HELD_PORT = "ROPEWALK_HEALTH_FD"
"""Variable with the number of the socket that the parent process keeps open."""

_THREADS = 2
_WAITING_CALLS = 64
_BACKLOG = 64  # five minutes of probes that nobody takes
_REQUEST_BYTES = 4096
_IDLE_S = 60.0


class ProbePort:
    """Serves the health service at a port of its own.

    Args:
        health: Answers the probes.
    """

    def __init__(self, health: Health) -> None:
        self._calls = Http2Server(
            health.methods(),
            CallPool("health", _THREADS, _WAITING_CALLS),
            limit=0,  # no caller is admitted: probes come from strangers
            most_bytes=_REQUEST_BYTES,
            idle_s=_IDLE_S,
        )
        self._listener = Listener(lambda stream, _: stream.close(), self._calls, 1)

    def start(self, where: str) -> None:
        """Listen at host:port, or where the parent process does.

        Raises:
            OSError: The port is taken.
        """
        self._listener.add(_held_port() or _listening(where), tcp_stream)
        self._calls.start()
        self._listener.start()

    def stop(self) -> None:
        """Stop answering."""
        self._listener.stop()
        self._calls.stop(0)


class HeldPort:
    """A port for probes at which nothing answers yet. Use as a context manager.

    Args:
        where: host:port.

    Attributes:
        number: Number of the open file, which a task inherits.
        variables: Environment variables by which the task knows that.

    Raises:
        OSError: The port is taken.
    """

    def __init__(self, where: str) -> None:
        self._socket = _listening(where)
        self.number = self._socket.fileno()
        self.variables = {HELD_PORT: str(self.number)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def _listening(where: str) -> socket.socket:
    return listen_tcp(*split_address(where), _BACKLOG)


def _held_port() -> socket.socket | None:
    """Take over the parent's socket; None: it keeps none."""
    number = take_environment(HELD_PORT)
    if not number.isdecimal():
        return None
    held = socket.socket(fileno=int(number))
    held.set_inheritable(False)
    return held
