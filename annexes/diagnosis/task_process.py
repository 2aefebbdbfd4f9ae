"""Stacks of a task whose program holds the interpreter, for who asks from outside.

Nothing in Python runs then. ``faulthandler`` has a handler of signals that writes the stacks of all
threads without the interpreter, to a descriptor that was opened before: a file without a name,
which another process of this user finds in ``/proc`` and reads. A second such file says which task
it is, and names its threads.
"""

import contextlib
import faulthandler
import fcntl
import json
import os
import signal
import threading
from dataclasses import dataclass

from ...cluster.resolvers.resolved import ResolvedTask
from ...core.settings import Settings

STACKS, SHEET = "ropewalk-stacks", "ropewalk-task"
SIGNAL = int(signal.SIGRTMIN) + 12
"""Real-time signal for stacks: programs and launchers use SIGUSR1 and SIGUSR2 themselves."""


@dataclass(slots=True)
class _Sheet:
    """The descriptor of the file that says which task this is, and what it has."""

    descriptor: int
    about: dict[str, str]
    written: str = ""


_sheets: list[_Sheet] = []  # at most one


def begin(task: ResolvedTask, _: Settings) -> None:
    """Have this process write its stacks when it is asked by a signal.

    Args:
        task: The task of the process.
    """
    if _sheets or not hasattr(os, "memfd_create"):
        return
    with contextlib.suppress(OSError):  # of a system without such files: it can only be asked
        stacks = os.memfd_create(STACKS)
        fcntl.fcntl(stacks, fcntl.F_SETFL, os.O_APPEND)  # the reader empties it
        faulthandler.register(SIGNAL, stacks, all_threads=True, chain=False)
        about = {"task": task.task.short, "chief": task.chief_address}
        _sheets.append(_Sheet(os.memfd_create(SHEET), about))
        note_threads()


def note_threads() -> None:
    """Write down the names of the threads, if they have changed."""
    for sheet in _sheets:
        names = {str(thread.ident): thread.name for thread in threading.enumerate()}
        text = json.dumps({**sheet.about, "threads": names})
        if text != sheet.written:
            sheet.written = text
            data = text.encode()
            os.pwrite(sheet.descriptor, data, 0)
            os.ftruncate(sheet.descriptor, len(data))
