"""TLS handshakes on both sides: for sessions, links, and gRPC.

Accepting costs no thread: the thread that watches the connection takes a step when bytes have come.
gRPC hides why a handshake has failed, so the dialling side finds that out, too.
"""

import contextlib
import logging
import ssl
import time
from datetime import UTC, datetime

from ...cluster.access import Principal, principal_of_uri
from ...core.errors import (
    ConfigurationError,
    PermissionDeniedError,
    RopewalkError,
    UnauthenticatedError,
)
from ...core.process.log_records import RareLog
from ...core.task import TaskId, is_other_job
from ..connection import MAGIC
from ..sockets import connect_tcp, split_address
from ..stream import SocketStream
from .tls_failures import (
    PLAINTEXT_CLIENT,
    CertificateFacts,
    explain,
    principal_of_certificate,
    read_facts,
)
from .tls_files import CredentialFiles, TlsCredentials
from .tls_stream import TlsStream, shake_hands

log = logging.getLogger(__name__)

TLS_BEGINS = b"\x16\x03"
PROBE_TIMEOUT_S = 2.0
_LOG_EVERY_S = 1.0
_STEP_BYTES = 16 * 1024
_MOST_BYTES = 128 * 1024  # a chain of certificates has a few thousand


class TlsServer:
    """Accepts TLS connections.

    Args:
        files: Certificate, key and CA.
        name: Name of this task, for messages.
        mutual: Whether clients must show a certificate, which names a principal.
    """

    def __init__(self, files: CredentialFiles, name: str, *, mutual: bool) -> None:
        self._files = files
        self._name = name
        self._mutual = mutual
        self._refused = RareLog(log, _LOG_EVERY_S)

    def check(self) -> None:
        """Check that there is a certificate to show.

        Raises:
            ConfigurationError: There is none, or a file cannot be used.
        """
        if self._files.current().server is None:
            raise ConfigurationError(
                "a task that listens needs a certificate: set tls_cert and tls_key "
                "(ROPEWALK_TLS_CERT, ROPEWALK_TLS_KEY) beside tls_ca; `ropewalk certs` makes them"
            )

    def begin(self, stream: SocketStream, first: bytes) -> "Handshake":
        """Begin TLS with a client.

        Args:
            stream: Connected.
            first: Bytes that were read already.

        Raises:
            ConnectionError: There is no certificate to show.
        """
        context = self._files.current().server
        if context is None:  # check() has raised it before
            raise ConnectionError("there is no certificate to show")
        return Handshake(context, stream, first)

    def principal_missing(self, secured: TlsStream) -> UnauthenticatedError | None:
        """Read the client's principal; the error if its certificate must name one and does not."""
        if not self._mutual:
            return None
        peer = secured.peer_address
        try:
            secured.principal = principal_of_certificate(secured.certificate(), peer)
        except UnauthenticatedError as error:
            self.log_refusal(peer, error)
            return error
        return None

    def plaintext(self, peer: str) -> UnauthenticatedError:
        """Make the error for a client that does not speak TLS."""
        error = UnauthenticatedError(f"{self._name}: {PLAINTEXT_CLIENT}")
        self.log_refusal(peer, error)
        return error

    def log_refusal(self, peer: str, error: Exception) -> None:
        """Log a refusal, at most one a second: strangers could fill the log otherwise."""
        message = error.message if isinstance(error, RopewalkError) else str(error)
        if peer not in message:
            message = f"{peer}: {message}"
        self._refused.warning("a connection was refused: %s", message)


