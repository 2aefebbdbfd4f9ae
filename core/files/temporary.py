"""Temporary folders, and removal of what a program left."""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from ..errors import StorageError
from ..process.threads import new_thread, nobody_waits
from ..settings import read_environment
from .trusted_folder import UnsafeFolderError, cache_folder, check_way

log = logging.getLogger(__name__)

# -- Temporary folders that do not stay for long: one that a killed process left is removed by the
# next process that makes one of its kind, in the background.
#
# A process may run for weeks, and cleaners of temporary folders remove what is ten days old. So
# these folders are in ``TMPDIR`` if that is set, else in the user's cache folder, where no cleaner
# comes, and only without one in ``/tmp``; and one that has been removed all the same is made anew.


# -- Removing a folder with all that is in it, with whatever rights a program has given it -----
# ``shutil.rmtree`` does the work: it follows no links. Added are rights to folders of this user
# that may not be read or changed, what is nested too deep for Python (``rm`` removes it), and that
# what is mounted below is left alone.

_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str | Path, *, dir_fd: int | None = None) -> None:
    """Remove a folder with all that is in it.

    Args:
        path: Path of the folder.
        dir_fd: Folder in which a relative path begins; None: the current folder.

    Raises:
        OSError: Something cannot be removed, or the path is missing or not a folder. The rest has
            been removed nevertheless.
    """
    handle = os.open(path, _HANDLE, dir_fd=dir_fd)
    try:
        whole = os.readlink(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
    _check_mounts(whole)
    try:
        _remove_most(path, dir_fd)
        _allow_all(path, dir_fd)
        _remove_most(path, dir_fd)
        shutil.rmtree(path, dir_fd=dir_fd)  # says what is in the way
    except FileNotFoundError:  # nothing is left, or another process removes it
        return
    except RecursionError as error:
        what = "its folders are nested too deep for Python; remove it by rm -rf"
        raise OSError(errno.ELOOP, what, str(path)) from error


def _remove_most(path: str | Path, dir_fd: int | None) -> None:
    """Remove what can be removed."""
    try:
        shutil.rmtree(path, ignore_errors=True, dir_fd=dir_fd)
    except RecursionError:
        start = "" if dir_fd is None else f"/proc/self/fd/{dir_fd}/"
        command = ["rm", "-rf", "--one-file-system", "--", f"{start}{path}"]
        files = () if dir_fd is None else (dir_fd,)
        with contextlib.suppress(FileNotFoundError):  # an image without rm
            subprocess.run(command, stderr=subprocess.DEVNULL, pass_fds=files, check=False)


def _check_mounts(folder: str) -> None:
    """Leave alone what is mounted there: its files are elsewhere, and somebody else's."""
    with contextlib.suppress(FileNotFoundError):
        for mount in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), mount.split()[4])
            if point == folder or point.startswith(f"{folder}/"):
                raise OSError(errno.EBUSY, "something is mounted there", point)


def _allow_all(path: str | Path, dir_fd: int | None) -> None:
    """Give this user all rights to the folders of a tree, as far as they are this user's."""
    _allow(path, dir_fd)
    for _, folders, _, folder in os.fwalk(path, dir_fd=dir_fd):
        for name in folders:
            with contextlib.suppress(OSError):  # a link, or another user's
                _allow(name, folder)


def _allow(path: str | Path, dir_fd: int | None) -> None:
    handle = os.open(path, _HANDLE, dir_fd=dir_fd)
    try:
        with contextlib.suppress(PermissionError):
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)
    finally:
        os.close(handle)


# -- Folders that are removed in the background ------------------------------------------------
# What a program leaves behind may be large or not removable at all, and whoever has run it has
# better things to do: a thread for each folder removes it. If it fails or hangs, nobody waits for
# it; at the end of the process it just stops.


def remove_later(
    path: Path,
    then: Callable[[], object] = lambda: None,
    remove: Callable[[Path], None] = remove_tree,
) -> threading.Event:
    """Remove a folder in the background; returns an event that is set when this is over.

    Args:
        path: Path of the folder. A missing one counts as removed.
        then: Called afterwards in the thread, even if something is left.
        remove: Removes a folder; tests replace it.
    """
    over = threading.Event()

    def work() -> None:
        try:
            _remove(path, remove)
        finally:
            then()
            over.set()

    new_thread("remover", work, failed=nobody_waits).start()
    return over


def _remove(path: Path, remove: Callable[[Path], None]) -> None:
    try:
        remove(path)
    except FileNotFoundError:
        return
    except OSError as error:
        what = f"{error.filename!r}: {error.strerror or error}"
        log.warning(
            "%s cannot be removed: %s; the next process of its kind tries again", path, what
        )


