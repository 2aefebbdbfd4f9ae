"""Every error Ropewalk raises on purpose.

::

    RopewalkError
    ├── ConfigurationError V        flags, settings, cluster, script: exit 2
    │   ├── TFConfigError
    │   ├── ProjectError            a project directory that cannot be packed
    │   │   └── ProjectTooLargeError
    │   ├── NotFoundError           a job or a namespace that is named does not exist: exit 9
    │   └── MissingExtraError I     a package that an extra of ours installs is not there
    ├── AddressInUseError           exit 3
    ├── CheckpointError V           truncated, altered, foreign or missing: exit 4
    ├── StorageError                model_dir or a cache cannot be written: exit 7
    ├── AccessError                 exit 8
    │   ├── UnauthenticatedError    nobody knows who asks: no credentials, or none that hold
    │   └── PermissionDeniedError   it is known who asks, and they may not
    ├── IncompatibleError           exit 5
    │   ├── DefinitionMismatchError V  two tasks define one variable differently
    │   ├── ProtocolMismatchError   two sides speak different protocols
    │   ├── CollectiveMismatchError V  synchronous workers made different calls
    │   ├── EnvironmentMismatchError  driver and cluster differ in what a job depends on
    │   └── OtherJobError           a task of another job, or a second process of a task
    ├── RefusedError                a request that must not be applied: exit 6
    │   ├── UnknownVariableError K
    │   ├── ShapeMismatchError V
    │   ├── LimitExceededError
    │   │   └── TooManyWorkersError a worker for which a ps or the chief has no place
    │   ├── NonFiniteGradientError V
    │   │   └── NanLossDuringTrainingError  an Estimator's loss is not finite; also a RuntimeError
    │   ├── PackageError V          a packed project that is damaged, or not to be unpacked
    │   ├── SequenceError
    │   ├── SegmentError            shared memory that cannot be used; the connection can
    │   └── FencedError             an older generation of the task, a second chief, or a closure
    │                               that runs elsewhere now
    ├── JobDoneError                the work was complete before this task began: exit 0
    ├── ProgramError                the user's program failed on some task: exit 1
    │   ├── ClosureError            a closure raised something that only its worker knows
    │   ├── OutOfRangeError         a closure found its dataset at an end
    │   ├── CancelledError          a closure was not run: another one had failed
    │   └── DeadlineExceededError   a closure ran for longer than it was given
    └── RetryableError              exit >= 128
        ├── PeerLostError
        │   └── MovedError          a ps that does not lead these variables, or not any more
        ├── CollectiveTimeoutError  a synchronous worker did not reach a call in time
        ├── StaleRowsError          rows that a reader keeps are older than it allows
        ├── CutVoidError            the values of all ps at one moment could not be had
        ├── JoinTimeoutError
        └── JobStoppedError

I: also an ImportError. V: also a ValueError, K: also a KeyError, where TensorFlow raises one (or
InvalidArgumentError, for which programs here catch ValueError) for the same mistake.

An error says what happened, to which task or variable, with which numbers, and what to do.
``fields`` has the same data for programs. ``error_table.py`` has one row per class for gRPC.
"""

from typing import TYPE_CHECKING

from .exit_codes import ExitCode
from .public_face import public_getattr
from .terminal import terminal_text


class RopewalkError(Exception):
    """Base class of all errors.

    Attributes:
        message: Text for people. Parts of it may be a stranger's, so it has nothing that a terminal
            would obey.
        fields: The names and numbers in it as strings, e.g. ``{"variable": "w", "task":
            "/job:ps/task:1"}``.
        exit_code: Exit code of a process that this error ends.
    """

    exit_code = ExitCode.PROGRAM_FAILED

    def __init__(self, message: str, /, **fields: object) -> None:
        self.message = terminal_text(message)
        super().__init__(self.message)
        self.fields = {name: str(value) for name, value in fields.items()}


def said_of(error: BaseException) -> str:
    """Describe an error in a sentence. An unexpected one says little without its class."""
    explains = isinstance(error, OSError | RopewalkError)
    return str(error) if explains else f"{type(error).__name__}: {error}"


class ConfigurationError(RopewalkError, ValueError):
    """Invalid flags, settings, cluster or script."""

    exit_code = ExitCode.USAGE


class TFConfigError(ConfigurationError):
    """TF_CONFIG is invalid."""


class ProjectError(ConfigurationError):
    """A project directory cannot be packed: links out of it, unreadable, empty, no folder."""


class ProjectTooLargeError(ProjectError):
    """A project directory has more bytes or files than may be sent."""


class NotFoundError(ConfigurationError):
    """A job or a namespace was named that does not exist."""

    exit_code = ExitCode.NOT_FOUND


class MissingExtraError(ConfigurationError, ImportError):
    """A package is missing that one of Ropewalk's extras installs; says which extra."""


