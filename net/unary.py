"""Unary calls, served: who calls, may they, what do they say, and only then the servicer.

Requests arrive as bytes and are parsed here: a request that gRPC itself cannot parse keeps 17 KB
for good, and nothing of a caller is read before it is known who calls.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from ..core import codec, error_table
from ..core.errors import RefusedError, UnauthenticatedError, WindlassError
from ..core.task import Incarnation
from ..proto.v1 import common_pb2
from .auth.guard import Guard, Visitor
from .auth.metadata import ANSWER, AUTHORIZATION
from .newcomers import Newcomers
from .pass_through import Origin

_MAX_AUTHORIZATION = 8192

Servicer = Mapping[str, Callable[[Any, Visitor], Message]]
"""Answers the methods of a service, by name; raises WindlassError or OSError to refuse."""

FindOrigin = Callable[[str], Origin | None]
"""Where the connection comes from that gRPC calls so."""


def servicer(service: ServiceDescriptor, implementation: object) -> Servicer:
    """The methods of an object that has one for each of the service's."""
    return {method.name: getattr(implementation, method.name) for method in service.methods}


def add_service(
    server: grpc.Server,
    service: ServiceDescriptor,
    methods: Servicer,
    guard: Guard,
    find_origin: FindOrigin,
    newcomers: Newcomers,
) -> None:
    """Serve a service, as its contract describes it.

    Args:
        server: Not started yet.
        service: The contract.
        methods: Its methods.
        guard: Lets callers in.
        find_origin: Of the port.
        newcomers: Bounds those whose message does not come.
    """
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        # On the wire a call with one message and one with a stream of one are the same; as a
        # stream the message is not read before it is known who calls.
        method.name: grpc.stream_unary_rpc_method_handler(
            _handler(method, methods[method.name], guard, find_origin, newcomers)
        )
        for method in service.methods
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service.full_name, handlers),)
    )


def _handler(
    method: MethodDescriptor,
    answer: Callable[[Any, Visitor], Message],
    guard: Guard,
    find_origin: FindOrigin,
    newcomers: Newcomers,
) -> Callable[[Iterator[bytes], grpc.ServicerContext], bytes]:
    operation = f"/{method.containing_service.full_name}/{method.name}"
    request_class = GetMessageClass(method.input_type)

    def handle(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        try:
            visitor = admit(guard, operation, context, find_origin)
            with newcomers.silent(context.cancel):
                data = next(messages, None)
            if data is None:
                raise RefusedError(f"{operation}: no message came")
            try:
                request = request_class.FromString(data)
            except DecodeError as error:
                raise RefusedError(f"a {request_class.__name__} cannot be read: {error}") from error
            claimed = claim_of(request)
            if claimed is not None:
                visitor.check_claim(claimed)
            return answer(request, visitor).SerializeToString()
        except (WindlassError, OSError) as error:
            error_table.abort(context, error)
            raise

    return handle


def admit(
    guard: Guard, operation: str, context: grpc.ServicerContext, find_origin: FindOrigin
) -> Visitor:
    """The caller of a gRPC call, who is let in.

    Raises:
        AccessError: Nobody knows who that is, or they may not.
    """
    origin = find_origin(context.peer())
    if origin is None:
        raise UnauthenticatedError("this call did not come through the port of the task")
    said = ""
    for name, value in context.invocation_metadata() or ():
        if name == AUTHORIZATION:
            said = value if isinstance(value, str) else ""
    if len(said) > _MAX_AUTHORIZATION:
        raise UnauthenticatedError(f"the authorization is longer than {_MAX_AUTHORIZATION} bytes")
    visitor = guard.admit(operation, said, origin.principal, origin.address)
    origin.is_admitted = True
    answer = guard.answer(operation, said)
    if answer:
        context.send_initial_metadata(((ANSWER, answer),))
    return replace(visitor, is_waiting=context.is_active)


def claim_of(request: Message) -> Incarnation | None:
    """The task that a request says it comes from; None: it says nothing of the kind."""
    fields = request.DESCRIPTOR.fields_by_name
    for name in ("from", "chief"):
        field = fields.get(name)
        if field is not None and field.message_type is common_pb2.Incarnation.DESCRIPTOR:
            return codec.incarnation_from_wire(getattr(request, name))
    if "task" in fields and "job" in fields:
        message: Any = request
        return Incarnation(codec.task_from_wire(message.task), 0, message.job)
    return None
