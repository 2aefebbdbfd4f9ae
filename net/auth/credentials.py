"""Credentials of this task towards a server, and checks of the server."""

import contextlib
import functools
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...cluster.access.principal import Principal
from ...core.errors import JobDoneError, JobStoppedError, RopewalkError, UnauthenticatedError
from ...core.settings import Settings
from . import proof, token
from .key_file import load_key
from .mode import SecurityMode, is_localhost, security_mode


class Credentials(Protocol):
    """Credentials by which a caller authenticates itself to one server, and the server to it."""

    def authorization(self, operation: str) -> str:
        """Return the authorization to send with a call or greeting; empty: none.

        Args:
            operation: A key of :data:`~ropewalk.cluster.access.rights.RULES`.
        """
        ...

    def check_answer(self, operation: str, authorization: str, answer: str) -> None:
        """Check the server by its answer.

        Args:
            operation: The one that was called.
            authorization: Authorization that was sent with it.
            answer: Answer of the server to it; empty: there was none.

        Raises:
            UnauthenticatedError: The server is not a task of this cluster.
        """
        ...

    def check_refusal(self, error: RopewalkError) -> None:
        """Check an error from a server that has not shown who it is.

        Raises:
            UnauthenticatedError: The error would end this task in good order, and may come from a
                stranger.
        """
        ...


class NoCredentials:
    """No credentials: a certificate shows who calls, or the server does not ask."""

    def authorization(self, operation: str) -> str:  # noqa: ARG002
        """Return no authorization."""
        return ""

    def check_answer(self, operation: str, authorization: str, answer: str) -> None:
        """Check nothing."""

    def check_refusal(self, error: RopewalkError) -> None:
        """Check nothing."""


class TokenCredentials(NoCredentials):
    """A token from a file. The server is known by its certificate.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._file = token.TokenFile(path)

    def authorization(self, operation: str) -> str:  # noqa: ARG002
        """Return the token."""
        return f"{token.SCHEME} {self._file.token()}"


@dataclass(frozen=True, slots=True)
class KeyCredentials:
    """The key that tasks of this user share on loopback.

    Attributes:
        key: Read from its file.
        who: Principal of the caller.
        address: The server's, as it is dialled.
    """

    key: bytes
    who: Principal
    address: str

    def authorization(self, operation: str) -> str:
        """Make a proof of the key."""
        nonce = secrets.token_hex(proof.NONCE_BYTES)
        now = since_boot_s()
        return proof.ask(self.key, proof.Purpose(operation, self.address), self.who, nonce, now)

    def check_answer(self, operation: str, authorization: str, answer: str) -> None:
        """Check that the server has the key as well."""
        asked = proof.read_asked(authorization)
        purpose = proof.Purpose(operation, self.address)
        if asked is None or not proof.check_answer(self.key, purpose, asked.nonce, answer):
            raise self._not_ours()

    def check_refusal(self, error: RopewalkError) -> None:
        """Refuse errors that only a task of this job could send."""
        if isinstance(error, (JobDoneError, JobStoppedError)):
            raise self._not_ours()

    def _not_ours(self) -> UnauthenticatedError:
        return UnauthenticatedError(
            f"{self.address} did not show that it belongs to this user: another user's process may "
            "have its port, it has another key file (--key-file), or it runs with --insecure, "
            "which then must be said here, too",
            peer=self.address,
        )


def credentials_for(settings: Settings, address: str, who: Principal) -> Credentials:
    """Choose the credentials of a caller of the server at ``address``.

    Args:
        settings: Settings of the task.
        address: host:port.
        who: Principal of the task.

    Raises:
        ConfigurationError: Nothing is set for that address, or a file cannot be used.
    """
    mode = security_mode(settings, address)
    if mode is SecurityMode.LOCAL:
        return KeyCredentials(key_of(settings), who, dialled_address(settings, address))
    if mode is SecurityMode.TOKEN and settings.token_file:
        return TokenCredentials(settings.token_file)
    return NoCredentials()


def dialled_address(settings: Settings, address: str) -> str:
    """Return the address to dial for host:port: with a key, ``localhost`` is 127.0.0.1 and nothing
    else.

    Otherwise each address of the name would be tried, and another user may have the port at ::1.
    """
    host, _, port = address.rpartition(":")
    if not is_localhost(host):
        return address
    local = security_mode(settings, address) is SecurityMode.LOCAL
    return f"127.0.0.1:{port}" if local else f"localhost:{port}"


@functools.lru_cache(maxsize=8)
def key_of(settings: Settings) -> bytes:
    """Read the key of this process, valid until this machine restarts; read once."""
    boot = b""
    with contextlib.suppress(OSError):  # another system
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    return hmac.new(load_key(settings), boot, hashlib.sha256).digest()


def since_boot_s() -> float:
    """Count the seconds since this machine started: one clock for all its processes, which is never
    set.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
