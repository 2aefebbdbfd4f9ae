"""The standard health service (grpc.health.v1), which is open to every caller.

No request is parsed: a stranger costs no memory. One whole request is known, that for
:data:`REPLICATED`; whatever else is asked for has one answer. ``Watch``, which would last as long
as its caller likes, is not served.
"""

from collections.abc import Callable

from grpc_health.v1 import health_pb2

from .http2.peer import Accepted, Method

PATH = "/grpc.health.v1.Health/Check"
REPLICATED = "replicated"
"""Name of the service by which a launcher asks a ps whether the next ps may be stopped: it serves,
and each share of the job has had its replicas since this ps started.
"""

_Status = health_pb2.HealthCheckResponse
_ASKS_FOR_REPLICAS = health_pb2.HealthCheckRequest(service=REPLICATED).SerializeToString()
_NOT_SERVING = _Status(status=_Status.NOT_SERVING).SerializeToString()


class Health:
    """Whether a task serves; the same answer for each of its services but :data:`REPLICATED`.

    Args:
        is_replicated: Whether :data:`REPLICATED` has the same answer, too; else it is no.
    """

    def __init__(self, is_replicated: Callable[[], bool] = lambda: True) -> None:
        self._is_replicated = is_replicated
        self.set(serving=False)

    def set(self, *, serving: bool) -> None:
        """Set the answer."""
        status = _Status.SERVING if serving else _Status.NOT_SERVING
        self._answer = _Status(status=status).SerializeToString()

    def methods(self) -> dict[str, Method]:
        """Return the methods, by path."""
        return {PATH: lambda _: Accepted(self._check, lets_in=False)}

    def _check(self, request: bytes) -> bytes:
        is_lacking = request == _ASKS_FOR_REPLICAS and not self._is_replicated()
        return _NOT_SERVING if is_lacking else self._answer
