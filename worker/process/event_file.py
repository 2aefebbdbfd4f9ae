"""File of a task's events in the model directory of its job, for when the task cannot be asked any
more.

It is written when the task ends other than well, and meanwhile once in a while if something has
happened: a task that is killed leaves what was written then. A short job that goes well leaves
none.
"""

import contextlib
import logging
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from ...core.errors import RopewalkError
from ...core.outside_text import read_json
from ...core.process import events
from ...core.process.threads import new_thread, nobody_waits
from ...core.settings import Settings
from ...core.task import TaskId
from ...core.versions import package_version

if TYPE_CHECKING:
    from ...core.checkpoint.folder import Folder

log = logging.getLogger(__name__)

FOLDER = "events"
"""Name of the folder, in the model directory."""

MOST_BYTES = 4 * 1024 * 1024
"""Longest file of events: of those of a process, the last ones that fit."""

_ENDING = (signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU)
_KEPT = 3  # files of a task: it may have been started again and again


class KeptEvents:
    """The file of one process.

    Args:
        task: Task of the process.
        settings: The task's settings.
        every_s: Time between two looks whether there is anything to write. Unit: seconds.
    """

    def __init__(self, task: TaskId, settings: Settings, every_s: float = 10.0) -> None:
        self._every_s = every_s
        self._task = task
        self._settings = settings
        began = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        self._of_task = f"{task.type}-{task.index}."
        self._name = f"{self._of_task}{began}-{os.getpid()}.jsonl"
        self._written = 0
        self._over = threading.Event()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin to write what happens."""
        events.begin(
            self._task.short,
            pid=os.getpid(),
            host=socket.gethostname(),
            version=package_version(),
            python=platform.python_version(),
        )
        if self._settings.model_dir:
            new_thread("events", self._write_now_and_then, failed=nobody_waits).start()

    def close(self, *, is_well: bool) -> None:
        """Write the last events, unless all is well and nothing was written before."""
        self._over.set()
        if self._settings.model_dir and not (is_well and not self._written):
            self._write()

    def _write_now_and_then(self) -> None:
        quiet = events.count()  # of a start that nobody asks about
        while not self._over.wait(self._every_s):
            if events.count() not in (quiet, self._written):
                self._write()

    def _write(self) -> None:
        from ...core.checkpoint.folder import open_folder

        count = events.count()
        lines = events.lines(MOST_BYTES)
        try:
            with self._lock:
                model_dir = open_folder(self._settings.model_dir)
                if not model_dir.names():  # it may be a mistake, which the chief finds out
                    return
                folder = model_dir.subfolder(FOLDER)
                folder.make()
                folder.put(self._name, lines.encode(errors="replace"))
                if not self._written:
                    self._remove_old(folder)
                self._written = count
        except (RopewalkError, OSError, ValueError, ImportError) as error:
            log.debug("the events could not be written: %s", error)

    def _remove_old(self, folder: "Folder") -> None:
        own = sorted(name for name in folder.names() if name.startswith(self._of_task))
        for name in own[:-_KEPT]:
            folder.remove(name)


@contextlib.contextmanager
def kept_events(task: TaskId, settings: Settings) -> Iterator[KeptEvents]:
    """Keep the events of this process's task; what leaves the context as an error is not well."""
    file = KeptEvents(task, settings)
    file.start()
    _write_before_ending(file)
    try:
        yield file
    except BaseException as error:
        events.record("program.ended", outcome="error", message=error)
        file.close(is_well=False)
        raise


def _write_before_ending(file: KeptEvents) -> None:
    """Have the signals by which a terminal or a limit ends the process write the events first.

    What a program or its launcher has made of such a signal stays.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # Python allows no handlers there

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        events.record("signal.received", signal=signal.Signals(number).name)
        file.close(is_well=False)
        os.kill(os.getpid(), number)

    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)


def read_events(model_dir: str) -> dict[str, list[dict[str, Any]]]:
    """Read the events that tasks have left in a model directory, by the names of their files.

    Raises:
        OSError: They cannot be read.
        ValueError: They are something else.
    """
    from ...core.checkpoint.folder import open_folder

    folder = open_folder(model_dir).subfolder(FOLDER)
    return {
        name: [read_json(line) for line in folder.read(name, MOST_BYTES).splitlines()]
        for name in sorted(folder.names())
        if name.endswith(".jsonl")
    }
