"""TensorBoard's event files: what ``rw.summary`` and a job's own scalars are written to."""

from .encoding import event_of, require_library
from .writer import EventWriter

__all__ = ["EventWriter", "event_of", "require_library"]
