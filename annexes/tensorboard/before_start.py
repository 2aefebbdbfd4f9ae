"""Checks before the tasks of a job are started."""

from ...core.settings import Settings
from .settings import TensorBoardSettings


def check(settings: Settings) -> None:
    """Check that what writes event files is installed, if the settings ask for them.

    Raises:
        MissingExtraError: It is not.
    """
    if TensorBoardSettings.of(settings).tensorboard:
        from .encoding import require_library

        require_library()
