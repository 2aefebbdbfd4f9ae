"""Packing a project directory: the same files give the same bytes.

Names are sorted, times and owners are zero, and of a file's mode the one bit is kept that says
whether it is executable. The format is gzip over pax, which every ``tar`` reads.
"""

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pathspec.patterns.gitignore import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from ..core.errors import ProjectError, ProjectTooLargeError
from ..core.outside_text import open_plain
from ..core.terminal import counted
from .package import LIMITS, Package, PackageLimits, digest_of, fault_of_name, largest

# -- Rules for the entries of a project directory that are left out of a package ---------------
# Pure. ``.gitignore`` means what it means to git, at every level: the last pattern that matches
# decides, the deepest file first, and below a folder that is left out nothing comes back. Two
# differences: ``.ropewalkignore`` has the same syntax and is read as if it stood at the end of the
# ``.gitignore`` beside it, so ``!vocabulary.txt`` there sends a file that git does not keep; and
# git's files outside the project (``core.excludesFile``, ``.git/info/exclude``) are not read.
#
# Source: https://git-scm.com/docs/gitignore; patterns are translated by ``pathspec``.


IGNORE_FILES = (".gitignore", ".ropewalkignore")  # later ones decide over earlier ones

_NEVER_SENT = frozenset(
    {
        ".git",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".pytest_cache",
        ".venv",
        "__pycache__",
        "node_modules",
    }
)
ENVIRONMENT_MARK = "pyvenv.cfg"  # a folder with this file is a virtual environment


def is_never_sent(name: str) -> bool:
    """Return whether a file or folder of this name is left out, whatever the ignore files say."""
    return name in _NEVER_SENT or name.endswith(".pyc")


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The ignore files that hold in one folder: its own and those of the folders above.

    Attributes:
        levels: Rules of each folder that has some, from the project down: the length of its path
            with the slash behind it, and its patterns.
    """

    levels: tuple[tuple[int, tuple[GitIgnoreSpecPattern, ...]], ...] = ()

    def below(self, folder: str, lines: Iterable[str]) -> "IgnoreRules":
        """Add a folder's rules to those above it.

        Args:
            folder: Path relative to the project, ``"data/raw/"``; empty: the project itself.
            lines: Lines of its ignore files, joined.
        """
        patterns = tuple(_compile(lines))
        return IgnoreRules((*self.levels, (len(folder), patterns))) if patterns else self

    def leave_out(self, path: str) -> bool:
        """Decide whether an entry is left out. Its folder is not: nobody asks about what is below
        one.

        Args:
            path: Relative to the project; of a folder with a slash behind it.
        """
        for start, patterns in reversed(self.levels):
            for pattern in reversed(patterns):
                if _matches(pattern, path[start:]):
                    return bool(pattern.include)
        return False


def _compile(lines: Iterable[str]) -> Iterator[GitIgnoreSpecPattern]:
    for line in lines:
        # Folders below this one; pathspec takes the shorter form for what is above, too.
        same = f"{line}*/" if line.endswith("/**/") else line
        try:
            pattern = GitIgnoreSpecPattern(same)
        except GitIgnorePatternError:
            continue  # as in git, it matches nothing
        if pattern.include is not None:  # neither a comment nor empty
            yield pattern


def _matches(pattern: GitIgnoreSpecPattern, path: str) -> bool:
    """Return whether a pattern names this entry itself.

    The regular expressions of ``pathspec`` match what is below a folder that is named, too, which
    makes patterns with ``!`` bring back more than in git. Their one group is the slash behind the
    folder; an expression without it that ends in a slash (``data/**``) is of what is below.
    """
    regex = pattern.regex
    if regex is None:
        return False
    for match in regex.finditer(path):
        whole = match.end() == len(path)
        if not match.group().endswith("/") or whole == bool(regex.groupindex):
            return True
    return False


# -- Walk through a project directory for the files that are packed ----------------------------
# Folders that are left out are not entered. Links are never followed. A link to a file that is
# packed itself is packed as a copy of that file, so nothing is sent that would not be sent without
# the link; every other link (to a folder, out of the project, to a file that is left out, to
# nothing) is an error, unless an ignore file leaves it out. Sockets, FIFOs and devices are skipped
# unopened.

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