class Handshake:
    """A handshake on the accepting side.

    Args:
        context: TLS context of this side.
        stream: Connected; owned by the result.
        first: Bytes that were read already.
    """

    def __init__(self, context: ssl.SSLContext, stream: SocketStream, first: bytes) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(first)
        self._stream = stream
        self._peer = stream.peer_address
        self._begun = first[:8]
        self._received = len(first)

    def step(self) -> TlsStream | None:
        """Process what has come; returns the stream once the handshake is done, None before.

        Raises:
            UnauthenticatedError: The handshake failed; the other side was told why.
            OSError: The connection is broken, or the other side reads nothing.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send()
                if not self._read():
                    return None
            except ssl.SSLError as error:
                failure = explain(error, side="server", peer=self._peer, began=self._begun)
                self._send()  # the alert, which tells the other side
                raise failure from error
            else:
                self._send()
                return self._secured()

    def _read(self) -> bool:
        more = self._stream.receive_now(_STEP_BYTES)
        if more is None:
            return False
        if not more:
            raise explain(None, side="server", peer=self._peer, began=self._begun)
        self._begun = self._begun or more[:8]
        self._received += len(more)
        if self._received > _MOST_BYTES:
            raise ConnectionError(f"a TLS handshake has more than {_MOST_BYTES} bytes")
        self._incoming.write(more)
        return True

    def _send(self) -> None:
        data = self._outgoing.read()
        if data and self._stream.send_now([data]) < len(data):
            raise ConnectionError("it reads nothing of the TLS handshake")

    def _secured(self) -> TlsStream:
        return TlsStream(
            self._stream, self._tls, self._incoming, self._outgoing, side="server", peer=self._peer
        )


class TlsClient:
    """Begins TLS with one task.

    Args:
        files: The CA, and a certificate if this process has one.
        address: The task's, host:port: its certificate must name the host.
        peer: The task's name, for messages.
        task: The task that its certificate must name, if it names one; None: any.
        job: The job that it must name; empty: any.
    """

    def __init__(
        self,
        files: CredentialFiles,
        address: str,
        peer: str,
        task: TaskId | None = None,
        job: str = "",
    ) -> None:
        self._files = files
        self._address = address
        self._peer = peer
        self._task = task
        self._job = job

    def credentials(self) -> TlsCredentials:
        """Read the credentials in the files now."""
        return self._files.current()

    def connect(self, stream: SocketStream, deadline: float) -> TlsStream:
        """Begin TLS; the stream is closed if that fails.

        Args:
            stream: Connected, and :data:`~ropewalk.net.listener.MAGIC` was sent.
            deadline: Time limit, on the clock of ``time.monotonic``.

        Raises:
            UnauthenticatedError: The other side has no valid certificate, or does not speak TLS.
            PermissionDeniedError: It is another task than the one that was dialled.
            ConfigurationError: ``tls_ca`` is missing.
            OSError: The connection broke, or the handshake took too long.
        """
        try:
            context = self._files.current().client
            if context is None:
                raise ConfigurationError("to dial over TLS, tls_ca (ROPEWALK_TLS_CA) is needed")
            host, _ = split_address(self._address)
            try:
                secured = shake_hands(
                    stream, context, host=host, peer=self._peer, deadline=deadline
                )
            except UnauthenticatedError as error:
                if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                    raise self._with_facts(error.__cause__) from error.__cause__
                raise
            secured.principal = self._expected_peer(secured)
        except BaseException:
            stream.close()
            raise
        return secured

    def _with_facts(self, error: ssl.SSLCertVerificationError) -> Exception:
        return explain(
            error,
            side="client",
            peer=self._peer,
            certificate=look_at_certificate(self._address),
            now=datetime.now(UTC),
        )

    def _expected_peer(self, secured: TlsStream) -> Principal | None:
        """Check the principal of the peer's certificate; None is fine, since its host name was
        verified.
        """
        alternatives = secured.certificate().get("subjectAltName", ())
        for kind, value in alternatives:  # type: ignore[attr-defined]
            if kind != "URI":
                continue
            with contextlib.suppress(ConfigurationError):
                principal = principal_of_uri(value)
                self._check(principal)
                return principal
        return None

    def _check(self, principal: Principal) -> None:
        wrong_task = self._task is not None and not principal.may_be(self._task)
        if wrong_task or is_other_job(self._job, principal.job):
            wanted = self._task.short if self._task is not None else self._peer
            of_job = f" of job {self._job}" if self._job else ""
            raise PermissionDeniedError(
                f"{self._peer} shows the certificate of {principal}, and {wanted}{of_job} was "
                "dialled: give each task a certificate of its own, and look at the addresses",
                peer=self._peer,
                principal=principal,
            )


def look_at_certificate(address: str) -> CertificateFacts | None:
    """Fetch the facts of the certificate at an address, trusted or not; None: not known."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    deadline = time.monotonic() + PROBE_TIMEOUT_S
    try:
        with contextlib.closing(connect_tcp(address, PROBE_TIMEOUT_S)) as stream:
            stream.send(MAGIC, deadline)
            host, _ = split_address(address)
            secured = shake_hands(stream, context, host=host, peer=address, deadline=deadline)
            secured.end()
            return read_facts(secured.certificate_bytes())
    except (OSError, UnauthenticatedError):
        return None
