"""The table between Ropewalk's errors and gRPC's.

An error is sent as a ``google.rpc.Status`` with an :class:`ErrorDetail` (gRPC's rich error model),
from which the receiver builds the same class. A failure without a detail comes from the transport
and is translated by its status code.
"""

from collections.abc import Sequence
from typing import Any

from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, status_pb2

from ...proto.v1 import errors_pb2
from .. import errors
from .bounds import MAX_ERROR_BYTES, MAX_FIELD_BYTES, MAX_FIELDS, shorten

# One row per class; a test checks that none is missing.
STATUS_OF: dict[type[errors.RopewalkError], int] = {
    errors.RopewalkError: code_pb2.INTERNAL,
    errors.ConfigurationError: code_pb2.INVALID_ARGUMENT,
    errors.TFConfigError: code_pb2.INVALID_ARGUMENT,
    errors.ProjectError: code_pb2.INVALID_ARGUMENT,
    errors.ProjectTooLargeError: code_pb2.INVALID_ARGUMENT,
    errors.NotFoundError: code_pb2.NOT_FOUND,
    errors.MissingExtraError: code_pb2.FAILED_PRECONDITION,
    errors.AddressInUseError: code_pb2.ALREADY_EXISTS,
    errors.CheckpointError: code_pb2.DATA_LOSS,
    errors.StorageError: code_pb2.FAILED_PRECONDITION,
    errors.AccessError: code_pb2.PERMISSION_DENIED,
    errors.UnauthenticatedError: code_pb2.UNAUTHENTICATED,
    errors.PermissionDeniedError: code_pb2.PERMISSION_DENIED,
    errors.JobDoneError: code_pb2.FAILED_PRECONDITION,
    errors.IncompatibleError: code_pb2.FAILED_PRECONDITION,
    errors.DefinitionMismatchError: code_pb2.FAILED_PRECONDITION,
    errors.ProtocolMismatchError: code_pb2.FAILED_PRECONDITION,
    errors.RefusedError: code_pb2.INVALID_ARGUMENT,
    errors.UnknownVariableError: code_pb2.NOT_FOUND,
    errors.ShapeMismatchError: code_pb2.INVALID_ARGUMENT,
    errors.LimitExceededError: code_pb2.RESOURCE_EXHAUSTED,
    errors.TooManyWorkersError: code_pb2.RESOURCE_EXHAUSTED,
    errors.NonFiniteGradientError: code_pb2.INVALID_ARGUMENT,
    errors.NanLossDuringTrainingError: code_pb2.INVALID_ARGUMENT,
    errors.PackageError: code_pb2.INVALID_ARGUMENT,
    errors.SequenceError: code_pb2.OUT_OF_RANGE,
    errors.SegmentError: code_pb2.FAILED_PRECONDITION,
    errors.CollectiveMismatchError: code_pb2.FAILED_PRECONDITION,
    errors.EnvironmentMismatchError: code_pb2.FAILED_PRECONDITION,
    errors.OtherJobError: code_pb2.FAILED_PRECONDITION,
    errors.FencedError: code_pb2.ABORTED,
    errors.ProgramError: code_pb2.INTERNAL,
    errors.ClosureError: code_pb2.INTERNAL,
    errors.OutOfRangeError: code_pb2.OUT_OF_RANGE,
    errors.CancelledError: code_pb2.CANCELLED,
    errors.DeadlineExceededError: code_pb2.DEADLINE_EXCEEDED,
    errors.RetryableError: code_pb2.UNAVAILABLE,
    errors.PeerLostError: code_pb2.UNAVAILABLE,
    errors.MovedError: code_pb2.UNAVAILABLE,
    errors.CollectiveTimeoutError: code_pb2.DEADLINE_EXCEEDED,
    errors.CutVoidError: code_pb2.ABORTED,
    errors.StaleRowsError: code_pb2.UNAVAILABLE,
    errors.JoinTimeoutError: code_pb2.DEADLINE_EXCEEDED,
    errors.JobStoppedError: code_pb2.CANCELLED,
}

_BY_NAME = {cls.__name__: cls for cls in STATUS_OF}

