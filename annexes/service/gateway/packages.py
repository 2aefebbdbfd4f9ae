"""Packages that drivers have sent, kept as files by their digest until others need the room.

What a job that has not ended may still need is kept. So that no driver takes the room from the
others, what goes is of whoever has most, and one driver's jobs keep half of the room at most.
"""

import hashlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from ....core.errors import LimitExceededError, RefusedError
from ..cluster.shares import UNKNOWN, share_of, to_go

PIECE_BYTES = 1024 * 1024
MAX_PACKAGE_BYTES = 256 * 1024 * 1024
_MAX_BYTES = 2 * 1024**3
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
    """

    def __init__(self, folder: Path, needed: Callable[[], Collection[str]] = tuple) -> None:
        self._folder = folder
        self._needed = needed
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
            (own, share_of(owner, _MAX_BYTES), f"jobs of {owner}"),
            (sum(sizes[each] for each in stays), _MAX_BYTES, "all jobs"),
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
        most = _MAX_BYTES - sum(size[each] for each in files if each.name in stays)
        others = [each for each in files if each.name not in stays]
        for each in to_go(
            others, lambda file: self._owners[file.name], max(0, most), size.__getitem__
        ):
            each.unlink()


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(each in "0123456789abcdef" for each in text)
