"""The key that the tasks of one user share on one machine: a file that only this user can read."""

import contextlib
import os
import re
import secrets
import stat
from pathlib import Path

from ...core.errors import ConfigurationError
from ...core.settings import Settings, read_environment

_KEY_BYTES = 32
_KEY = re.compile(r"[0-9a-f]{64}\n?", re.ASCII)


def load_key(settings: Settings) -> bytes:
    """Read the key, after making one if there is none yet.

    Raises:
        ConfigurationError: Another user could read or write its file or folder.
    """
    if settings.key_file:
        return _load(Path(settings.key_file))
    failures = []
    for folder in _folders():
        try:
            if folder.exists():
                check_folder(folder)
            return _load(folder / "loopback.key")
        except OSError as error:
            failures.append(f"{folder}: {error.strerror or error}")
    raise ConfigurationError(
        "there is no folder for the key that tasks on loopback share "
        f"({'; '.join(failures)}); name a file with --key-file (ROPEWALK_KEY_FILE)"
    )


def _folders() -> list[Path]:
    folders = []
    state = read_environment("XDG_STATE_HOME")
    if state:
        folders.append(Path(state) / "ropewalk")
    with contextlib.suppress(RuntimeError):  # this user has no home
        folders.append(Path.home() / ".local" / "state" / "ropewalk")
    folders.append(Path(f"/tmp/ropewalk-{os.getuid()}"))  # noqa: S108 - checked to be ours
    return folders


def _load(path: Path) -> bytes:
    try:
        return _read(path)
    except FileNotFoundError:
        _make(path)
        return _read(path)


def _make(path: Path) -> None:
    """Make the file, complete from its first moment; of two processes the first one's stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_folder(path.parent)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_KEY_BYTES) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink()


def _read(path: Path) -> bytes:
    text = read_secret(path, "the key of tasks on loopback")
    if not _KEY.fullmatch(text):
        raise ConfigurationError(
            f"{path} is no key (64 hexadecimal digits); remove it while no job runs, and a new one "
            "is made"
        )
    return bytes.fromhex(text.strip())


def read_secret(path: Path, what: str, most_bytes: int = 64 * 1024) -> str:
    """Read a file that only this user, or root for this user, can read and write.

    Args:
        path: The file.
        what: Description of the file, for messages.
        most_bytes: Longer files are refused.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be read.
        ConfigurationError: Others can read or write it, or it is no plain file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError(f"{path} ({what}) is not a plain file")
        if status.st_uid not in (os.getuid(), 0):
            raise ConfigurationError(
                f"{path} ({what}) belongs to user {status.st_uid}, we are {os.getuid()}: somebody "
                "else may have put it there"
            )
        # A secret of Kubernetes belongs to root and is read through the group of its pod.
        allowed = 0o600 if status.st_uid == os.getuid() else 0o640
        if stat.S_IMODE(status.st_mode) & ~(allowed | 0o100) & 0o077:
            raise ConfigurationError(
                f"{path} ({what}) can be read or written by others (mode "
                f"{stat.S_IMODE(status.st_mode):o}); chmod 600 it"
            )
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ConfigurationError(f"{path} ({what}) is longer than {most_bytes} bytes")
    return data.decode("ascii", errors="replace")


def check_not_open(path: str | Path, what: str) -> None:
    """Check that a file that says whom to trust is not writable by every user.

    Raises:
        ConfigurationError: It is.
        OSError: It cannot be examined.
    """
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & stat.S_IWOTH:
        raise ConfigurationError(
            f"{path} ({what}) can be written by anybody (mode {mode:o}), so anybody could decide "
            "whom this task trusts; chmod o-w it, and look what is in it",
            file=path,
        )


def check_folder(folder: Path) -> None:
    """Check that no other user can put files into a folder.

    Raises:
        ConfigurationError: Another user owns it or may write there.
        OSError: It cannot be examined.
    """
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigurationError(f"{folder} is a link or a file, where a folder of ours should be")
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
        raise ConfigurationError(
            f"{folder} belongs to user {status.st_uid} (mode {stat.S_IMODE(status.st_mode):o}), we "
            f"are {os.getuid()}: others could put a key of theirs there. Remove it, or name a file "
            "with --key-file"
        )
