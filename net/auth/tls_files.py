"""Certificate, key and CA of a task: files that are checked when they are read, and read anew when
they change.

A certificate may expire during a long run, so each handshake checks whether the files have changed
(cert-manager and Kubernetes replace a link, others write in place). New files are tried before they
are used: this side shakes hands with itself, which shows whatever a peer would refuse. While new
files are not complete or not valid, the last valid ones are used.
"""

import contextlib
import logging
import os
import ssl
import stat
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from ...cluster.access import Principal
from ...core.errors import ConfigurationError, UnauthenticatedError
from ...core.outside_text import read_plain
from ...core.process.events import event
from ...core.settings import Settings
from .proof import check_not_open
from .tls_failures import WRONG_PURPOSE, explain, principal_of_certificate, read_facts

log = logging.getLogger(__name__)

_TRIES = 5  # for files that change while they are read

_Versions = tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsCredentials:
    """The credentials of one state of the files.

    Attributes:
        server: TLS context for accepting; None: there is no certificate.
        client: TLS context for dialling; None: there is no CA.
        certificate: PEM, with those of intermediate CAs; empty: none.
        key: PEM.
        ca: PEM.
        principal: Principal that the certificate names; None: it names none, or no peer would
            accept it.
    """

    server: ssl.SSLContext | None
    client: ssl.SSLContext | None
    certificate: bytes
    key: bytes
    ca: bytes
    principal: Principal | None = None


class CredentialFiles:
    """The files of a task.

    Args:
        certificate: Path, PEM; empty: this process has none.
        key: Path of the certificate's key, PEM.
        ca: Path, PEM, one or several; empty: this process does not dial over TLS.
        mutual: Whether clients must show a certificate.
        retry_s: Time after which files that could not be used are read again, though unchanged.
    """

    def __init__(
        self, certificate: str, key: str, ca: str, *, mutual: bool, retry_s: float = 1.0
    ) -> None:
        self._paths = {"tls_cert": certificate, "tls_key": key, "tls_ca": ca}
        self._mutual = mutual
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._credentials: TlsCredentials | None = None
        self._versions: _Versions | None = None
        self._failed: tuple[_Versions | None, float] | None = None

    def current(self) -> TlsCredentials:
        """Read the credentials in the files now, or the last valid ones. Thread-safe.

        Raises:
            ConfigurationError: They were never valid; the message names the file and what to do.
        """
        with self._lock:
            versions = self._look()
            if self._credentials is not None and versions == self._versions:
                return self._credentials
            if self._failed is not None and self._credentials is not None:
                seen, until = self._failed
                if seen == versions and time.monotonic() < until:
                    return self._credentials
            try:
                return self._read()
            except ConfigurationError as error:
                if self._credentials is None:
                    raise
                if self._failed is None:
                    log.warning(
                        "%s. The certificates that were read before are still used",
                        error,
                        extra=event("certificate.unusable", error=error),
                    )
                self._failed = versions, time.monotonic() + self._retry_s
                return self._credentials

    def _look(self) -> _Versions | None:
        versions = []
        for path in filter(None, self._paths.values()):
            try:
                seen = os.stat(path)
            except OSError:
                return None
            versions.append((seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size))
        return tuple(versions)

    def _read(self) -> TlsCredentials:
        for _ in range(_TRIES):
            before = self._look()
            try:
                credentials = self._load()
            except ConfigurationError:
                if before == self._look():
                    raise
                continue
            if before is not None and before == self._look():
                if self._credentials is not None:
                    path = self._paths["tls_cert"]
                    again = event("certificate.read", path=path)
                    log.info("certificates were read again: %s", path, extra=again)
                self._credentials, self._versions, self._failed = credentials, before, None
                return credentials
        raise ConfigurationError("the files of tls_cert, tls_key and tls_ca change all the time")

    def _load(self) -> TlsCredentials:
        certificate, key, ca = self._paths.values()
        if bool(certificate) != bool(key):
            missing = "tls_key" if certificate else "tls_cert"
            raise ConfigurationError(f"tls_cert and tls_key belong together; {missing} is missing")
        content = {name: _read_file(name, path) for name, path in self._paths.items()}
        if key:
            _check_key_file(key)
        if ca:
            check_not_open(ca, "tls_ca")
        server = client = principal = None
        if ca or certificate:
            client = _client_context(ca or certificate, only_itself=not ca)
        if certificate:
            server = _server_context(ca if self._mutual else "")
            for context in filter(None, (server, client)):
                _load_chain(context, certificate, key)
            principal = _try_out(server, client, certificate, content["tls_cert"])
        return TlsCredentials(
            server,
            client if ca else None,
            certificate=content["tls_cert"],
            key=content["tls_key"],
            ca=content["tls_ca"],
            principal=principal,
        )


