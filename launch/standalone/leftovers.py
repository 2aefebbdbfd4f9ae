"""What a task has left behind outside of its process group: a program that it has detached.

Such a process is known by its environment, which has the task's own ``TF_CONFIG``. One that has
cleared it is not found: a driver's programs have the rights of the daemon's user as it is.
"""

import contextlib
import os
import signal


def end_leftovers(tf_config: str) -> int:
    """End the processes of this user that were started within a task; returns how many.

    Args:
        tf_config: Of the task, which has ended.
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
