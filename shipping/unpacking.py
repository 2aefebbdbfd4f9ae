"""Unpacking a package: into a folder that appears whole or not at all.

Files are written into a folder beside the one that is asked for, which nobody but this user can
enter, and that is renamed when every byte of it is on disk. Each is opened from the folder above it
with ``O_NOFOLLOW`` and ``O_EXCL``. Nothing is executed.
"""

import contextlib
import errno
import gzip
import io
import os
import re
import secrets
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import LimitExceededError, PackageError, StorageError
from ..core.files.temporary import remove_tree
from ..core.wire.bounds import MAX_NAME_BYTES
from .package import LIMITS, PackageLimits, check_digest, digest_of, fault_of_name

# -- Reading a package as a stranger's: what it says is checked before it is believed ----------
# Only what :func:`~.packing.pack` writes is read: regular files, and long names in pax headers
# with nothing but a path. Everything else a tar archive can have (links, devices, folders, sparse
# files, GNU's extensions) is refused, so the headers are read one by one here, and ``tarfile``
# parses each alone: its own reader goes after extensions before anybody can look at them. What is
# decompressed at once is at most :data:`CHUNK_BYTES`, and in all what the bounds allow.
#
# Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header".


CHUNK_BYTES = 2**20

_BLOCK = tarfile.BLOCKSIZE
_MAX_PAX_BYTES = MAX_NAME_BYTES + 32  # one record: its length, "path=", the name, a newline
_PATH_RECORD = re.compile(rb"([0-9]{1,5}) path=([^\n]*)\n")
_MAX_FILE_HEADERS = 8 * _BLOCK  # of one file in the archive: headers and padding


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file of a package.

    Attributes:
        name: Relative, and checked.
        size: Unit: bytes.
        executable: Whether it is.
        chunks: Content in chunks, of at most :data:`CHUNK_BYTES` each. To be read before the next
            file.
    """

    name: str
    size: int
    executable: bool
    chunks: Iterator[bytes]


def read_archive(data: bytes, digest: str, limits: PackageLimits) -> Iterator[ArchivedFile]:
    """Read the files of a package, one after the other.

    Errors may come after some files were given out: whoever writes them removes them again.

    Args:
        data: The package.
        digest: Digest of the package, which is its name.
        limits: Bounds.

    Raises:
        PackageError: Another digest, damaged, or an entry that no package may have.
        LimitExceededError: Over a bound.
    """
    short = digest[:12]
    # Compressed it is smaller, and hardly larger where that fails.
    as_sent = 2 * limits.max_bytes + limits.max_files * _MAX_FILE_HEADERS
    _check_limit(len(data), as_sent, "bytes as sent", short)
    if (actual := digest_of(data)) != digest:
        raise PackageError(
            f"package {short} has the digest {actual}, not {digest}: it was changed or cut on its "
            "way; send it again",
            digest=digest,
            actual=actual,
        )
    stream = _ArchiveStream(data, short)
    seen = _Names(short)
    files = size = 0
    while (header := _next_header(stream)) is not None:
        files += 1
        size += header.size
        _check_limit(files, limits.max_files, "files", short)
        _check_limit(size, limits.max_bytes, "bytes of files", short)
        seen.add(header.name)
        _check_limit(len(seen.folders), limits.max_files, "folders", short)
        chunks = stream.content(header.size)
        yield ArchivedFile(header.name, header.size, bool(header.mode & 0o100), chunks)
        for _ in chunks:  # what the caller did not read
            pass
        stream.skip_padding(header.size)
    stream.check_end()


class _ArchiveStream:
    """The decompressed bytes, in order; every failure to read them is a PackageError."""

    def __init__(self, data: bytes, short: str) -> None:
        self.short = short
        self._stream = gzip.GzipFile(fileobj=io.BytesIO(data))

    def read(self, most: int) -> bytes:
        """Read up to ``most`` bytes; fewer at the end only."""
        try:
            return self._stream.read(most)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise self.refusal(f"is no whole gzip file ({error})") from error

    def exactly(self, size: int) -> bytes:
        """Read so many bytes, or refuse the package."""
        data = self.read(size)
        if len(data) < size:
            raise self.refusal("ends in the middle of a file")
        return data

    def content(self, size: int) -> Iterator[bytes]:
        """Read the content of a file, in chunks."""
        while size:
            chunk = self.exactly(min(size, CHUNK_BYTES))
            size -= len(chunk)
            yield chunk

    def skip_padding(self, size: int) -> None:
        """Skip to the next block behind content of this size."""
        self.exactly(-size % _BLOCK)

    def check_end(self) -> None:
        """Check that nothing but zeros follows the first block of zeros, up to one record."""
        rest = self.read(tarfile.RECORDSIZE + 1)
        if len(rest) < _BLOCK or len(rest) > tarfile.RECORDSIZE or rest.strip(b"\0"):
            raise self.refusal("does not end where its archive ends")

    def refusal(self, what: str, name: str | None = None) -> PackageError:
        """Make an error about this package, or about one file of it."""
        where = f"package {self.short}" + ("" if name is None else f": {name[:200]!r}")
        return PackageError(
            f"{where} {what}; nothing of it was unpacked. It was not made by this Ropewalk, or "
            "damaged",
            package=self.short,
        )


class _Names:
    """The names so far: no file twice, and none that is another one's folder."""

    def __init__(self, short: str) -> None:
        self._short = short
        self._files: set[str] = set()
        self.folders: set[str] = set()

    def add(self, name: str) -> None:
        parts = name.split("/")
        folders = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        if name in self._files or name in self.folders or folders & self._files:
            raise PackageError(
                f"package {self._short} has {name[:200]!r} twice, or as a file and as a folder; "
                "nothing of it was unpacked",
                package=self._short,
            )
        self._files.add(name)
        self.folders |= folders


