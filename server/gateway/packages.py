"""Packages that drivers have sent, kept as files by their digest until others need the room."""

import hashlib
import os
from pathlib import Path

from ...core.errors import LimitExceededError, RefusedError

PIECE_BYTES = 1024 * 1024
MAX_PACKAGE_BYTES = 256 * 1024 * 1024
_MAX_BYTES = 2 * 1024**3
_MAX_UPLOADS = 16


class PackageStore:
    """Packages by digest. Not thread-safe.

    Args:
        folder: Folder of this gateway alone; made if it is missing, in a folder that exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        self._uploads: dict[str, int] = {}  # bytes that are there

    def has(self, digest: str) -> bool:
        """Return whether all of a package is here; what is no digest names none."""
        return _is_digest(digest) and (self._folder / digest).exists()

    def put(self, digest: str, offset: int, data: bytes, total: int) -> int:
        """Take a piece; returns how many bytes are held. A piece that came before is ignored.

        Raises:
            LimitExceededError: The package is too large, or too many are being sent.
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
        held = self._uploads.get(digest, 0) if part.exists() else 0
        if digest not in self._uploads and len(self._uploads) >= _MAX_UPLOADS:
            self._forget(next(iter(self._uploads)))
        if offset == held and data:
            if held + len(data) > total:
                raise RefusedError(f"a package of {total} bytes has no byte {held + len(data)}")
            with open(os.open(part, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.seek(offset)
                file.write(data)
            held += len(data)
        self._uploads[digest] = held
        if held == total:
            del self._uploads[digest]
            with part.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != digest:
                part.unlink()
                raise RefusedError(
                    f"a package was damaged on its way: {found[:12]}, not {digest[:12]}"
                )
            part.rename(self._folder / digest)
            self._make_room()
        return held

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

    def _make_room(self) -> None:
        files = [each for each in self._folder.iterdir() if each.suffix != ".part"]
        files.sort(key=lambda each: each.stat().st_mtime)
        total = sum(each.stat().st_size for each in files)
        for each in files[:-1]:
            if total <= _MAX_BYTES:
                return
            total -= each.stat().st_size
            each.unlink()


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(each in "0123456789abcdef" for each in text)
