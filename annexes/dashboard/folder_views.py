"""Logs and checkpoints of a job for the page, from its model directory on this machine.

A page that follows the logs says how far it has read; a piece is bounded, and the first one is the
end of each file.
"""

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...core.errors import RopewalkError
from ...core.outside_text import open_plain, parse_number
from ...launch.local.log_files import LOG_FOLDER

_FIRST_BYTES = 128 * 1024  # of all files together, when a page begins to follow
_PIECE_BYTES = 512 * 1024
_MOST_OFFSET = 2**50
_MOST_FILES = 512
_FILE = re.compile(r"([a-z]{1,32}-[0-9]{1,7})\.log")


def log_lines(folder: str, after: str, piece_bytes: int = _PIECE_BYTES) -> dict[str, Any]:
    """Read what the tasks of a job have printed, beyond what a page has.

    Args:
        folder: Model directory; empty: it is not known.
        after: End of the last piece, as that said it; empty: there was none.
        piece_bytes: Size of a piece after the first, of all files together.

    Returns:
        ``lines``: tasks and lines, each with the time in front; ``after``: for the next piece;
        ``folder``: folder of the files, empty if there are none.
    """
    logs = Path(folder) / LOG_FOLDER if folder else None
    files = sorted(_files(logs))[:_MOST_FILES] if logs is not None else []
    begins = dict(_offsets(after))
    lines, ends = list[tuple[str, str, str]](), list[str]()
    for task, path in files:
        share = (piece_bytes if after else _FIRST_BYTES) // len(files)
        text, end = _read(path, begins.get(task), share)
        at = ""
        for line in text.splitlines():
            at = line[:_TIME] if line[10:11] == "T" else at  # else it goes on the one before
            lines.append((at, task, line))
        ends.append(f"{task}:{end}")
    lines.sort(key=lambda each: each[0])
    return {
        "lines": [each[1:] for each in lines],
        "after": ",".join(ends),
        "folder": str(logs) if files else "",
    }


_TIME = 23  # characters of a line's time


def _files(logs: Path) -> Iterator[tuple[str, Path]]:
    try:
        names = os.listdir(logs)
    except OSError:
        return
    for name in names:
        if match := _FILE.fullmatch(name):
            yield match[1], logs / name


def _offsets(after: str) -> Iterator[tuple[str, int]]:
    for part in after.split(",")[:_MOST_FILES]:
        task, _, number = part.partition(":")
        if (offset := parse_number(number, _MOST_OFFSET)) is not None:
            yield task, offset


def _read(path: Path, begin: int | None, most: int) -> tuple[str, int]:
    """Read whole lines from an offset on; None: the last ones. Returns them and their end."""
    try:
        with open_plain(path, follow_links=False) as file:
            size = os.fstat(file.fileno()).st_size
            is_new = begin is None or begin > size  # another file has taken its place
            start = max(0, size - most) if begin is None else 0 if is_new else begin
            file.seek(start)
            data = file.read(most)
    except OSError:
        return "", begin or 0
    first = data.find(b"\n") + 1 if begin is None and start else 0
    last = data.rfind(b"\n") + 1
    if not last and len(data) == most:
        last = len(data)  # a line as long as a piece
    return data[first:last].decode(errors="replace"), start + last


def checkpoints(folder: str) -> list[dict[str, Any]]:
    """List the checkpoints of a model directory, the newest first; none if it is not known."""
    if not folder:
        return []
    from ...core.checkpoint.directory import list_checkpoints

    return [_checkpoint(each.path) for each in reversed(list_checkpoints(folder))]


@lru_cache(maxsize=256)
def _checkpoint(path: str) -> dict[str, Any]:
    """Describe a checkpoint: one that is whole does not change."""
    from ...core.checkpoint.reader import CheckpointReader

    try:
        reader = CheckpointReader(path)
    except (RopewalkError, OSError) as error:
        return {"path": path, "problem": str(error)}
    manifest = reader.manifest
    return {
        "path": path,
        "step": manifest.global_step,
        "final": manifest.final,
        "bytes": sum(record.num_bytes for record in manifest.files.values()),
        "variables": len(manifest.variables),
        "tables": len(manifest.tables),
        "base": reader.base.path if reader.base is not None else "",
        "moment": manifest.cut is not None,
        "at": os.stat(path).st_mtime,
    }
