"""Choosing a transport: shared memory where it can be, the stream everywhere else."""

from ...core.settings import Settings
from ...core.task import Incarnation, TaskId
from .shm_transport import ShmTransport
from .stream_transport import StreamTransport
from .transport import PsTransport


def open_transport(task: TaskId, address: str, who: Incarnation, settings: Settings) -> PsTransport:
    """A transport to one ps, not connected yet."""
    stream = StreamTransport(task, address, who, settings, near=settings.shared_memory)
    return ShmTransport(stream) if settings.shared_memory else stream
