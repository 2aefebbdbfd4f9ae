"""Where compiled kernels are kept, and which folders may be believed.

Numba's cache files are pickles: loading one runs what is in it. So a folder is used only if nobody
else can have written into it: it is ours, with mode 0700, as is all it holds, and nobody else can
put another in its place. A folder that is refused is named with the reason, and the next candidate
is taken; without any, every process compiles its kernels in memory.
"""

import atexit
import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.clock import Clock, SystemClock
from ..core.files.trusted_folder import UnsafeFolderError, check_owner, check_private
from ..core.files.user_folders import cache_folder
from ..core.process.waiting import WaitLog
from ..core.settings import read_environment

log = logging.getLogger(__name__)

_PACKAGE = Path(__file__).parents[1]
_SOURCES = (
    "engine/jit.py", "engine/row_kernels.py", "engine/keyed/*_kernels.py",
    "core/rules/kernels.py", "core/rules/built_in/*.py",
)  # fmt: skip
_LOCK_POLL_S = 0.01
_LOCK_TIMEOUT_S = 60.0  # far longer than compiling one kernel; a process may have been stopped


@dataclass(frozen=True, slots=True)
class CacheRefusal:
    """A folder that is not used, and why."""

    folder: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.reason}"


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """What was chosen.

    Attributes:
        path: Where kernels are kept; None: nowhere.
        copied_from: A folder that cannot be written to, whose files were copied to ``path``; None:
            none.
        refused: Candidates before it.
    """

    path: Path | None
    copied_from: Path | None = None
    refused: tuple[CacheRefusal, ...] = ()


def candidates(chosen: str = "") -> list[Path]:
    """Folders to try, in order.

    Args:
        chosen: The setting ``kernel_cache``; empty: not set.
    """
    found = [Path(name) for name in (chosen, read_environment("NUMBA_CACHE_DIR")) if name]
    if (cache := cache_folder()) is not None:
        found.append(cache)
    return [path.absolute() for path in found]


def choose_folder(folders: Sequence[Path]) -> CacheFolder:
    """The first candidate that may be used; in it, a folder for this version of the kernels."""
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
    """Digest of the kernels' source: Numba checks a kernel's own file only, not its imports."""
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
def locked(
    folder: Path, kernel: str, timeout_s: float = _LOCK_TIMEOUT_S, clock: Clock | None = None
) -> Iterator[None]:
    """Lock a folder between processes: one compiles a kernel, the others load it.

    Numba alone would mix up the files of two that save kernels of one name at once. A wait is
    logged.

    Args:
        folder: Which.
        kernel: What it is locked for, for messages.
        timeout_s: How long to wait at most. Unit: seconds.
        clock: For tests.

    Raises:
        TimeoutError: Another process kept it for so long.
        OSError: The folder cannot be opened, or its file system knows no locks.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        clock, pause = clock or SystemClock(), threading.Event()
        began = clock.now()
        waits = WaitLog(f"the kernel {kernel}", limit_s=timeout_s, clock=clock)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock.now() - began > timeout_s:
                    raise TimeoutError(
                        f"another process has held {folder} for {timeout_s:g} s"
                    ) from None
                waits.tick(f"another process, which compiles kernels into {folder}")
                clock.wait(pause, _LOCK_POLL_S)
        waits.done()
        yield
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
            yield from path.iterdir()
