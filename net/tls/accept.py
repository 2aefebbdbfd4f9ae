"""TLS on the accepting side: one context for sessions, links and gRPC, a handshake step by step.

A handshake costs no thread: the thread that watches the connection takes a step when bytes have
come.
"""

import logging
import ssl

from ...core.errors import ConfigurationError, RopewalkError, UnauthenticatedError
from ...core.process.rare_log import RareLog
from ..stream import SocketStream
from .certificate import principal_of_certificate
from .failures import PLAINTEXT_CLIENT, explain
from .files import CredentialFiles
from .stream import TlsStream

log = logging.getLogger(__name__)

TLS_BEGINS = b"\x16\x03"
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