def _read_file(name: str, path: str) -> bytes:
    if not path:
        return b""
    try:
        content = read_plain(path)
    except OSError as error:
        raise ConfigurationError(
            f"{name}: {path} cannot be read: {error.strerror or error}", file=path
        ) from error
    begins, ends = content.count(b"-----BEGIN "), content.count(b"-----END ")
    if not begins or begins != ends:
        state = "is truncated" if begins else "holds no PEM (it has no -----BEGIN line)"
        raise ConfigurationError(f"{name}: {path} {state}; write it anew", file=path)
    return content


def _check_key_file(path: str) -> None:
    """Refuse a key that other users of this machine can read or change.

    A volume of Kubernetes gives files of root the group of the container's user (fsGroup).

    Raises:
        ConfigurationError: They can.
    """
    status = os.stat(path)
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(
            f"tls_key: {path} belongs to user {status.st_uid}, and this process runs as "
            f"{os.geteuid()}: a key must belong to who uses it, or to root",
            file=path,
        )
    groups = {os.getegid(), *os.getgroups()}
    of_volume = status.st_uid == 0 and status.st_gid in groups and not mode & 0o037
    if mode & 0o077 and not of_volume:
        raise ConfigurationError(
            f"tls_key: {path} has mode {mode:04o}: others on this machine can read the key, and "
            f"say that they are this task. Run `chmod 600 {path}`, and take a new key if others "
            "may have seen it",
            file=path,
        )


def _server_context(ca: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no client resumes; a ticket on its way disturbs what is counted
    context.set_alpn_protocols(["h2"])  # gRPC's clients require it
    if ca:
        _load_authorities(context, ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _client_context(ca: str, *, only_itself: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])  # for tunnels, where a proxy may end TLS
    if only_itself:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _load_authorities(context, ca)
    return context


def _load_authorities(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"tls_ca: {ca} holds no certificate that can be read ({_reason(error)}); write it anew",
            file=ca,
        ) from error


def _load_chain(context: ssl.SSLContext, certificate: str, key: str) -> None:
    def no_password() -> str:
        raise ConfigurationError(
            f"tls_key: {key} is encrypted, and nobody is here to type its password; write it "
            "without one, for this user alone",
            file=key,
        )

    try:
        context.load_cert_chain(certificate, key, no_password)
    except (ssl.SSLError, OSError) as error:
        if "KEY_VALUES_MISMATCH" in str(getattr(error, "reason", "")):
            raise ConfigurationError(
                f"tls_key: {key} is not the key of the certificate {certificate}; give the two "
                "files that were issued together",
                file=key,
            ) from error
        raise ConfigurationError(
            f"tls_cert: {certificate} or tls_key: {key} cannot be read ({_reason(error)}): "
            "truncated, or no PEM; write both anew",
            file=certificate,
        ) from error


def _try_out(
    server: ssl.SSLContext, client: ssl.SSLContext | None, path: str, content: bytes
) -> Principal | None:
    """Shake hands with itself; returns the principal of the certificate, if it names one.

    Raises:
        ConfigurationError: A peer would refuse the certificate.
    """
    if client is None:
        return None
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    client.check_hostname = False
    ends = [
        client.wrap_bio(here, there, server_side=False),
        server.wrap_bio(there, here, server_side=True),
    ]
    client.check_hostname = True
    try:
        for end in ends * 3:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == WRONG_PURPOSE:  # its peers judge that
            return None
        failure = explain(
            error,
            side="client",
            peer=f"tls_cert: {path}",
            certificate=read_facts(content),
            now=datetime.now(UTC),
        )
        message = failure.message if isinstance(failure, UnauthenticatedError) else str(failure)
        raise ConfigurationError(message, file=path) from error
    except ssl.SSLError as error:
        raise ConfigurationError(f"tls_cert: {path} cannot be used: {_reason(error)}") from error
    with contextlib.suppress(UnauthenticatedError):  # that of a server need not name one
        return principal_of_certificate(ends[0].getpeercert() or {}, path)
    return None


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error).lower()


@lru_cache(maxsize=64)
def _shared(certificate: str, key: str, ca: str, mutual: bool) -> CredentialFiles:
    return CredentialFiles(certificate, key, ca, mutual=mutual)


def credential_files(settings: Settings, *, mutual: bool) -> CredentialFiles:
    """Open the files that the settings name, shared by all users in this process.

    Args:
        settings: Name the files.
        mutual: Whether clients must show a certificate.
    """
    return _shared(settings.tls_cert, settings.tls_key, settings.tls_ca, mutual)
