"""Parts of a chief that annexes bring: their calls, and what they add to answers and metrics.

An annex that has a module ``chief_part`` attaches there with ``PART``, which makes its part for
each job from its :class:`~ropewalk.server.chief.servicer.LockedJob`.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from google.protobuf.message import Message

from ...core import annexes
from ...core.errors import ConfigurationError
from ...net.auth.guard import Visitor
from ...net.unary import Servicer
from ...proto.v1 import chief_pb2
from ...telemetry.catalogue import Sample

if TYPE_CHECKING:
    from .servicer import LockedJob

SERVICE = chief_pb2.DESCRIPTOR.services_by_name["Chief"]


class JobPart(Protocol):
    """Part of a chief; it has a method for each call that it serves, too. Thread-safe."""

    def add_to_heartbeat(self, answer: chief_pb2.HeartbeatResponse) -> None:
        """Add to the answer to a heartbeat. Must not wait."""

    def add_to_status(self, status: chief_pb2.GetStatusResponse) -> None:
        """Add to the status of the job. The job's lock is held."""

    def samples(self) -> Iterator[Sample]:
        """Yield samples for Prometheus."""


def parts_of(locked_job: "LockedJob") -> list[JobPart]:
    """Make the parts of a job that annexes bring."""
    return [module.PART(locked_job) for module in annexes.at("chief_part")]


def calls_of(implementations: Sequence[object]) -> Servicer:
    """Collect the calls of a chief from the objects that have them; what none has is refused.

    Args:
        implementations: Objects with a method for each call that they serve.
    """

    def refuse(request: Message, _: Visitor) -> Message:
        call = type(request).__name__.removesuffix("Request")
        raise ConfigurationError(
            f"this chief does not serve {call}: the annex that does was taken out of its "
            "installation; install Ropewalk there again"
        )

    return {
        method.name: next(
            (getattr(each, method.name) for each in implementations if hasattr(each, method.name)),
            refuse,
        )
        for method in SERVICE.methods
    }
