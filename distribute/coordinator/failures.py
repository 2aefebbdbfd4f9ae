"""Exceptions of closures, as they travel from the worker to the coordinator."""

import builtins

from ...core.errors import ClosureError, OutOfRangeError, RopewalkError
from ...core.process.tracebacks import program_traceback
from ...core.terminal import terminal_text
from ...core.wire.error_table import from_detail, to_detail
from ...proto.v1 import session_pb2

_MAX_CHARACTERS = 64 * 1024


def describe(error: BaseException) -> session_pb2.ClosureFailure:
    """Describe an exception as a message, with the closure's part of the traceback."""
    if isinstance(error, StopIteration):
        # TensorFlow's name for it; a StopIteration would end the coordinator's own loops.
        error = OutOfRangeError(
            "the closure's dataset is at an end; repeat it, or stop scheduling"
        ).with_traceback(error.__traceback__)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's class; the error that it failed with is none of ours
        message = "(its text cannot be made)"
    return session_pb2.ClosureFailure(
        type=type(error).__name__,
        message=message[:_MAX_CHARACTERS],
        traceback=program_traceback(error, "")[-_MAX_CHARACTERS:],
        detail=to_detail(error) if isinstance(error, RopewalkError) else None,
    )


def rebuild(failure: session_pb2.ClosureFailure, worker: str) -> Exception:
    """Rebuild the exception to raise where the closure was scheduled.

    An exception of Python or of Ropewalk has its own class, any other is a ClosureError. The
    worker's traceback is a note on it. Both have nothing that a terminal would obey.

    Args:
        failure: Message that :func:`describe` made.
        worker: Worker that ran the closure.
    """
    message, trace = terminal_text(failure.message), terminal_text(failure.traceback.rstrip())
    error: Exception | None = None
    if failure.HasField("detail"):
        error = from_detail(failure.detail)
    else:
        kind = getattr(builtins, failure.type, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                error = kind(message)
            except Exception:  # noqa: BLE001 - it takes other arguments, as UnicodeDecodeError
                error = None
    if error is None:
        error = ClosureError(f"{failure.type}: {message}", type=failure.type, worker=worker)
    error.add_note(f"raised in a closure on {worker}:\n{trace}")
    return error
