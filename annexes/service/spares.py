"""The spare processes of a node: one is always ready, and another is started when it is used."""

import contextlib
import json
import logging
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...core.process.processes import is_stopped
from ...core.settings import child_environment
from ...core.task import TaskId
from ...launch.processes.process import ONE_THREAD, ParentDeathPipe, start_python

log = logging.getLogger(__name__)

# The task that was started just now needs the processor more than the next spare.
_PAUSE_S = 2.0


class Spares:
    """Processes that wait to become tasks of one node.

    Args:
        task: The node; its role says what is loaded.
        death_pipe: Tells them of the end of this process.
    """

    def __init__(self, task: TaskId, death_pipe: ParentDeathPipe) -> None:
        self._role = task.type
        self._death_pipe = death_pipe
        self._lock = threading.Lock()
        self._ready: subprocess.Popen[bytes] | None = None
        self._timer: threading.Timer | None = None
        self._closed = False

    def start(self) -> None:
        """Have one ready."""
        with self._lock:
            if self._ready is None and not self._closed:
                self._ready = self._start()

    def take(self) -> subprocess.Popen[bytes]:
        """Take a process that waits for :func:`become`, at once if one is ready.

        Raises:
            OSError: None can be started.
        """
        with self._lock:
            process, self._ready = self._ready, None
            if self._timer is None and not self._closed:
                self._timer = threading.Timer(_PAUSE_S, self._refill)
                self._timer.daemon = True
                self._timer.start()
        if process is not None and (process.poll() is not None or is_stopped(process.pid)):
            _end(process)  # it would never go on
            process = None
        return process or self._start()

    def close(self) -> None:
        """End the one that is ready."""
        with self._lock:
            self._closed = True
            process, self._ready = self._ready, None
            if self._timer is not None:
                self._timer.cancel()
        if process is not None:
            _end(process)

    def _refill(self) -> None:
        with self._lock:
            self._timer = None
        try:
            self.start()
        except OSError as error:  # no memory, or no more processes: the next task starts its own
            log.warning("no process could be started for the next task: %s", error)

    def _start(self) -> subprocess.Popen[bytes]:
        return start_python(
            ["ropewalk.annexes.service.spare", self._role],
            child_environment(**ONE_THREAD),
            self._death_pipe,
            stdin=subprocess.PIPE,
        )


def become(
    process: "subprocess.Popen[bytes]",
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
) -> None:
    """Make a process of :meth:`Spares.take` ``ropewalk ARGUMENTS``.

    Waits until it reads this: not longer than the process lives.
    """
    order = {"arguments": list(arguments), "environment": dict(environment), "folder": str(folder)}
    if process.stdin is not None:
        with contextlib.suppress(OSError), process.stdin:  # it has ended: its code says so
            process.stdin.write(json.dumps(order).encode() + b"\n")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    process.wait()