# Status codes of the transport, without a detail.
_TRANSPORT = {
    code_pb2.UNAVAILABLE: errors.PeerLostError,
    code_pb2.DEADLINE_EXCEEDED: errors.PeerLostError,
    code_pb2.CANCELLED: errors.PeerLostError,
    code_pb2.ABORTED: errors.PeerLostError,
    code_pb2.RESOURCE_EXHAUSTED: errors.LimitExceededError,
    code_pb2.UNAUTHENTICATED: errors.UnauthenticatedError,
    code_pb2.PERMISSION_DENIED: errors.PermissionDeniedError,
    code_pb2.UNIMPLEMENTED: errors.ProtocolMismatchError,
}
DETAILS = "grpc-status-details-bin"
"""The trailer of a call in which gRPC carries the details of a status."""
_BUSY = "Concurrent RPC limit exceeded"  # gRPC's words, under the code of a limit


def to_detail(error: Exception) -> errors_pb2.ErrorDetail:
    """Encode an error as a message; the text of a foreign one includes its class name.

    Long texts are shortened: what is refused may hold anything, and gRPC drops metadata over 8 KiB.
    """
    if isinstance(error, errors.RopewalkError):
        kept = list(error.fields.items())[:MAX_FIELDS]
        return errors_pb2.ErrorDetail(
            kind=type(error).__name__,
            message=shorten(error.message, MAX_ERROR_BYTES),
            fields={name: shorten(value, MAX_FIELD_BYTES) for name, value in kept},
        )
    return errors_pb2.ErrorDetail(
        kind=errors.RopewalkError.__name__,
        message=shorten(f"{type(error).__name__}: {error}", MAX_ERROR_BYTES),
    )


def from_detail(detail: errors_pb2.ErrorDetail) -> errors.RopewalkError:
    """Decode the error in a message; a class of a newer version becomes the base class."""
    cls = _BY_NAME.get(detail.kind, errors.RopewalkError)
    return cls(detail.message, **dict(detail.fields))


def to_bytes(error: Exception) -> bytes:
    """Encode an error as bytes, for connections without gRPC."""
    return to_detail(error).SerializeToString()


def from_bytes(data: bytes) -> errors.RopewalkError:
    """Decode the error of :func:`to_bytes`."""
    return from_detail(errors_pb2.ErrorDetail.FromString(data))


def status_of(error: Exception) -> tuple[int, str, bytes]:
    """Describe the end of a call with an error: gRPC's code, a message, a serialized
    ``google.rpc.Status``.
    """
    code = code_pb2.INTERNAL
    if isinstance(error, errors.RopewalkError):
        code = STATUS_OF.get(type(error), code_pb2.INTERNAL)
    detail = to_detail(error)
    packed = any_pb2.Any()
    packed.Pack(detail)
    status = status_pb2.Status(code=code, message=detail.message, details=[packed])
    return code, detail.message, bytes(status.SerializeToString())


def from_rpc_error(failure: Any, *, peer: str, doing: str) -> errors.RopewalkError:
    """Make the error behind a failed call.

    Args:
        failure: Raised by grpc, a ``grpc.RpcError`` that is a ``grpc.Call``.
        peer: The callee, e.g. ``"/job:ps/task:1 (10.0.0.7:2222)"``.
        doing: The call, e.g. ``"push"``.
    """
    metadata = failure.trailing_metadata() if hasattr(failure, "trailing_metadata") else None
    for packed in _details_in(metadata or ()):
        detail = errors_pb2.ErrorDetail()
        if packed.Unpack(detail):
            return from_detail(detail)
    code = failure.code()
    cls = _TRANSPORT.get(code.value[0], errors.RopewalkError)
    if _BUSY in (failure.details() or ""):
        cls = errors.PeerLostError  # it may have room a moment later
    return cls(
        f"{doing}: {peer} answered {code.name}: {failure.details() or 'no details'}",
        peer=peer,
        code=code.name,
    )


def _details_in(metadata: Sequence[tuple[str, str | bytes]]) -> Sequence[any_pb2.Any]:
    """Read the details that the rich error model has put into a call's trailers."""
    for key, value in metadata:
        if key == DETAILS and isinstance(value, bytes):
            try:
                return list(status_pb2.Status.FromString(value).details)
            except DecodeError:  # not ours
                return ()
    return ()
