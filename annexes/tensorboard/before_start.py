"""Checks before the tasks of a job are started."""

from ...core.settings import Settings


def check(settings: Settings) -> None:
    """Check that what writes event files is installed, if the settings ask for them.

    Raises:
        MissingExtraError: It is not.
    """
    if settings.tensorboard:
        from .encoding import require_library

        require_library()
