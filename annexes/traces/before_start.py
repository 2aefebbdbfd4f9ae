"""Checks before the tasks of a job are started."""

from importlib.util import find_spec

from ...core.errors import MissingExtraError
from ...core.settings import Settings
from .settings import TraceSettings


def check(settings: Settings) -> None:
    """Check that what sends spans is installed, if the settings ask for it.

    Raises:
        MissingExtraError: It is not; says which extra to install.
    """
    if TraceSettings.of(settings).trace and find_spec("opentelemetry") is None:
        raise MissingExtraError(
            "--trace sends spans with OpenTelemetry's SDK: pip install 'ropewalk[otel]'",
            module="opentelemetry",
            extra="otel",
        )
