"""Checks before the tasks of a job are started."""

from ...core.settings import Settings
from .opening import trackers_here


def check(settings: Settings) -> None:
    """Check that the clients of the trackers are installed which the settings ask for.

    Raises:
        MissingExtraError: One is not; says which extra brings it.
    """
    trackers_here(settings)
