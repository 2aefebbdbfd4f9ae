"""A port for health probes alone, in plaintext, which cannot be used up."""

from concurrent import futures

import grpc

from .health import Health
from .listener import Listener
from .pass_through import PassThrough
from .tcp import listen_tcp, split_address, tcp_stream

_CONNECTIONS = 16  # probes of one task; the oldest makes room for one more
_CALLS = 64
_BACKLOG = 64


class ProbePort:
    """Serves the health service at a port of its own.

    Args:
        health: What it answers.
    """

    def __init__(self, health: Health) -> None:
        self._pool = futures.ThreadPoolExecutor(2, thread_name_prefix="health")
        self._server = grpc.server(self._pool, maximum_concurrent_rpcs=_CALLS)
        health.add_to(self._server)
        self._pass_through = PassThrough(_CONNECTIONS)
        self._listener = Listener(lambda stream, _: stream.close(), self._pass_through.accept, 1)

    def start(self, where: str) -> None:
        """Listen at host:port.

        Raises:
            OSError: The port is taken.
        """
        self._listener.add(listen_tcp(*split_address(where), _BACKLOG), tcp_stream)
        self._pass_through.listen(self._server.add_insecure_port)
        self._server.start()
        self._listener.start()

    def stop(self) -> None:
        """Answer nobody any more."""
        self._listener.stop()
        self._server.stop(0).wait(5)
        self._pass_through.stop()
        self._pool.shutdown(wait=False)
