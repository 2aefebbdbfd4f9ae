"""Log records that a task with a launcher leaves to it: every task would say the same.

Such a task's logging drops records logged with ``extra=REPORTED_BY_LAUNCHER``.
"""

import logging

REPORTED_BY_LAUNCHER = {"is_reported_by_launcher": True}


def is_reported_by_launcher(record: logging.LogRecord) -> bool:
    """Return whether a launcher reports a log record's event."""
    return hasattr(record, "is_reported_by_launcher")
