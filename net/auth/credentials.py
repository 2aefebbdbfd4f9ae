"""How this task shows a server who it is, and how it knows the server."""

import functools
import secrets
import time
from dataclasses import dataclass
from typing import Protocol

from ...cluster.principal import Principal
from ...core.errors import JobStoppedError, UnauthenticatedError, WindlassError
from ...core.settings import Settings
from . import proof, token
from .key_file import load_key
from .mode import SecurityMode, security_mode


class Credentials(Protocol):
    """What a caller of one server shows."""

    def authorization(self, operation: str) -> str:
        """What to say with a call or greeting; empty: nothing.

        Args:
            operation: A key of :data:`~windlass.cluster.access.RULES`.
        """
        ...

    def check_answer(self, operation: str, authorization: str, answer: str) -> None:
        """Check the server by its answer.

        Args:
            operation: As it was asked for.
            authorization: What was said.
            answer: What the server said; empty: nothing.

        Raises:
            UnauthenticatedError: It is not one of ours.
        """
        ...

    def check_refusal(self, error: WindlassError) -> None:
        """Check an error that a server answered with and did not show who it is.

        Raises:
            UnauthenticatedError: It would end this task in good order, and may be of a stranger.
        """
        ...


class NoCredentials:
    """Nothing is shown: a certificate does, or nobody asks."""

    def authorization(self, operation: str) -> str:  # noqa: ARG002
        """Nothing."""
        return ""

    def check_answer(self, operation: str, authorization: str, answer: str) -> None:
        """Nothing to check."""

    def check_refusal(self, error: WindlassError) -> None:
        """Nothing to check."""


class TokenCredentials(NoCredentials):
    """A token from a file. The server is known by its certificate.

    Args:
        path: Of the file.
    """

    def __init__(self, path: str) -> None:
        self._file = token.TokenFile(path)

    def authorization(self, operation: str) -> str:  # noqa: ARG002
        """The token."""
        return f"{token.SCHEME} {self._file.token()}"


@dataclass(frozen=True, slots=True)
class KeyCredentials:
    """The key that tasks of this user share on loopback.

    Attributes:
        key: Read from its file.
        who: This caller.
        peer: The server, for messages.
        port: It is dialled at this one.
    """

    key: bytes
    who: Principal
    peer: str
    port: int

    def authorization(self, operation: str) -> str:
        """A proof of the key."""
        nonce = secrets.token_hex(proof.NONCE_BYTES)
        now = since_boot_s()
        return proof.ask(self.key, proof.Purpose(operation, self.port), self.who, nonce, now)

    def check_answer(self, operation: str, authorization: str, answer: str) -> None:
        """Check that the server has the key as well."""
        nonce = proof.nonce_of(authorization)
        if not proof.check_answer(self.key, proof.Purpose(operation, self.port), nonce, answer):
            raise self._not_ours()

    def check_refusal(self, error: WindlassError) -> None:
        """Check that it is none that only a task of this job could know."""
        if isinstance(error, JobStoppedError):
            raise self._not_ours()

    def _not_ours(self) -> UnauthenticatedError:
        return UnauthenticatedError(
            f"{self.peer} did not show that it belongs to this user: another user's process may "
            "have its port, it has another key file (--key-file), or it runs with --insecure, "
            "which then must be said here, too",
            peer=self.peer,
        )


def credentials_for(settings: Settings, address: str, who: Principal) -> Credentials:
    """What a caller shows to the server at ``address``.

    Args:
        settings: Of this task.
        address: host:port.
        who: This task.

    Raises:
        ConfigurationError: Nothing is set for that address, or a file cannot be used.
    """
    mode = security_mode(settings, address)
    if mode is SecurityMode.LOCAL:
        port = int(address.rpartition(":")[2])
        return KeyCredentials(key_of(settings), who, address, port)
    if mode is SecurityMode.TOKEN and settings.token_file:
        return TokenCredentials(settings.token_file)
    return NoCredentials()


@functools.lru_cache(maxsize=8)
def key_of(settings: Settings) -> bytes:
    """The key of this process; read once."""
    return load_key(settings)


def since_boot_s() -> float:
    """Seconds since this machine started: one clock for all its processes, which nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