def _next_header(stream: _ArchiveStream) -> tarfile.TarInfo | None:
    """Read the next file's header, with its name; None: the archive ends here."""
    header = _header(stream)
    path = None
    if header is not None and header.type == tarfile.XHDTYPE:
        path = _pax_path(stream, header.size)
        header = _header(stream)
        if header is None:
            raise stream.refusal("ends behind a pax header")
    if header is None:
        return None
    name = header.name if path is None else path
    if header.type != tarfile.REGTYPE:
        raise stream.refusal(f"is no regular file (type {header.type!r} of tar)", name)
    if fault := fault_of_name(name):
        raise stream.refusal(f"is no name for a file of a package: {fault}", name)
    if header.size < 0:
        raise stream.refusal(f"has a size of {header.size} bytes", name)
    header.name = name
    return header


def _header(stream: _ArchiveStream) -> tarfile.TarInfo | None:
    block = stream.exactly(_BLOCK)
    if not block.strip(b"\0"):
        return None
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        raise stream.refusal(f"has a header that is not one of tar ({error})") from error


def _pax_path(stream: _ArchiveStream, size: int) -> str:
    if not 0 < size <= _MAX_PAX_BYTES:
        raise stream.refusal(f"has a pax header of {size} bytes; at most {_MAX_PAX_BYTES} hold")
    data = stream.exactly(size)
    stream.skip_padding(size)
    record = _PATH_RECORD.fullmatch(data)
    if record is None or int(record[1]) != size:
        raise stream.refusal("has a pax header that holds something else than a path")
    try:
        return record[2].decode()
    except UnicodeDecodeError as error:
        raise stream.refusal("has a name that is not valid UTF-8") from error


def _check_limit(value: int, limit: int, what: str, short: str) -> None:
    if value > limit:
        raise LimitExceededError(
            f"package {short} has {value} {what}, over the limit of {limit}; nothing of it was "
            "unpacked. Send less, by lines in .ropewalkignore",
            package=short,
            value=value,
            limit=limit,
        )


_TEMPORARY = ".unpacking-"  # begins the name of a folder that is being filled

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(data: bytes, digest: str, folder: Path, limits: PackageLimits = LIMITS) -> None:
    """Unpack a package into a new folder.

    The folder and those in it get mode 0700, files 0644 or 0755, all in the name of this process's
    user. If anything fails, nothing is left behind; a process that is killed leaves a folder whose
    name begins with ``.unpacking-``.

    Args:
        data: The package.
        digest: Digest of the package, which is its name, from a trusted sender.
        folder: Folder to be made; the one above it exists and is safe
            (:mod:`~ropewalk.core.files.trusted_folder`).
        limits: Bounds.

    Raises:
        PackageError: Another digest, damaged, or an entry that no package may have: absolute,
            ``..``, a link, a device, a name twice, a control character in a name.
        LimitExceededError: Over a bound.
        StorageError: The folder exists, or cannot be written.
    """
    check_digest(digest)
    temporary = folder.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
    try:
        temporary.mkdir(mode=0o700)
        top = os.open(temporary, _FOLDER)
        try:
            names = [_write(file, top) for file in read_archive(data, digest, limits)]
            _sync(temporary, names)
            if os.path.lexists(folder):  # an empty folder would be replaced
                raise FileExistsError(errno.EEXIST, "it exists", str(folder))
            temporary.rename(folder)
        finally:
            os.close(top)
    except OSError as error:
        raise StorageError(
            f"package {digest[:12]} cannot be unpacked into {folder}: {error.strerror or error}",
            path=folder,
        ) from error
    finally:
        with contextlib.suppress(OSError):  # it has been renamed, or was never made
            remove_tree(temporary)


def _write(file: ArchivedFile, top: int) -> str:
    *folders, name = file.name.split("/")
    parent = os.dup(top)
    try:
        for part in folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=parent)
            above, parent = parent, os.open(part, _FOLDER, dir_fd=parent)
            os.close(above)
        descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
    finally:
        os.close(parent)
    with os.fdopen(descriptor, "wb") as stream:
        for chunk in file.chunks:
            stream.write(chunk)
        os.fchmod(descriptor, 0o755 if file.executable else 0o644)
    return file.name


def _sync(folder: Path, names: list[str]) -> None:
    """Wait until all is on disk: after a loss of power no script may be empty.

    In a second round, since the first sync makes file systems write what all files need.
    """
    folders = {folder}
    for name in names:
        path = folder / name
        _sync_one(path)
        folders.update(path.parents[: name.count("/")])
    for directory in folders:
        _sync_one(directory)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
