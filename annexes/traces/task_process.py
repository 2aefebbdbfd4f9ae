"""The process of a task whose spans go to a collector."""

import atexit
from typing import TYPE_CHECKING

from ...cluster.resolvers.resolved import ResolvedTask
from ...core.settings import Settings
from ...core.spans import listeners
from .before_start import check
from .settings import TraceSettings

if TYPE_CHECKING:
    from .export import SpanExport

_exports: list["SpanExport"] = []  # at most one


def begin(task: ResolvedTask, settings: Settings) -> None:
    """Send the spans of this process, if the settings say so.

    Args:
        task: The task of the process.
        settings: The task's settings.

    Raises:
        MissingExtraError: OpenTelemetry's SDK is not installed.
        ConfigurationError: OpenTelemetry's variables name no exporter that is installed.
    """
    if _exports or not TraceSettings.of(settings).trace:
        return
    check(settings)
    from .export import SpanExport, chosen_exporter

    export = SpanExport(chosen_exporter(), task.task.short, settings.job_id)
    _exports.append(export)
    listeners.append(export.take)
    atexit.register(export.close)


def flush() -> None:
    """Send what waits, for a moment at most."""
    for export in _exports:
        export.flush()