_REMOVE_S = 5.0  # for which the end of a process waits; the next one goes on
_RANDOM_BYTES = 9  # that the random end of a name has
_TRIES = 10  # another process may take a new folder for left, before it is locked
_RETRY_S = 0.02  # in which it removes an empty folder


class TemporaryFolder:
    """A folder of this process and this user alone, with a lock that ends with the process.

    Thread-safe.

    Args:
        kind: Start of its name, e.g. ``"ropewalk-node"``. A digest of this machine's name follows,
            since machines may share a user's folders.
        max_path_bytes: Longest path of the folder: a Unix socket in it has 107 bytes at most.

    Attributes:
        path: Path of the folder; :meth:`present` returns the same and makes sure that it exists.

    Raises:
        StorageError: No folder can be made that is safe and can be locked; says what to do.
    """

    def __init__(self, kind: str, max_path_bytes: int = 4096) -> None:
        prefix = _prefix(kind)
        new_thread("remove-left", lambda: _remove_left(prefix), failed=nobody_waits).start()
        self._guard = threading.Lock()
        self.path, self._lock = _new_folder(prefix, max_path_bytes)

    def present(self) -> Path:
        """Return the folder's path; the folder is made anew, and empty, if it has been removed.

        Raises:
            UnsafeFolderError: Another folder or file has its name now.
            OSError: It cannot be made.
        """
        with self._guard:
            if self._lock >= 0 and not self._is_there():
                lock = _make_again(self.path)
                os.close(self._lock)
                self._lock = lock
        return self.path

    def _is_there(self) -> bool:
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return False
        if not os.path.samestat(os.fstat(self._lock), status):
            raise UnsafeFolderError(
                f"{self.path} was removed and made again by somebody else; start this process again"
            )
        return True

    def discard(self, path: Path) -> None:
        """Delete a folder in it with all that is in it, in the background."""
        remove_later(path)

    def remove(self, timeout_s: float = _REMOVE_S) -> None:
        """Delete it with all that is in it. Idempotent.

        Args:
            timeout_s: Longest time to wait; removal continues in the background, and what the end
                of the process leaves is removed by the next one. Unit: seconds.
        """
        with self._guard:
            lock, self._lock = self._lock, -1
        if lock >= 0:
            remove_later(self.path, then=lambda: os.close(lock)).wait(timeout_s)


def _folders_above() -> Iterator[Path]:
    """Yield the folders in which temporary folders may be, the best first."""
    if chosen := read_environment("TMPDIR"):
        yield Path(chosen)
    elif (cache := cache_folder()) is not None:
        yield cache
    yield Path(tempfile.gettempdir())
    yield Path("/tmp")  # noqa: S108 - for a socket, whose path must be short


def _prefix(kind: str) -> str:
    machine = os.uname().nodename.encode()
    return f"{kind}-{hashlib.blake2s(machine, digest_size=2).hexdigest()}"


def _new_folder(prefix: str, max_path_bytes: int) -> tuple[Path, int]:
    """Make a new folder, and lock it."""
    failure = OSError(errno.ENOLCK, "folders cannot be locked", tempfile.gettempdir())
    for above in _folders_above():
        if len(os.fsencode(above.absolute() / prefix)) + _RANDOM_BYTES > max_path_bytes:
            failure = OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(above))
            continue
        try:
            above.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_way(above.absolute() / prefix)
            for _ in range(_TRIES):
                path = Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=above)).absolute()
                lock = _locked(path)
                if lock >= 0:
                    return path, lock
        except OSError as error:
            failure = error
    reason = str(failure) if isinstance(failure, UnsafeFolderError) else failure.strerror
    raise StorageError(
        f"there is no temporary folder for {prefix}: {reason or failure}. Set TMPDIR to a folder "
        "that this user alone may write to",
        path=failure.filename or "",
    ) from failure


def _make_again(path: Path) -> int:
    """Make a folder that has been removed; returns its lock."""
    os.makedirs(path.parent, 0o700, exist_ok=True)
    for _ in range(_TRIES):
        with suppress(FileExistsError):  # it is being removed
            path.mkdir(mode=0o700)
        lock = _locked(path)
        if lock >= 0:
            return lock
        time.sleep(_RETRY_S)
    raise OSError(errno.ENOLCK, "the folder cannot be locked", str(path))


def _remove_left(prefix: str) -> None:
    """Delete folders of that kind and machine that no living process holds, one after another."""
    for above in _folders_above():
        for path in above.glob(f"{prefix}-*"):
            lock = _locked(path)
            if lock >= 0:
                remove_later(path, then=partial(os.close, lock)).wait()


def _locked(path: Path) -> int:
    """Open and lock the folder; -1: it is in use, gone or another user's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        status = os.fstat(descriptor)
        if status.st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(status, path.lstat()):
                return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return -1
