"""Folders of compiled kernels, and which of them may be believed.

Numba's own cache keeps them; what is added here is which folder it may use. Its files are pickles:
loading one runs what is in it. So a folder is used only if nobody else can have written into it: it
is ours, with mode 0700, as is all it holds, and nobody else can put another in its place. A folder
that is refused is named with the reason, and the next candidate is taken; without any, every
process compiles its kernels in memory.

Each kernel has a folder of its own, for one dtype and one kind of processor: all who save into it
save the same, and Numba puts each file in its place at once. So a kernel that is there is loaded
without asking anybody, and a lock is only for the work: while one process compiles a kernel, others
need not.
"""

import atexit
import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.files.trusted_folder import UnsafeFolderError, cache_folder, check_owner, check_private
from ..core.settings import read_environment

_PACKAGE = Path(__file__).parents[1]
_SOURCES = (
    "engine/jit.py", "engine/row_kernels.py", "annexes/*/*/*_kernels.py",
    "core/rules/update_rules.py", "core/rules/built_in/*.py",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CacheRefusal:
    """A folder that is not used, and why."""

    folder: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.reason}"


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """The choice of a folder for kernels.

    Attributes:
        path: Folder of the kernels; None: they are not kept.
        copied_from: A folder that cannot be written to, whose files were copied to ``path``; None:
            none.
        refused: Candidates before it.
    """

    path: Path | None
    copied_from: Path | None = None
    refused: tuple[CacheRefusal, ...] = ()


def candidates(chosen: str = "") -> list[Path]:
    """List the folders to try, in order.

    Args:
        chosen: The setting ``kernel_cache``; empty: not set.
    """
    folders = [Path(name) for name in (chosen, read_environment("NUMBA_CACHE_DIR")) if name]
    if (cache := cache_folder()) is not None:
        folders.append(cache)
    return [path.absolute() for path in folders]


def choose_folder(folders: Sequence[Path]) -> CacheFolder:
    """Choose the first candidate that may be used; in it, a folder for this version of the
    kernels.
    """
    refused: list[CacheRefusal] = []
    for base in folders:
        folder = base / f"kernels-{fingerprint()}"
        try:
            if _prepare(folder):
                return CacheFolder(folder, refused=tuple(refused))
            return CacheFolder(_copy(folder), folder, tuple(refused))
        except OSError as error:
            reason = str(error) if isinstance(error, UnsafeFolderError) else error.strerror
            refused.append(CacheRefusal(base, reason or str(error)))
    return CacheFolder(None, refused=tuple(refused))


def fingerprint() -> str:
    """Digest the kernels' source: Numba checks a kernel's own file only, not its imports."""
    sources = (path for name in _SOURCES for path in sorted(_PACKAGE.glob(name)))
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources))
    return digest.hexdigest()[:12]


def check_folder(folder: Path) -> None:
    """Check that only we can have written what is in a folder.

    Args:
        folder: Absolute; exists.

    Raises:
        UnsafeFolderError: It is another user's, others may write to it, it is a link, or a folder
            above it, a link on the way to it, or a file in it is not safe.
        OSError: It cannot be looked at.
    """
    real = check_private(folder)
    for path in _content(real):
        status = path.lstat()
        check_owner(path, status)
        if stat.S_ISLNK(status.st_mode):
            raise UnsafeFolderError(f"{path} is a link")


def is_kept(folder: Path) -> bool:
    """Return whether a kernel is in its folder: Numba writes the index first, and this file
    last.
    """
    return any(folder.rglob("*.nbc"))


@contextlib.contextmanager
def compiling_in(folder: Path) -> Iterator[bool]:
    """Try to be the one process that compiles a kernel; yields whether it is, and waits for nobody.

    Nothing breaks if two do, so on a file system without locks all are.

    Args:
        folder: Folder in which Numba keeps it.

    Raises:
        OSError: The folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = True
    except BlockingIOError:
        is_ours = False
    except OSError:
        is_ours = True
    try:
        yield is_ours
    finally:
        os.close(descriptor)


def _prepare(folder: Path) -> bool:
    """Create a folder if it is missing, check it, and say whether it can be written to."""
    if not os.path.lexists(folder):
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    check_folder(folder)
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _copy(folder: Path) -> Path:
    """Copy a cache that cannot be written to: Numba takes none where it cannot save."""
    temporary = Path(tempfile.mkdtemp(prefix="ropewalk-kernels-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    # Not the modes: what cannot be written to there must be here.
    for path in _content(folder):
        target = temporary / path.relative_to(folder)
        if path.is_dir():
            target.mkdir(mode=0o700)
        else:
            shutil.copyfile(path, target)
    return temporary


def _content(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _content(path)
