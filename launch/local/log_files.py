"""Lines that the tasks of a local job print, in files of its model directory, each of bounded size.

A file that is full is put aside as ``NAME.log.1``, in place of the one before: of each task there
are the last 8 MiB at least. For this user alone, as what programs print may be secret.
"""

import contextlib
import os
from datetime import datetime
from pathlib import Path
from typing import IO

from ...core.task import TaskId
from ...core.terminal import terminal_line

LOG_FOLDER = "logs"
FULL_BYTES = 8 * 1024 * 1024


class LogFiles:
    """The log files of a job. Used by one thread. A disk that refuses ends the writing, silently:
    what is shown on the screen is the same.

    Args:
        model_dir: Model directory of the job; a URL has no log files.
        full_bytes: Size from which a file makes room for the next one.
    """

    def __init__(self, model_dir: str, full_bytes: int = FULL_BYTES) -> None:
        self._full_bytes = full_bytes
        self._folder = None if "://" in model_dir else Path(model_dir) / LOG_FOLDER
        self._files: dict[TaskId, IO[bytes]] = {}

    def write(self, task: TaskId, text: str) -> None:
        """Add a line, with the time in front."""
        if self._folder is None:
            return
        at = datetime.now().isoformat(timespec="milliseconds")
        try:
            file = self._file(task, self._folder)
            file.write(f"{at} {terminal_line(text)}\n".encode(errors="replace"))
        except OSError:
            self.close()
            self._folder = None

    def _file(self, task: TaskId, folder: Path) -> IO[bytes]:
        file = self._files.get(task)
        path = folder / f"{task.type}-{task.index}.log"
        if file is not None and file.tell() >= self._full_bytes:
            file.close()
            os.replace(path, f"{path}.1")
            file = None
        if file is None:
            for each in (folder.parent, folder):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            # Unbuffered, so that whoever follows it has each line at once.
            file = self._files[task] = open(os.open(path, flags, 0o600), "ab", 0)  # noqa: SIM115
            file.seek(0, os.SEEK_END)
        return file

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()
        self._files.clear()
