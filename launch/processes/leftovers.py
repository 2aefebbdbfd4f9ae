"""Processes that a task has left running: its process group, and programs detached from it.

A detached process is known by its environment, which has the task's own ``TF_CONFIG``. One that has
cleared it is not found: a program has the rights of the user that started it as it is.
"""

import contextlib
import logging
import os
import signal

from .process import TaskProcess

log = logging.getLogger(__name__)


def end_leftovers(process: TaskProcess, tf_config: str) -> int:
    """End what a task that has ended left running; returns how many processes it had detached.

    What cannot be looked at is logged: the task has ended all the same.

    Args:
        process: The process of the task, which has ended.
        tf_config: The TF_CONFIG of the task.
    """
    try:
        process.signal(signal.SIGKILL)  # to the group
        return end_detached(tf_config)
    except OSError as error:
        log.warning("what %s has left may still run: %s", process.task.short, error)
        return 0


def end_detached(tf_config: str) -> int:
    """End the processes of this user that were started within a task; returns how many.

    Raises:
        OSError: ``/proc`` cannot be read.
    """
    mark = f"TF_CONFIG={tf_config}".encode()
    here, ended = os.getpid(), 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == here:
            continue
        # Gone, another user's, or a thing of the kernel.
        with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as environ:
            if mark in environ.read().split(b"\0"):
                os.kill(int(entry), signal.SIGKILL)
                ended += 1
    return ended
