"""A worker's part in heartbeats: it hears of a cut."""

from ...worker.joining import JoinedTask
from .cut_marker import CutMarker


def marker(joined: JoinedTask) -> CutMarker:
    """Make what marks where the pushes of a worker are."""
    return CutMarker(joined.chief, joined.who, joined.session)


PART = marker
"""Made when a task has joined."""
