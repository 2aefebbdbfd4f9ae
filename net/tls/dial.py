"""TLS on the dialling side, and why it failed: for sessions, and for gRPC, which hides it."""

import contextlib
import ssl
import time
from datetime import UTC, datetime

from ...cluster.access.principal import Principal, principal_of_uri
from ...core.errors import ConfigurationError, PermissionDeniedError, UnauthenticatedError
from ...core.task import TaskId, is_other_job
from ..listener import MAGIC
from ..stream import SocketStream
from ..tcp import connect_tcp, split_address
from .certificate import read_facts
from .failures import CertificateFacts, explain
from .files import CredentialFiles, TlsCredentials
from .stream import TlsStream, shake_hands

PROBE_TIMEOUT_S = 2.0


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
