"""The table between Windlass's errors and gRPC's.

An error is sent as a ``google.rpc.Status`` with an :class:`ErrorDetail` (gRPC's rich error model),
from which the receiver builds the same class. A failure without a detail comes from the transport
and is translated by its status code.
"""

from typing import cast

import grpc
from google.protobuf import any_pb2
from google.rpc import status_pb2
from grpc_status import rpc_status

from ..proto.v1 import errors_pb2
from . import errors
from .bounds import MAX_ERROR_BYTES, MAX_FIELD_BYTES, MAX_FIELDS, shorten

# One row per class; a test checks that none is missing.
STATUS_OF: dict[type[errors.WindlassError], grpc.StatusCode] = {
    errors.WindlassError: grpc.StatusCode.INTERNAL,
    errors.ConfigurationError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.TFConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ProjectError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ProjectTooLargeError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.MissingExtraError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.AddressInUseError: grpc.StatusCode.ALREADY_EXISTS,
    errors.CheckpointError: grpc.StatusCode.DATA_LOSS,
    errors.StorageError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.AccessError: grpc.StatusCode.PERMISSION_DENIED,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.JobDoneError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.IncompatibleError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DefinitionMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ProtocolMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RefusedError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnknownVariableError: grpc.StatusCode.NOT_FOUND,
    errors.ShapeMismatchError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.LimitExceededError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TooManyWorkersError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.NonFiniteGradientError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NanLossDuringTrainingError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.PackageError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.SequenceError: grpc.StatusCode.OUT_OF_RANGE,
    errors.SegmentError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CollectiveMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.EnvironmentMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OtherJobError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.FencedError: grpc.StatusCode.ABORTED,
    errors.ProgramError: grpc.StatusCode.INTERNAL,
    errors.ClosureError: grpc.StatusCode.INTERNAL,
    errors.OutOfRangeError: grpc.StatusCode.OUT_OF_RANGE,
    errors.CancelledError: grpc.StatusCode.CANCELLED,
    errors.DeadlineExceededError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.RetryableError: grpc.StatusCode.UNAVAILABLE,
    errors.PeerLostError: grpc.StatusCode.UNAVAILABLE,
    errors.CollectiveTimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.JoinTimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.JobStoppedError: grpc.StatusCode.CANCELLED,
}

_BY_NAME = {cls.__name__: cls for cls in STATUS_OF}

# Status codes of the transport, without a detail.
_TRANSPORT = {
    grpc.StatusCode.UNAVAILABLE: errors.PeerLostError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.PeerLostError,
    grpc.StatusCode.CANCELLED: errors.PeerLostError,
    grpc.StatusCode.ABORTED: errors.PeerLostError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.LimitExceededError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDeniedError,
    grpc.StatusCode.UNIMPLEMENTED: errors.ProtocolMismatchError,
}
_BUSY = "Concurrent RPC limit exceeded"  # gRPC's words, under the code of a limit


def to_detail(error: Exception) -> errors_pb2.ErrorDetail:
    """An error as a message; the text of a foreign one includes its class name.

    Long texts are shortened: what is refused may hold anything, and gRPC drops metadata over 8 KiB.
    """
    if isinstance(error, errors.WindlassError):
        kept = list(error.fields.items())[:MAX_FIELDS]
        return errors_pb2.ErrorDetail(
            kind=type(error).__name__,
            message=shorten(error.message, MAX_ERROR_BYTES),
            fields={name: shorten(value, MAX_FIELD_BYTES) for name, value in kept},
        )
    return errors_pb2.ErrorDetail(
        kind=errors.WindlassError.__name__,
        message=shorten(f"{type(error).__name__}: {error}", MAX_ERROR_BYTES),
    )


def from_detail(detail: errors_pb2.ErrorDetail) -> errors.WindlassError:
    """The error in a message; a class of a newer version becomes the base class."""
    cls = _BY_NAME.get(detail.kind, errors.WindlassError)
    return cls(detail.message, **dict(detail.fields))


def to_bytes(error: Exception) -> bytes:
    """An error as bytes, for connections without gRPC."""
    return to_detail(error).SerializeToString()


def from_bytes(data: bytes) -> errors.WindlassError:
    """The error of :func:`to_bytes`."""
    return from_detail(errors_pb2.ErrorDetail.FromString(data))


def abort(context: grpc.ServicerContext, error: Exception) -> None:
    """End the call with ``error``. Raises, as ``context.abort`` does."""
    code = (
        STATUS_OF.get(type(error), grpc.StatusCode.INTERNAL)
        if isinstance(error, errors.WindlassError)
        else grpc.StatusCode.INTERNAL
    )
    detail = to_detail(error)
    packed = any_pb2.Any()
    packed.Pack(detail)
    status = status_pb2.Status(code=code.value[0], message=detail.message, details=[packed])
    context.abort_with_status(rpc_status.to_status(status))


def from_rpc_error(failure: grpc.RpcError, *, peer: str, doing: str) -> errors.WindlassError:
    """The error behind a failed call.

    Args:
        failure: Raised by grpc.
        peer: The callee, e.g. ``"/job:ps/task:1 (10.0.0.7:2222)"``.
        doing: The call, e.g. ``"push"``.
    """
    call = cast(grpc.Call, failure)
    status = rpc_status.from_call(call) if hasattr(failure, "trailing_metadata") else None
    for packed in status.details if status is not None else ():
        detail = errors_pb2.ErrorDetail()
        if packed.Unpack(detail):
            return from_detail(detail)
    code = call.code()
    cls = _TRANSPORT.get(code, errors.WindlassError)
    if _BUSY in (call.details() or ""):
        cls = errors.PeerLostError  # it may have room a moment later
    return cls(
        f"{doing}: {peer} answered {code.name}: {call.details() or 'no details'}",
        peer=peer,
        code=code.name,
    )
