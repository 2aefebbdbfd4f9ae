"""The standard health service (grpc.health.v1), which is open to anybody and says one word.

Nothing of a call is read, not even which service it asks for: a peer that nobody knows costs a
moment of one thread, and no memory.
"""

from collections.abc import Iterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

_SERVICE = "grpc.health.v1.Health"
_Status = health_pb2.HealthCheckResponse


class Health:
    """Whether a task serves; the same answer for each of its services."""

    def __init__(self) -> None:
        self.set(serving=False)

    def set(self, *, serving: bool) -> None:
        """Say this from now on."""
        status = _Status.SERVING if serving else _Status.NOT_SERVING
        self._answer = _Status(status=status).SerializeToString()

    def add_to(self, server: grpc.Server) -> None:
        """Serve it; ``Watch``, which would keep a thread for as long as somebody likes, is not."""
        handlers: dict[str, Any] = {"Check": grpc.stream_unary_rpc_method_handler(self._check)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))

    def _check(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:  # noqa: ARG002
        return self._answer
