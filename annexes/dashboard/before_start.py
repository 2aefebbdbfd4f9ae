"""Checks before the tasks of a job are started."""

from importlib.util import find_spec

from ...core.errors import MissingExtraError
from ...core.settings import Settings
from .settings import DashboardSettings


def check(settings: Settings) -> None:
    """Check that what serves the page is installed, if the settings ask for it.

    Raises:
        MissingExtraError: It is not.
    """
    if DashboardSettings.of(settings).dashboard_port:
        require_server()


def require_server() -> None:
    """Check that what serves the page is installed.

    Raises:
        MissingExtraError: It is not; says which extra to install.
    """
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise MissingExtraError(
            "the page needs Starlette and Uvicorn: pip install 'ropewalk[dashboard]'",
            module="starlette",
            extra="dashboard",
        )
