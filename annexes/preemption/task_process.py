"""A notice by a file, passed on to the process of a task as the signal that all roles know."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from functools import partial

from ...cluster.resolvers.resolved import ResolvedTask
from ...core.process.threads import new_thread
from ...core.settings import Settings
from .settings import PreemptionSettings

log = logging.getLogger(__name__)

_LOOK_S = 1.0


def begin(task: ResolvedTask, settings: Settings) -> None:
    """Look for the file from now on, in a thread.

    Args:
        task: The task of this process.
        settings: Settings of the task.
    """
    path = PreemptionSettings.of(settings).preemption_file
    if path:
        watch = partial(pass_on, task.task.short, partial(os.path.exists, path), path)
        new_thread("preemption-file", watch, failed=partial(_failed, path)).start()


def _end_in_order() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def pass_on(
    name: str,
    is_there: Callable[[], bool],
    path: str,
    *,
    look_s: float = _LOOK_S,
    ask: Callable[[], None] = _end_in_order,
) -> None:
    """Wait for a notice, and ask this process to end.

    Args:
        name: Name of the task, for the message.
        is_there: Whether the notice is there.
        path: Path of the file, for the message.
        look_s: Time between two looks. Unit: seconds.
        ask: Asks this process to end.
    """
    while not is_there():
        threading.Event().wait(look_s)
    log.warning("%s leaves: there is %s (preemption_file)", name, path)
    ask()


def _failed(path: str, error: BaseException) -> None:
    log.error("cannot look for %s (preemption_file) any more: %s", path, error)
