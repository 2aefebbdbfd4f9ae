"""Folders of compiled kernels, and which of them may be believed.

A kernel's file is machine code, which is run. So a folder is used only if nobody else can have
written into it: it is ours, with mode 0700, as is all it holds, and nobody else can put another in
its place. A folder that is refused is named with the reason, and the next candidate is taken;
without any, every process compiles its kernels in memory.

Each kernel has a file for one dtype and one kind of processor. All who write it write the same, and
put it in its place at once. So a kernel that is there is loaded without asking anybody, and a lock
is only for the work: while one process compiles a kernel, others need not.
"""

import contextlib
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.files.trusted_folder import UnsafeFolderError, cache_folder, check_owner, check_private
from ..core.settings import read_environment

_PACKAGE = Path(__file__).parents[1]
_SOURCES = (
    "engine/jit.py", "engine/machine_code.py", "engine/row_kernels.py", "annexes/*/*/*_kernels.py",
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
        refused: Candidates before it.
    """

    path: Path | None
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
            _prepare(folder)
            return CacheFolder(folder, tuple(refused))
        except OSError as error:
            reason = str(error) if isinstance(error, UnsafeFolderError) else error.strerror
            refused.append(CacheRefusal(base, reason or str(error)))
    return CacheFolder(None, tuple(refused))


def fingerprint() -> str:
    """Digest the kernels' source, and that of what is compiled around them."""
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


@contextlib.contextmanager
def compiling(place: Path) -> Iterator[bool]:
    """Try to be the one process that compiles a kernel; yields whether it is, and waits for nobody.

    Nothing breaks if two do, so where nothing can be locked all are.

    Args:
        place: File in which the kernel is kept; one beside it is locked.
    """
    with contextlib.ExitStack() as held:
        is_ours = True
        try:
            place.parent.mkdir(mode=0o700, exist_ok=True)
            lock = held.enter_context(place.with_suffix(".lock").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_ours = False
        except OSError:
            pass
        yield is_ours


def _prepare(folder: Path) -> None:
    """Create a folder if it is missing, and check it."""
    if not os.path.lexists(folder):
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    check_folder(folder)


def _content(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _content(path)
