"""Serving unary calls: authenticate, authorize, parse the request, and only then call the servicer.

A request is read and parsed after its caller is known. The standard health service
(grpc.health.v1) is open to every caller, and parses no request: a stranger costs no memory.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from ..cluster.access import DRIVER, READER, rule_of
from ..core.errors import RefusedError, RopewalkError, UnauthenticatedError
from ..core.task import Incarnation
from ..core.wire import codec, error_table
from ..proto.v1 import common_pb2
from .auth.credentials import ANSWER, AUTHORIZATION
from .auth.guard import Guard, Visitor, one_caller
from .http2.call import CallError, ServedCall, Status
from .http2.frames import Fields
from .http2.peer import Accepted, Method

log = logging.getLogger(__name__)

GUESTS = (READER, DRIVER)
"""Roles whose callers are guests of a job: they share a part of one processor."""

_MAX_AUTHORIZATION = 8192
_READER_REQUEST_BYTES = 2 * 1024 * 1024  # a reader names variables, and sends no definitions

PATH = "/grpc.health.v1.Health/Check"
REPLICATED = "replicated"
"""Name of the service by which a launcher asks a ps whether the next ps may be stopped: it serves,
and each share of the job has had its replicas since this ps started.
"""

_Status = health_pb2.HealthCheckResponse
_ASKS_FOR_REPLICAS = health_pb2.HealthCheckRequest(service=REPLICATED).SerializeToString()
_NOT_SERVING = _Status(status=_Status.NOT_SERVING).SerializeToString()

Servicer = Mapping[str, Callable[[Any, Visitor], Message]]
"""Answers the methods of a service, by name; raises RopewalkError or OSError to refuse."""


def servicer(service: ServiceDescriptor, implementation: object) -> Servicer:
    """Collect the methods of an object that has one for each of the service's."""
    return {method.name: getattr(implementation, method.name) for method in service.methods}


def methods_of(service: ServiceDescriptor, methods: Servicer, guard: Guard) -> dict[str, Method]:
    """Wrap a service's methods as they are served, by path.

    Args:
        service: The contract.
        methods: Methods of the service.
        guard: Admits callers.
    """
    return {
        path_of(method): _method(method, methods[method.name], guard) for method in service.methods
    }


def path_of(method: MethodDescriptor) -> str:
    """Make the path of a method on the wire."""
    return f"/{method.containing_service.full_name}/{method.name}"


def _method(
    method: MethodDescriptor, answer: Callable[[Any, Visitor], Message], guard: Guard
) -> Method:
    request_class = GetMessageClass(method.input_type)

    def accept(call: ServedCall) -> Accepted:
        visitor, metadata = admit(guard, call)

        def handle(data: bytes) -> bytes:
            try:
                request = _read(request_class, data)
                claimed = claim_of(request)
                if claimed is not None:
                    visitor.check_claim(claimed)
                return answer(request, visitor).SerializeToString()
            except Exception as error:
                if not isinstance(error, (RopewalkError, OSError)):
                    log.exception("%s failed", call.path)
                raise call_error(error) from error

        return accepted(visitor, handle, metadata=metadata, renews=rule_of(call.path).renews)

    return accept


def _read(request_class: type[Message], data: bytes) -> Message:
    try:
        return request_class.FromString(data)
    except DecodeError as error:
        raise RefusedError(f"a {request_class.__name__} cannot be read: {error}") from error


def accepted(
    visitor: Visitor, answer: Callable[[bytes], bytes] | None = None, **fields: Any
) -> Accepted:
    """Make the acceptance of a visitor's call, with the bounds of its role.

    Args:
        visitor: Caller.
        answer: Makes the answer; None: the call has many messages.
        fields: Other fields of :class:`~ropewalk.net.http2.peer.Accepted`.
    """
    role = visitor.principal.role if visitor.principal else ""
    return Accepted(
        answer,
        caller=one_caller(visitor.principal),
        group=role if role in GUESTS else "",
        most_bytes=_READER_REQUEST_BYTES if role == READER else 0,
        **fields,
    )


def call_error(error: Exception) -> CallError:
    """Make the end of a call with an error, from which the client makes the same one."""
    return CallError(Status(*error_table.status_of(error)))


def admit(guard: Guard, call: ServedCall) -> tuple[Visitor, Fields]:
    """Admit the caller of a call; also returns the metadata that authenticates this server to it.

    Raises:
        CallError: The caller is not known, or may not call this.
    """
    authorization = call.metadata.get(AUTHORIZATION, "")
    try:
        if len(authorization) > _MAX_AUTHORIZATION:
            raise UnauthenticatedError(
                f"the authorization is longer than {_MAX_AUTHORIZATION} bytes"
            )
        visitor = guard.admit(call.path, authorization, call.origin.principal, call.origin.address)
    except RopewalkError as error:
        raise call_error(error) from error
    answer = guard.answer(call.path, authorization)
    seen = replace(visitor, is_waiting=call.is_waiting, line=call.link)
    return seen, [(ANSWER, answer)] if answer else []


def claim_of(request: Message) -> Incarnation | None:
    """Read the task that a request claims to come from; None: it has no such field."""
    fields = request.DESCRIPTOR.fields_by_name
    for name in ("from", "chief"):
        field = fields.get(name)
        if field is not None and field.message_type is common_pb2.Incarnation.DESCRIPTOR:
            return codec.incarnation_from_wire(getattr(request, name))
    if "task" in fields and "job" in fields:
        message: Any = request
        return Incarnation(codec.task_from_wire(message.task), 0, message.job)
    return None


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
