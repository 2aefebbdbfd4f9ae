"""The spare processes of a node: one is always ready, and another is started when it is used."""

import contextlib
import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...core.settings import child_environment
from ...core.task import TaskId
from ..processes import ParentDeathPipe, start_python

# Of whoever was started just now, so that the next spare does not take its processor.
_PAUSE_S = 2.0
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


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

    def become(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> subprocess.Popen[bytes]:
        """Make a process ``windlass ARGUMENTS``, at once if one is ready."""
        with self._lock:
            process, self._ready = self._ready, None
            if self._timer is None and not self._closed:
                self._timer = threading.Timer(_PAUSE_S, self._refill)
                self._timer.daemon = True
                self._timer.start()
        if process is None or process.poll() is not None:
            process = self._start()
        given = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder),
        }
        if process.stdin is not None:
            with contextlib.suppress(OSError), process.stdin:  # it has ended: its code says so
                process.stdin.write(json.dumps(given).encode() + b"\n")
        return process

    def close(self) -> None:
        """End the one that is ready."""
        with self._lock:
            self._closed = True
            process, self._ready = self._ready, None
            if self._timer is not None:
                self._timer.cancel()
        if process is not None:
            process.kill()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            process.wait()

    def _refill(self) -> None:
        with self._lock:
            self._timer = None
        self.start()

    def _start(self) -> subprocess.Popen[bytes]:
        return start_python(
            ["windlass.launch.standalone.spare", self._role],
            child_environment(**_THREADS),
            self._death_pipe,
            stdin=subprocess.PIPE,
        )
