"""Credentials of this task towards a server, checks of the server, and the mode of both.

A task's own credentials name its job: a ps that knows its job from the start accepts no chief of
another one, even if that comes first.
"""

import contextlib
import functools
import hashlib
import hmac
import ipaddress
import secrets
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from ...cluster.access import Principal
from ...core.errors import (
    ConfigurationError,
    JobDoneError,
    JobStoppedError,
    RopewalkError,
    UnauthenticatedError,
)
from ...core.settings import Settings
from . import proof, token
from .proof import load_key
from .tls_files import credential_files

AUTHORIZATION = "authorization"
ANSWER = "ropewalk-answer"


class Credentials(Protocol):
    """Credentials by which a caller authenticates itself to one server, and the server to it."""

    def authorization(self, operation: str) -> str:
        """Return the authorization to send with a call or greeting; empty: none.

        Args:
            operation: A key of :data:`~ropewalk.cluster.access.RULES`.
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


class SecurityMode(StrEnum):
    """The mode in which tasks authenticate each other; see docs/security.md."""

    INSECURE = "insecure"
    LOCAL = "local"
    TOKEN = "token"  # noqa: S105 - the name of a mode
    MTLS = "mtls"

    @property
    def encrypts(self) -> bool:
        """Whether TCP connections are encrypted."""
        return self in (SecurityMode.TOKEN, SecurityMode.MTLS)


def is_localhost(host: str) -> bool:
    """Return whether ``host`` is the name of this machine's loopback, ``localhost.`` included."""
    return host.lower().removesuffix(".") == "localhost"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``."""
    if is_localhost(host):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def security_mode(settings: Settings, address: str, host: str = "") -> SecurityMode:
    """Choose the mode for a server at an address, or for a caller of it.

    It is what the settings say, else what their files imply; without any, loopback uses the key
    that only this user can read.

    Args:
        settings: Settings of the task.
        address: host:port of the server.
        host: Host that the server itself binds; empty: the host of the address.

    Raises:
        ConfigurationError: Other machines can reach it and nothing is set, or settings contradict.
    """
    mode = settings.security
    if settings.insecure:
        if mode not in ("", "insecure"):
            raise ConfigurationError(f"--insecure and --security {mode} contradict; keep one")
        return SecurityMode.INSECURE
    if mode:
        return SecurityMode(mode)
    if settings.token_file or settings.token_keys:
        return SecurityMode.TOKEN
    if settings.tls_cert or settings.tls_ca:
        return SecurityMode.MTLS
    if is_loopback(host or address.rpartition(":")[0]):
        return SecurityMode.LOCAL
    raise ConfigurationError(
        f"{address} is on a network, and nothing says how tasks show there who they are. Give each "
        "task a certificate (--tls-cert, --tls-key, --tls-ca; `ropewalk certs` makes them), or "
        "tokens (--token-file, --token-keys), or say --insecure (ROPEWALK_INSECURE=1) inside a "
        "network you trust: whoever reaches the port can then read and change the model. Or bind "
        "loopback with --host 127.0.0.1",
        address=address,
    )


def bind_address(address: str, settings: Settings) -> str:
    """Choose where to listen for a task whose peers know it as ``address``.

    The advertised name may be a Kubernetes Service, which no machine can bind; so a task that is
    not on loopback listens on every interface.
    """
    host, _, port = address.rpartition(":")
    everywhere = "0.0.0.0"  # noqa: S104 - the guard asks who is there
    listen = settings.host or (host if is_loopback(host) else everywhere)
    if is_localhost(listen):
        listen = "localhost"  # which resolvers know without a server, unlike "localhost."
    if listen.count(":") > 1 and not listen.startswith("["):
        listen = f"[{listen}]"  # an IPv6 address
    return f"{listen}:{port}"


def with_own_job(settings: Settings) -> Settings:
    """Add to the settings the job that this task's certificate or token names.

    Args:
        settings: A task's; returned unchanged without a certificate and a token, or if these are
            valid for any job.

    Raises:
        ConfigurationError: The files cannot be used, or name another job than ``job_id``, or than
            each other.
    """
    if _shows_nothing(settings):
        return settings
    return settings.model_copy(update={"job_id": _only_job(settings, job_id=settings.job_id)})


def job_of_credentials(settings: Settings) -> str:
    """Read the job that a process's certificate or token names; empty without one, or if it names
    none.

    Unlike ``job_id``, which may be the name of a cluster on which jobs run.

    Raises:
        ConfigurationError: The files cannot be used, or name different jobs.
    """
    return "" if _shows_nothing(settings) else _only_job(settings)


def _only_job(settings: Settings, **others: str) -> str:
    named = others | {name: job for name, (job, _) in _credentials(settings).items()}
    jobs = {job: name for name, job in named.items() if job}
    if len(jobs) > 1:
        of_settings = " and ".join(f"{job!r} in {name}" for job, name in jobs.items())
        raise ConfigurationError(
            f"this task has credentials of another job than its own: {of_settings}; each job needs "
            "certificates and tokens of its own"
        )
    return next(iter(jobs), "")


def _shows_nothing(settings: Settings) -> bool:
    return settings.insecure or settings.security == "insecure"


def are_of_one_index(settings: Settings) -> bool:
    """Return whether this task's certificate or token is valid for its own index alone.

    Raises:
        ConfigurationError: The files cannot be used.
    """
    if _shows_nothing(settings):
        return False
    return any(has_index for _, has_index in _credentials(settings).values())


def _credentials(settings: Settings) -> dict[str, tuple[str, bool]]:
    """Read, by setting, the job that each credential names, and whether it has an index."""
    by_setting = {}
    if settings.tls_cert:
        mutual = security_mode(settings, "") is SecurityMode.MTLS
        principal = credential_files(settings, mutual=mutual).current().principal
        if principal is not None:
            by_setting["tls_cert"] = principal.job, principal.index is not None
    if settings.token_file:
        claims = token.claims_of(token.TokenFile(settings.token_file).token())
        by_setting["token_file"] = str(claims.get("job", "")), claims.get("index") is not None
    return by_setting
