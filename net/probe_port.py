"""A port for health probes alone, in plaintext, which strangers cannot exhaust."""

from .health import Health
from .http2.server import Http2Server
from .listener import Listener
from .shares import CallPool
from .tcp import listen_tcp, split_address, tcp_stream

_THREADS = 2
_WAITING_CALLS = 64
_BACKLOG = 64
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
        """Listen at host:port.

        Raises:
            OSError: The port is taken.
        """
        self._listener.add(listen_tcp(*split_address(where), _BACKLOG), tcp_stream)
        self._calls.start()
        self._listener.start()

    def stop(self) -> None:
        """Stop answering."""
        self._listener.stop()
        self._calls.stop(0)
