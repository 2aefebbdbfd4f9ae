"""Files that a gateway keeps within a bound: what tasks have printed, and packages of drivers.

The lines of a job are read from an offset on.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from ...core.errors import LimitExceededError, RefusedError
from ...core.files.temporary import remove_tree
from ...core.task import TaskId
from .nodes import UNKNOWN, LoggedLine, share_of, to_go

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
        segment_bytes: Size at which a file is full; eight are kept. Unit: bytes.
        end: The offset behind the last line.
    """

    folder: Path
    segment_bytes: int = 8 * 1024 * 1024
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
        if self._segments and self._segments[-1].size < self.segment_bytes:
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


# -- Packages that drivers have sent, kept as files by their digest until others need the room --
# What a job that has not ended may still need is kept. So that no driver takes the room from the
# others, what goes is of whoever has most, and one driver's jobs keep half of the room at most.

PIECE_BYTES = 1024 * 1024
MAX_PACKAGE_BYTES = 256 * 1024 * 1024
_MAX_UPLOADS = 16


@dataclass(slots=True)
class _Upload:
    """A package on its way.

    Attributes:
        owner: Name of the driver that began to send it.
        held: Bytes that are here.
    """

    owner: str
    held: int = 0


class PackageStore:
    """Packages by digest. Not thread-safe.

    Args:
        folder: Folder of this gateway alone; made if it is missing, in a folder that exists.
        needed: Returns the digests that jobs may still ask for.
        max_bytes: Most that is kept of all packages. Unit: bytes.
    """

    def __init__(
        self,
        folder: Path,
        needed: Callable[[], Collection[str]] = tuple,
        *,
        max_bytes: int = 2 * 1024**3,
    ) -> None:
        self._folder = folder
        self._needed = needed
        self._max_bytes = max_bytes
        folder.mkdir(mode=0o700, exist_ok=True)
        self._uploads: dict[str, _Upload] = {}  # the oldest first
        self._owners: dict[str, str] = {}

    def has(self, digest: str) -> bool:
        """Return whether all of a package is here; what is no digest names none."""
        return _is_digest(digest) and (self._folder / digest).exists()

    def put(self, digest: str, offset: int, data: bytes, total: int, owner: str = UNKNOWN) -> int:
        """Take a piece; returns how many bytes are held. A piece that came before is ignored.

        Raises:
            LimitExceededError: The package is too large, or there is no room for it beside those
                that jobs need.
            RefusedError: Its bytes do not have that digest.
        """
        if not _is_digest(digest):
            raise RefusedError("a package is named by its SHA-256 digest in hex")
        if self.has(digest):
            os.utime(self._folder / digest)
            return total
        if not 0 < total <= MAX_PACKAGE_BYTES:
            raise LimitExceededError(
                f"a package has up to {MAX_PACKAGE_BYTES} bytes, not {total}",
                limit=MAX_PACKAGE_BYTES,
            )
        part = self._part(digest)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        upload = self._uploads.get(digest) or self._begin(digest, total, owner)
        if not part.exists():
            upload.held = 0
        if offset == upload.held and data:
            if offset + len(data) > total:
                raise RefusedError(f"a package of {total} bytes has no byte {offset + len(data)}")
            with open(os.open(part, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.seek(offset)
                file.write(data)
            upload.held += len(data)
        if upload.held == total:
            del self._uploads[digest]
            with part.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != digest:
                part.unlink()
                raise RefusedError(
                    f"a package was damaged on its way: {found[:12]}, not {digest[:12]}"
                )
            part.rename(self._folder / digest)
            self._owners[digest] = upload.owner
            self._make_room(digest)
        return upload.held

    def _begin(self, digest: str, total: int, owner: str) -> _Upload:
        self._check_room(total, owner)
        self._uploads[digest] = upload = _Upload(owner)
        for gone in to_go(self._uploads, lambda each: self._uploads[each].owner, _MAX_UPLOADS):
            self._forget(gone)
        return upload

    def _check_room(self, total: int, owner: str) -> None:
        """Check that a package would fit beside those that have to stay."""
        sizes = {each.name: each.stat().st_size for each in self._files()}
        stays = sizes.keys() & set(self._needed())
        own = sum(sizes[each] for each in stays if self._owners.get(each) == owner)
        for kept, most, whose in (
            (own, share_of(owner, self._max_bytes), f"jobs of {owner}"),
            (sum(sizes[each] for each in stays), self._max_bytes, "all jobs"),
        ):
            if kept + total > most:
                raise LimitExceededError(
                    f"the packages of {whose} that have not ended take {kept} bytes, and with one "
                    f"of {total} more than {most}; submit again when some have ended, stop some "
                    "with `ropewalk stop`, or send less",
                    limit=most,
                    value=kept + total,
                )

    def get(self, digest: str, offset: int) -> tuple[bytes, int]:
        """Read a piece of a package; returns also the size of all of it.

        Raises:
            RefusedError: It is not here.
        """
        path = self._folder / digest
        if not self.has(digest):
            raise RefusedError(f"there is no package {digest[:12]}")
        os.utime(path)
        with path.open("rb") as file:
            file.seek(min(offset, MAX_PACKAGE_BYTES))
            return file.read(PIECE_BYTES), path.stat().st_size

    def _part(self, digest: str) -> Path:
        return self._folder / f"{digest}.part"

    def _forget(self, digest: str) -> None:
        del self._uploads[digest]
        self._part(digest).unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return [each for each in self._folder.iterdir() if each.suffix != ".part"]

    def _make_room(self, newest: str) -> None:
        files = sorted(self._files(), key=lambda each: each.stat().st_mtime)
        size = {each: each.stat().st_size for each in files}
        stays = {newest, *self._needed()}
        self._owners = {each.name: self._owners.get(each.name, UNKNOWN) for each in files}
        most = self._max_bytes - sum(size[each] for each in files if each.name in stays)
        others = [each for each in files if each.name not in stays]
        for each in to_go(
            others, lambda file: self._owners[file.name], max(0, most), size.__getitem__
        ):
            each.unlink()


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(each in "0123456789abcdef" for each in text)
