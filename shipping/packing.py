"""Packing a project directory: the same files give the same bytes.

Names are sorted, times and owners are zero, and of a file's mode the one bit is kept that says
whether it is executable. The format is gzip over pax, which every ``tar`` reads.
"""

import gzip
import io
import tarfile
from collections.abc import Collection
from pathlib import Path

from ..core.errors import ProjectError, ProjectTooLargeError
from ..core.showing import counted
from .largest import largest
from .package import LIMITS, Package, PackageLimits, digest_of
from .project_files import ProjectFile, list_files, read_regular

_LEVEL = 6
_ENTRIES_PER_FILE = 20  # a project may have so many entries for each file that is allowed


def pack(folder: Path, limits: PackageLimits = LIMITS, leave_out: Collection[str] = ()) -> Package:
    """Pack a project directory.

    Left out are what ``.gitignore`` and ``.ropewalkignore`` files say, at every level
    (:mod:`.ignore_files`), and always ``.git``, virtual environments, ``__pycache__``, ``*.pyc``,
    ``.mypy_cache``, ``.pytest_cache``, ``node_modules`` and ``.ipynb_checkpoints``. What happens to
    links says :mod:`.project_files`. Memory: at most three times ``limits.max_bytes``. A file that
    changes meanwhile is packed as it is when it is read.

    Args:
        folder: The project.
        limits: Bounds.
        leave_out: Names of further files to leave out, relative to the project.

    Raises:
        ProjectTooLargeError: Over a bound; names the largest files and folders.
        ProjectError: It is no folder, holds nothing to pack, a link leads elsewhere, or something
            cannot be read.
    """
    root = Path(folder).resolve()
    if not root.is_dir():
        raise ProjectError(f"{folder} is no folder; name the project directory", path=folder)
    max_entries = _ENTRIES_PER_FILE * limits.max_files
    files, complete = list_files(root, max_entries=max_entries, leave_out=leave_out)
    sizes = {file.name: file.size for file in files}
    _check_bounds(root, sizes, limits)
    if not complete:
        raise ProjectTooLargeError(
            f"{root} has over {max_entries} files and folders, most of them left "
            "out; name the folder of the program alone, or leave out whole folders by lines like "
            "'data/' in .ropewalkignore",
            limit=max_entries,
        )
    if not files:
        raise ProjectError(
            f"{root} has no file to send: it is empty, or .gitignore and .ropewalkignore leave all "
            "of it out",
            path=root,
        )
    buffer = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", _LEVEL, buffer, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        size = sum(sizes.values())
        for file in files:
            data = _content(file, limits.max_bytes - (size - file.size) + 1)
            if len(data) != file.size:
                size += len(data) - file.size
                sizes[file.name] = len(data)
                _check_bounds(root, sizes, limits)
            archive.addfile(_header(file, len(data)), io.BytesIO(data))
    data = buffer.getvalue()
    return Package(digest_of(data), data, len(files), size, tuple(sizes))


def _content(file: ProjectFile, most: int) -> bytes:
    try:
        return read_regular(file.path, most)
    except OSError as error:
        raise ProjectError(
            f"{file.path} cannot be read: {error.strerror or error}; or leave it out by a line in "
            ".ropewalkignore",
            path=file.path,
        ) from error


def _header(file: ProjectFile, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(file.name)  # times and owners are zero and empty
    header.size = size
    header.mode = 0o755 if file.executable else 0o644
    return header


def _check_bounds(root: Path, sizes: dict[str, int], limits: PackageLimits) -> None:
    size = sum(sizes.values())
    folders = {name[:at] for name in sizes for at, letter in enumerate(name) if letter == "/"}
    if size > limits.max_bytes:
        value, limit, unit = size, limits.max_bytes, "bytes of files"
        shares = [f"{name} ({amount} bytes)" for name, amount in largest(sizes)]
    elif max(len(sizes), len(folders)) > limits.max_files:
        value, limit, unit = max(len(sizes), len(folders)), limits.max_files, "files or folders"
        counts = largest(dict.fromkeys(sizes, 1))
        shares = [
            f"{name} ({counted(amount, 'file')})" for name, amount in counts if name.endswith("/")
        ]
    else:
        return
    raise ProjectTooLargeError(
        f"{root} has {value} {unit}, over the limit of {limit}; most are in: "
        f"{', '.join(shares) or 'the folder itself'}. Leave out what the program does not need by "
        "lines in .gitignore or .ropewalkignore; data is better read from where every worker finds "
        "it",
        value=value,
        limit=limit,
    )
