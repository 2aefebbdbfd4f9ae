"""Proofs of a shared key, for loopback, where nothing is encrypted; and tickets.

The caller sends who it is, the address it dials, a nonce, the time and a MAC over these and over
the operation; the server answers with a MAC over the nonce. So neither sends the key, a process at
another address cannot pass on a proof that it receives, and a proof cannot be replayed. The key is
in a file that only this user can read.

A ticket stands for a value, once and for a short time. What a process hands out over one connection
comes back over another one, and shows that both are of the same peer: the principal of a greeting
over the port, when it greets again over a Unix socket (which shows a user and not a task); the
connection to a task that a gateway has opened, for the driver that asked for it.
"""

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ...cluster.access import Principal, principal_of_path
from ...core.errors import ConfigurationError, PeerLostError, UnauthenticatedError
from ...core.settings import Settings, read_environment

SCHEME = "Ropewalk-Key"
VALID_S = 30.0
NONCE_BYTES = 16
TICKET_BYTES = 32
_KEY_BYTES = 32
_KEY = re.compile(r"[0-9a-f]{64}\n?", re.ASCII)
_MAX_NONCES = 100_000  # from callers that have the key
_ASKED = re.compile(
    rf"{SCHEME} who=(?P<who>[\w.*/-]{{1,200}}),to=(?P<to>[\w.:\[\]-]{{1,300}}),"
    r"nonce=(?P<nonce>[0-9a-f]{32}),"
    r"at=(?P<at>\d{1,15}),mac=(?P<mac>[0-9a-f]{64})",
    re.ASCII,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Purpose:
    """The call that a proof is for.

    Attributes:
        operation: A key of :data:`~ropewalk.cluster.access.RULES`.
        address: The server's, host:port, as it was dialled.
    """

    operation: str
    address: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A caller's proof, of which nothing is checked yet.

    Attributes:
        address: The address that it dialled.
        nonce: Nonce of the proof.
    """

    address: str
    nonce: str


def ask(key: bytes, purpose: Purpose, who: Principal, nonce: str, now: float) -> str:
    """Make the proof that a caller sends.

    Args:
        key: The shared key.
        purpose: The operation, and the server.
        who: The caller.
        nonce: 32 hexadecimal digits, never used twice.
        now: Seconds since this machine started.
    """
    at = int(now * 1000)
    mac = _mac(key, "ask", purpose, who.path, nonce, at)
    return f"{SCHEME} who={who.path},to={purpose.address},nonce={nonce},at={at},mac={mac}"


def read_asked(authorization: str) -> Asked | None:
    """Parse a caller's proof; None: it does not have the form of one."""
    match = _ASKED.fullmatch(authorization)
    return Asked(match["to"], match["nonce"]) if match else None


def answer(key: bytes, purpose: Purpose, nonce: str) -> str:
    """Make the answer of a server that has the key as well."""
    return f"{SCHEME} mac={_mac(key, 'answer', purpose, nonce)}"


def check_answer(key: bytes, purpose: Purpose, nonce: str, said: str) -> bool:
    """Return whether the answer proves that a server has the key."""
    return hmac.compare_digest(answer(key, purpose, nonce).encode(), said.encode())


class ProofChecker:
    """Checks the proofs of callers. Used under a lock.

    Args:
        key: The shared key.
        began: Time at which this server began. Unit: seconds since this machine started.
    """

    def __init__(self, key: bytes, began: float) -> None:
        self._key = key
        self._began_ms = int(began * 1000)
        self._nonces: set[str] = set()
        self._order: deque[tuple[float, str]] = deque()

    def check(self, said: str, operation: str, addresses: Collection[str], now: float) -> Principal:
        """Check a proof, and return who sent it.

        Args:
            said: The caller's proof.
            operation: Operation that the proof is for.
            addresses: Addresses of this server, as host:port.
            now: Seconds since this machine started.

        Raises:
            UnauthenticatedError: It is not valid, or was used before.
            PeerLostError: It was made before this server began, or took too long: ask again.
        """
        match = _ASKED.fullmatch(said)
        if match is None:
            raise UnauthenticatedError("the proof of the key is not in the form it should have")
        at, purpose = int(match["at"]), Purpose(operation, match["to"])
        mac = _mac(self._key, "ask", purpose, match["who"], match["nonce"], at)
        if not hmac.compare_digest(mac, match["mac"]):
            raise UnauthenticatedError(
                "the caller has another key; tasks of one user share the key file of that user "
                "(--key-file), since this machine started"
            )
        if match["to"] not in addresses:
            raise UnauthenticatedError(
                f"the caller dialled {match['to']}, and this is {' or '.join(sorted(addresses))}: "
                "on loopback nothing may pass it on"
            )
        age_s = now - at / 1000
        if at < self._began_ms or age_s > VALID_S:
            # Another process at this port may have received it before, or the caller was stopped.
            raise PeerLostError(f"the proof is {age_s:.0f} s old; ask again")
        if age_s < -1:
            raise UnauthenticatedError(
                f"the proof was made {-age_s:.0f} s from now: tasks that prove a key share one "
                "clock, and this one is in another time namespace"
            )
        self._remember(match["nonce"], now)
        try:
            return principal_of_path(match["who"])
        except ConfigurationError as error:
            raise UnauthenticatedError(error.message) from error

    def _remember(self, nonce: str, now: float) -> None:
        while self._order and (self._order[0][0] < now or len(self._order) >= _MAX_NONCES):
            self._nonces.discard(self._order.popleft()[1])
        if nonce in self._nonces:
            raise UnauthenticatedError("the proof was used before")
        self._nonces.add(nonce)
        self._order.append((now + VALID_S + 1, nonce))


def _mac(key: bytes, kind: str, purpose: Purpose, *parts: object) -> str:
    text = "\n".join(map(str, ("ropewalk 1", kind, purpose.operation, purpose.address, *parts)))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


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


class Tickets(Generic[T]):
    """The tickets of one process for one purpose. Thread-safe.

    Args:
        valid_s: Time for which a ticket is valid. Unit: seconds.
        most: Largest number of unused tickets; a further one takes the place of the oldest.
        dropped: Called with the value of each ticket that was not redeemed.
        clock: Seconds.
    """

    def __init__(
        self,
        valid_s: float,
        most: int,
        *,
        dropped: Callable[[T], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._valid_s = valid_s
        self._most = most
        self._dropped = dropped
        self._clock = clock
        self._lock = threading.Lock()
        # Keyed by digest: a lookup takes the same time whatever was guessed. All are valid for the
        # same time, so the oldest is the first to expire.
        self._unused: OrderedDict[bytes, tuple[float, T]] = OrderedDict()

    def issue(self, value: T) -> bytes:
        """Issue a ticket for one use of ``value``."""
        ticket = secrets.token_bytes(TICKET_BYTES)
        with self._lock:
            self._drop_expired()
            while len(self._unused) >= self._most:
                self._drop_oldest()
            self._unused[_digest(ticket)] = self._clock() + self._valid_s, value
        return ticket

    def redeem(self, ticket: bytes) -> T | None:
        """Redeem a ticket, once, for its value; None: it is not valid."""
        with self._lock:
            self._drop_expired()
            _, value = self._unused.pop(_digest(ticket), (0.0, None))
        return value

    def drop_expired(self) -> None:
        """Drop those that are valid no longer."""
        with self._lock:
            self._drop_expired()

    def clear(self) -> None:
        """Drop all of them."""
        with self._lock:
            while self._unused:
                self._drop_oldest()

    def _drop_expired(self) -> None:
        now = self._clock()
        while self._unused and next(iter(self._unused.values()))[0] <= now:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, value) = self._unused.popitem(last=False)
        self._dropped(value)


def _digest(ticket: bytes) -> bytes:
    return hashlib.sha256(ticket).digest()
