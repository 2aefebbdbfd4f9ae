"""The lines that a job's tasks have printed: on disk, within a bound, read from an offset on."""

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from ....core.errors import RefusedError
from ....core.files.tree_removal import remove_tree
from ....core.task import TaskId
from ..cluster.logged_line import LoggedLine

_SEGMENT_BYTES = 8 * 1024 * 1024
_SEGMENTS = 8
_READ_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a log.

    Attributes:
        lines: Lines in order.
        offset: Offset at which the next ones begin.
        dropped: Bytes before them that are no longer kept.
    """

    lines: list[LoggedLine]
    offset: int
    dropped: int = 0


@dataclass(slots=True)
class _Segment:
    begin: int
    path: Path
    size: int = 0


@dataclass(slots=True)
class JobLog:
    """The last 64 MiB of the log of one job. Not thread-safe.

    Lines whose file another process has removed are lost, and count as dropped.

    Attributes:
        folder: Folder of this job alone; made if it is missing, in a folder that exists.
        end: The offset behind the last line.
    """

    folder: Path
    end: int = 0
    _segments: list[_Segment] = field(default_factory=list)

    def append(self, line: LoggedLine) -> None:
        """Add a line."""
        entry = [line.task.type, line.task.index, int(line.is_error), line.text]
        data = json.dumps(entry).encode() + b"\n"
        # Unbuffered, so that what is read next has it.
        with open(self._open_last(), "wb", 0) as log:
            log.write(data)
        self._segments[-1].size += len(data)
        self.end += len(data)

    def _open_last(self) -> int:
        """Open the file for the next line; a new one if the last is full or gone."""
        if self._segments and self._segments[-1].size < _SEGMENT_BYTES:
            try:
                return os.open(self._segments[-1].path, os.O_WRONLY | os.O_APPEND)
            except FileNotFoundError:
                self._segments.clear()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._segments.append(_Segment(self.end, self.folder / f"{self.end}.log"))
        while len(self._segments) > _SEGMENTS:
            self._segments.pop(0).path.unlink(missing_ok=True)
        return os.open(self._segments[-1].path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def read(self, offset: int) -> Piece:
        """Read the lines from an offset on, as many as fit an answer.

        Args:
            offset: Offset from an earlier piece; 0: the beginning.

        Raises:
            RefusedError: No line begins there.
        """
        lost = [n for n, each in enumerate(self._segments, 1) if not each.path.exists()]
        del self._segments[: max(lost, default=0)]
        if not self._segments or offset >= self.end:
            return Piece([], self.end, max(0, self.end - offset))
        begin = max(offset, self._segments[0].begin)
        segment = next(each for each in reversed(self._segments) if each.begin <= begin)
        with segment.path.open("rb") as log:
            log.seek(begin - segment.begin)
            if begin > segment.begin:
                log.seek(-1, os.SEEK_CUR)
                if log.read(1) != b"\n":
                    raise RefusedError(
                        f"no line of the log begins at offset {offset}; go on from an offset that "
                        "came with lines, or from 0",
                        offset=offset,
                    )
            data = log.read(_READ_BYTES)
            if b"\n" not in data:
                data += log.readline()  # escaped, a character may have six bytes
        whole = data[: data.rfind(b"\n") + 1]
        lines = []
        for entry in whole.splitlines():
            role, index, is_error, text = json.loads(entry)
            lines.append(LoggedLine(TaskId(role, index), text, bool(is_error)))
        return Piece(lines, begin + len(whole), begin - offset)

    def remove(self) -> None:
        """Delete it."""
        for segment in self._segments:
            segment.path.unlink(missing_ok=True)
        self._segments.clear()
        with contextlib.suppress(OSError):  # the gateway's folder goes with all in it
            remove_tree(self.folder)