class AddressInUseError(RopewalkError):
    """A server's port is taken."""

    exit_code = ExitCode.ADDRESS_IN_USE


class CheckpointError(RopewalkError, ValueError):
    """A checkpoint is missing, truncated, altered or not Ropewalk's."""

    exit_code = ExitCode.CHECKPOINT_UNUSABLE


class StorageError(RopewalkError):
    """The model directory, or the folder of unpacked projects, cannot be written, and a restart
    would find it so again: no permission, no space, not a folder.
    """

    exit_code = ExitCode.STORAGE


class AccessError(RopewalkError):
    """A peer was not let in, or may not do what it asked for."""

    exit_code = ExitCode.ACCESS


class UnauthenticatedError(AccessError):
    """Credentials are missing, expired, of another issuer, or otherwise not valid."""


class PermissionDeniedError(AccessError):
    """The role, the job or the task that asks is not one that may."""


class JobDoneError(RopewalkError):
    """The job was done before this task could take part: there is nothing to do."""

    exit_code = ExitCode.DONE


class IncompatibleError(RopewalkError):
    """Two tasks cannot work together; workers in sync have other values than each other."""

    exit_code = ExitCode.INCOMPATIBLE


class DefinitionMismatchError(IncompatibleError, ValueError):
    """Two tasks define one variable with different shapes, dtypes or update rules."""


class ProtocolMismatchError(IncompatibleError):
    """Two tasks use different protocol versions."""


class CollectiveMismatchError(IncompatibleError, ValueError):
    """Synchronous workers made different collective calls, or not as many."""


class EnvironmentMismatchError(IncompatibleError):
    """The versions of a driver and of its cluster differ in what a job depends on."""


class OtherJobError(IncompatibleError):
    """A task of another job, or a second process of a task that is at work already."""


class RefusedError(RopewalkError):
    """A request was refused; no part of it was applied."""

    exit_code = ExitCode.REFUSED


class UnknownVariableError(RefusedError, KeyError):
    """A variable that is not defined on this ps."""

    def __str__(self) -> str:
        # KeyError would quote the message.
        return self.message


class ShapeMismatchError(RefusedError, ValueError):
    """A value's shape, dtype or size differs from the variable's."""


class LimitExceededError(RefusedError):
    """A limit was exceeded; the message names the setting that raises it."""


class TooManyWorkersError(LimitExceededError):
    """A worker for which a ps or the chief has no place. It ends alone: the job goes on."""


class NonFiniteGradientError(RefusedError, ValueError):
    """Gradients held NaN or infinity too many steps in a row."""


class NanLossDuringTrainingError(NonFiniteGradientError, RuntimeError):
    """The loss of an Estimator's training was NaN or infinite. A RuntimeError, as TensorFlow's."""


class PackageError(RefusedError, ValueError):
    """A packed project is not what its digest says, or holds what no package may: nothing of it was
    unpacked.
    """


class SequenceError(RefusedError):
    """A push whose predecessor has not arrived."""


class SegmentError(RefusedError):
    """Shared memory that was offered cannot be opened; the payload must come over the
    connection.
    """


class FencedError(RefusedError):
    """Raised when a newer incarnation of the task has registered, or another chief holds the ps."""

    exit_code = ExitCode.PEER_LOST


class ProgramError(RopewalkError):
    """The user's program raised an exception on some task."""


class ClosureError(ProgramError):
    """A closure raised an exception of a class that the coordinator does not have."""


class OutOfRangeError(ProgramError):
    """A closure asked its dataset for more than it has."""


class CancelledError(ProgramError):
    """A closure was not run, because another one failed before."""


class DeadlineExceededError(ProgramError):
    """A closure ran for longer than it was given."""


class RetryableError(RopewalkError):
    """An error that a restart may resolve."""

    exit_code = ExitCode.PEER_LOST


class PeerLostError(RetryableError):
    """A peer stopped answering, or lost its state."""


class MovedError(PeerLostError):
    """A ps does not lead the variables that it was asked for: another one does, or will."""


class CollectiveTimeoutError(RetryableError):
    """A synchronous worker is alive but did not reach a collective call in time."""

    exit_code = ExitCode.PEER_LOST


class CutVoidError(RetryableError):
    """The values of all ps at one moment could not be taken or kept; training goes on."""


class StaleRowsError(RetryableError):
    """Rows that a reader keeps are older than it allows, and no newer ones could be had."""


class JoinTimeoutError(RetryableError):
    """Peers did not answer within the join timeout."""

    exit_code = ExitCode.JOIN_TIMEOUT


class JobStoppedError(RetryableError):
    """The job was asked to stop; raised at the next step of the user's program."""

    exit_code = ExitCode.DRAINED


if not TYPE_CHECKING:
    __getattr__ = public_getattr("ropewalk.errors", globals())
