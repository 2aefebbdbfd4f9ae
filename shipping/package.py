"""A packed project directory: its bounds, names of its files, and the packages it says it needs.

A package is a gzip-compressed tar archive of regular files, as ``tar tzf`` shows it. It has no
folders of their own (so an empty one is not sent), no links and no devices.
"""

import hashlib
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import PackageError
from ..core.wire.bounds import MAX_NAME_BYTES

MAX_PACKAGE_BYTES = 64 * 2**20  # of a project's files: code, not data sets
MAX_FILES = 10_000

_MAX_PART_BYTES = 255  # of one name between slashes, on every common file system
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class PackageLimits:
    """The limits of a project's size, where it is packed and where it is unpacked.

    Attributes:
        max_bytes: Bound on the sum of the files' sizes. Unit: bytes.
        max_files: Bound on the number of files, and on that of the folders they are in.
    """

    max_bytes: int = MAX_PACKAGE_BYTES
    max_files: int = MAX_FILES


LIMITS = PackageLimits()


@dataclass(frozen=True, slots=True)
class Package:
    """A packed project directory.

    Attributes:
        digest: SHA-256 of ``data``, 64 hexadecimal digits. The same files have the same digest,
            wherever and whenever they are packed, with one release of zlib; with another it may
            differ, which costs a second upload and nothing else.
        data: The archive.
        files: Number of files.
        size: Size of all files, not compressed. Unit: bytes.
        names: Names of the files, relative to the project, sorted.
    """

    digest: str
    data: bytes = field(repr=False)
    files: int
    size: int
    names: tuple[str, ...] = field(repr=False)


def digest_of(data: bytes) -> str:
    """Name a package with these bytes."""
    return hashlib.sha256(data).hexdigest()


def check_digest(digest: str) -> str:
    """Check that a text can be a package's digest, and so a file's name.

    Raises:
        PackageError: It is not 64 hexadecimal digits.
    """
    if not _DIGEST.fullmatch(digest):
        raise PackageError(
            f"{digest[:80]!r} is no digest of a package: 64 digits of 0-9a-f", digest=digest[:80]
        )
    return digest


def fault_of_name(name: str) -> str | None:
    """Say why a file of a package may not have this name; None: it may.

    Args:
        name: Relative to the project, with slashes.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    if size > MAX_NAME_BYTES:
        return f"it has {size} bytes, over the limit of {MAX_NAME_BYTES}"
    if _CONTROLS.search(name):
        return "it has a control character"
    if name.startswith("/"):
        return "it is absolute"
    parts = name.split("/")
    if ".." in parts:
        return "it has '..'"
    if "" in parts or "." in parts:
        return "a part of it is empty or '.'"
    longest = max(len(part.encode()) for part in parts)
    if longest > _MAX_PART_BYTES:
        return f"a part of it has {longest} bytes, over the limit of {_MAX_PART_BYTES}"
    return None


# -- Largest parts of a project: for the error that says it is too large. Pure -----------------


def largest(weights: Mapping[str, int], count: int = 5) -> list[tuple[str, int]]:
    """Find the heaviest files and folders, the heaviest first.

    A folder of which one single entry holds more than half is passed over in favour of that entry,
    so a path of folders inside each other is named once.

    Args:
        weights: Bytes (or any other amount) by the file's name, relative to the project.
        count: Number of files and folders to name.

    Returns:
        Names, folders with a slash behind them, and amounts.
    """
    total: dict[str, int] = defaultdict(int)
    heaviest_inside: dict[str, int] = defaultdict(int)
    for name, weight in weights.items():
        total[name] = weight
        for at, letter in enumerate(name):
            if letter == "/":
                total[name[: at + 1]] += weight
    for name, weight in total.items():
        folder = name.rstrip("/").rpartition("/")[0]
        if folder:
            heaviest_inside[f"{folder}/"] = max(heaviest_inside[f"{folder}/"], weight)
    telling = [
        (name, weight) for name, weight in total.items() if 2 * heaviest_inside[name] <= weight
    ]
    return sorted(telling, key=lambda item: (-item[1], item[0]))[:count]


# -- Packages that a project says it needs, by its own files at the top of its folder. Pure -----
# Only names are read: whether a version fits is a matter for whoever builds the environment.
#
# Source: PEP 508 for the names, PEP 503 for how they are compared, PEP 621 for
# ``pyproject.toml``.

REQUIREMENTS = "requirements.txt"
PYPROJECT = "pyproject.toml"
DECLARED_IN = (REQUIREMENTS, PYPROJECT)
"""Files that are looked at."""

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_REQUIREMENT = re.compile(rf"({_NAME})\s*(?:$|[\[<>=!~@(])")
_OTHER_SOURCE = re.compile(r"-[re]|--requirement|--editable|[^-]")


def declared_requirements(texts: Mapping[str, str]) -> dict[str, str]:
    """Find the packages that a project needs, and the file that says so.

    Args:
        texts: Contents of those of :data:`DECLARED_IN` that the project has.

    Returns:
        File by name, as PEP 503 writes names; by the whole line where that is no name alone: a
        requirement of some machines (a marker), a URL, ``-r more.txt``.
    """
    declared: dict[str, str] = {}
    for file in DECLARED_IN:
        text = texts.get(file, "")
        lines = text.splitlines() if file == REQUIREMENTS else _of_pyproject(text)
        for line in filter(None, map(_requirement, lines)):
            declared.setdefault(line, file)
    return declared


def missing_packages(declared: Iterable[str], installed: Iterable[str]) -> list[str]:
    """Find the declared requirements that are names, and not among what is installed."""
    there = {normalized(name) for name in installed}
    names = [name for name in declared if re.fullmatch(_NAME, name)]
    return sorted(set(names) - there)


def normalized(name: str) -> str:
    """Convert a package's name to the form in which it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirement(line: str) -> str:
    """Read a line's requirement; empty: it has none."""
    line = re.sub(r"(^|\s)#.*", "", line).strip()
    match = _REQUIREMENT.match(line)
    if match and ";" not in line:
        return normalized(match[1])
    return line if _OTHER_SOURCE.match(line) else ""


def _of_pyproject(text: str) -> list[str]:
    try:
        data: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return []  # no program needs it to run
    project, tool = data.get("project"), data.get("tool")
    listed = project.get("dependencies") if isinstance(project, dict) else None
    poetry = tool.get("poetry") if isinstance(tool, dict) else None
    of_poetry = poetry.get("dependencies") if isinstance(poetry, dict) else None
    names = [str(item) for item in listed] if isinstance(listed, list) else []
    return names + [name for name in of_poetry or {} if name != "python"]
