"""Walk through a project directory for the files that are packed.

Folders that are left out are not entered. Links are never followed. A link to a file that is packed
itself is packed as a copy of that file, so nothing is sent that would not be sent without the link;
every other link (to a folder, out of the project, to a file that is left out, to nothing) is an
error, unless an ignore file leaves it out. Sockets, FIFOs and devices are skipped unopened.
"""

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ProjectError
from ..core.files.plain_file import open_plain
from .ignore_files import ENVIRONMENT_MARK, IGNORE_FILES, IgnoreRules, is_never_sent
from .package import fault_of_name

_MAX_IGNORE_BYTES = 2**20  # of one ignore file
_SHOWN = 5  # links that one error names


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """A file to pack.

    Attributes:
        name: Relative to the project, with slashes.
        path: File that has its content; for a link, the file it leads to.
        size: Size at the time when it was looked at. Unit: bytes.
        executable: Whether its owner may execute it.
    """

    name: str
    path: Path
    size: int
    executable: bool


def list_files(
    root: Path, *, max_entries: int, leave_out: Collection[str] = ()
) -> tuple[list[ProjectFile], bool]:
    """List the files to pack, sorted by name; returns also whether these are all.

    Args:
        root: The project, without links in its path.
        max_entries: The walk ends after so many files and folders, whether packed or left out; what
            was found until then is returned with False.
        leave_out: Names of files that are left out whatever ignore files say.

    Raises:
        ProjectError: A link leads elsewhere, a name cannot be packed, or a folder cannot be read.
    """
    walk = _Walk(root, max_entries, leave_out)
    try:
        files = sorted(walk.files(), key=lambda file: file.name.encode())
    except OSError as error:
        raise ProjectError(
            f"{error.filename or root} cannot be read: {error.strerror or error}; or leave it out "
            "by a line in .ropewalkignore",
            path=error.filename,
        ) from error
    return (files, False) if walk.cut else (_with_links(root, files, walk.links), True)


def read_regular(path: Path, most: int) -> bytes:
    """Read at most ``most`` bytes of a regular file, without following a link or waiting for a
    FIFO.

    Raises:
        OSError: It is something else, or cannot be read.
    """
    with open_plain(path, follow_links=False) as stream:
        return stream.read(most)


class _Walk:
    def __init__(self, root: Path, max_entries: int, leave_out: Collection[str]) -> None:
        self._root = root
        self._leave_out = leave_out
        self._left = max_entries
        self.cut = False
        self.links: list[str] = []

    def files(self) -> Iterator[ProjectFile]:
        """Yield regular files, in no order; links are kept in ``links``."""
        folders = [("", IgnoreRules())]
        while folders:
            folder, above = folders.pop()
            entries = self._entries(folder)
            names = {entry.name for entry in entries}
            if folder and ENVIRONMENT_MARK in names:
                continue
            rules = above.below(folder, self._ignore_lines(folder, names))
            for entry in entries:
                name = folder + entry.name
                inner = entry.is_dir(follow_symlinks=False)
                if is_never_sent(entry.name) or rules.leave_out(f"{name}/" if inner else name):
                    continue
                if name in self._leave_out and not inner:
                    continue
                if inner:
                    folders.append((f"{name}/", rules))
                elif entry.is_symlink():
                    self.links.append(name)
                elif entry.is_file(follow_symlinks=False):
                    yield _project_file(name, Path(entry.path), entry.stat(follow_symlinks=False))

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        entries: list[os.DirEntry[str]] = []
        with os.scandir(self._root / folder) as scanned:
            for entry in scanned:
                if self._left == 0:
                    self.cut = True
                    break
                self._left -= 1
                entries.append(entry)
        return entries

    def _ignore_lines(self, folder: str, names: set[str]) -> list[str]:
        lines: list[str] = []
        for name in IGNORE_FILES:
            path = self._root / folder / name
            # As git does: one that is a link has no say.
            if name in names and stat.S_ISREG(path.lstat().st_mode):
                data = read_regular(path, _MAX_IGNORE_BYTES)
                lines += _lines(data)
        return lines


def _project_file(name: str, path: Path, status: os.stat_result) -> ProjectFile:
    if fault := fault_of_name(name):
        raise ProjectError(f"{name!r} cannot be packed: {fault}; rename it", path=repr(name))
    return ProjectFile(name, path, status.st_size, bool(status.st_mode & stat.S_IXUSR))


def _with_links(root: Path, files: list[ProjectFile], links: list[str]) -> list[ProjectFile]:
    packed = {file.path: file for file in files}
    refused = []
    for name in sorted(links):
        path = root / name
        try:
            target = packed.get(path.resolve())
        except (OSError, RuntimeError):  # a circle of links
            target = None
        if target is None:
            refused.append(_readable(f"{name} -> {os.readlink(path)}"))
        else:
            files.append(_project_file(name, target.path, target.path.lstat()))
    if refused:
        more = f" and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        raise ProjectError(
            f"{root} has links that do not lead to a file of the package: "
            f"{', '.join(refused[:_SHOWN])}{more}; put the files themselves there, or leave the "
            "links out by a line in .ropewalkignore",
            links=len(refused),
        )
    return sorted(files, key=lambda file: file.name.encode())


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8-sig", errors="surrogateescape")
    return [line.removesuffix("\r") for line in text.split("\n")]


def _readable(text: str) -> str:
    return os.fsencode(text).decode(errors="replace")
