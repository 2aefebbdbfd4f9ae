"""The standard health service (grpc.health.v1), which is open to every caller.

No request is parsed, not even for the service's name: a stranger costs no memory. ``Watch``, which
would last as long as its caller likes, is not served.
"""

from grpc_health.v1 import health_pb2

from .http2.peer import Accepted, Method

PATH = "/grpc.health.v1.Health/Check"
_Status = health_pb2.HealthCheckResponse


class Health:
    """Whether a task serves; the same answer for each of its services."""

    def __init__(self) -> None:
        self.set(serving=False)

    def set(self, *, serving: bool) -> None:
        """Set the answer."""
        status = _Status.SERVING if serving else _Status.NOT_SERVING
        self._answer = _Status(status=status).SerializeToString()

    def methods(self) -> dict[str, Method]:
        """The methods, by path."""
        return {PATH: lambda _: Accepted(lambda _: self._answer, lets_in=False)}
