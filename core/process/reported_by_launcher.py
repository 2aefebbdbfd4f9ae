"""Log records that a task with a launcher leaves to it: every task would say the same.

Such a task's logging drops records logged with ``extra=LAUNCHER_TELLS``.
"""

import logging

LAUNCHER_TELLS = {"launcher_tells": True}


def launcher_tells(record: logging.LogRecord) -> bool:
    """Whether a launcher tells this."""
    return hasattr(record, "launcher_tells")
