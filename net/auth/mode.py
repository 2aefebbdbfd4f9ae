"""Modes in which the tasks of a job authenticate each other."""

import ipaddress
from enum import StrEnum

from ...core.errors import ConfigurationError
from ...core.settings import Settings


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
