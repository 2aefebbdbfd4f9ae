"""TLS on the accepting side: one context for sessions, links and gRPC."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from ...core.errors import ConfigurationError, UnauthenticatedError, WindlassError
from ..stream import SocketStream
from .certificate import principal_of_certificate
from .failures import PLAINTEXT_CLIENT
from .files import CredentialFiles
from .http2 import Duplex
from .stream import TlsStream, say_last, shake_hands

log = logging.getLogger(__name__)

TLS_BEGINS = b"\x16\x03"
_LOG_EVERY_S = 1.0
_TELL_S = 2.0
_MOST_AT_ONCE = 64  # handshakes; the oldest one goes first


Refuse = Callable[[Duplex, bytes, WindlassError, float], None]
"""``refuse(stream, first, error, deadline)``: tell an error to who dialled, whose first bytes were
read already.
"""


class TlsServer:
    """Accepts TLS connections.

    Args:
        files: Certificate, key and CA.
        name: Of this task, for messages.
        mutual: Whether who dials must show a certificate, which names a principal.
        timeout_s: For a handshake. Unit: seconds.
    """

    def __init__(
        self, files: CredentialFiles, name: str, *, mutual: bool, timeout_s: float
    ) -> None:
        self._files = files
        self._name = name
        self._mutual = mutual
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._under_way: dict[SocketStream, None] = {}  # the oldest first
        self._stopped = False
        self._quiet_until = 0.0
        self._unsaid = 0

    def check(self) -> None:
        """Check that there is a certificate to show.

        Raises:
            ConfigurationError: There is none, or the files are not in order.
        """
        if self._files.current().server is None:
            raise ConfigurationError(
                "a task that listens needs a certificate: set tls_cert and tls_key "
                "(WINDLASS_TLS_CERT, WINDLASS_TLS_KEY) beside tls_ca; `windlass certs` makes them"
            )

    def accept(
        self,
        stream: SocketStream,
        first: bytes,
        refuse: Refuse,
    ) -> TlsStream:
        """Begin TLS with who dialled; the stream is closed if that fails.

        Args:
            stream: Connected.
            first: What was read of it.
            refuse: Tells an error to who dialled.

        Raises:
            UnauthenticatedError: Who dialled speaks no TLS, or shows no certificate that counts.
            OSError: The connection broke, or the handshake took too long.
        """
        peer = stream.peer_address
        self._begin(stream)
        deadline = time.monotonic() + self._timeout_s
        try:
            first = _beginning(stream, first, deadline)
            if not first.startswith(TLS_BEGINS):
                plain = UnauthenticatedError(f"{self._name}: {PLAINTEXT_CLIENT}")
                _tell(refuse, stream, first, plain, deadline)
                say_last(stream, b"")
                raise plain
            context = self._files.current().server
            if context is None:  # check() has said it
                raise ConnectionError("there is no certificate to show")
            secured = shake_hands(
                stream, context, host=None, peer=peer, deadline=deadline, first=first
            )
            if self._mutual:
                try:
                    secured.principal = principal_of_certificate(secured.certificate(), peer)
                except UnauthenticatedError as error:
                    _tell(refuse, secured, b"", error, deadline)
                    say_last(stream, b"")
                    raise
        except (OSError, UnauthenticatedError) as error:
            stream.close()
            self._log(peer, error)
            raise
        finally:
            with self._lock:
                self._under_way.pop(stream, None)
        return secured

    def stop(self) -> None:
        """End handshakes that are under way, and begin none."""
        with self._lock:
            self._stopped = True
            streams = list(self._under_way)
        for stream in streams:
            stream.cancel()

    def _begin(self, stream: SocketStream) -> None:
        with self._lock:
            oldest = next(iter(self._under_way)) if len(self._under_way) >= _MOST_AT_ONCE else None
            if oldest is not None:
                del self._under_way[oldest]
            self._under_way[stream] = None
            stopped = self._stopped
        if oldest is not None:
            oldest.cancel()
        if stopped:
            stream.cancel()

    def _log(self, peer: str, error: Exception) -> None:
        """One line a second at most: whoever dials could fill the log."""
        with self._lock:
            now = time.monotonic()
            if now < self._quiet_until:
                self._unsaid += 1
                return
            unsaid, self._unsaid, self._quiet_until = self._unsaid, 0, now + _LOG_EVERY_S
        said = error.message if isinstance(error, WindlassError) else str(error)
        if peer not in said:
            said = f"{peer}: {said}"
        log.warning(
            "a connection was refused: %s%s", said, f" (and {unsaid} more)" if unsaid else ""
        )


def _tell(
    refuse: Refuse, stream: Duplex, first: bytes, error: WindlassError, deadline: float
) -> None:
    with contextlib.suppress(OSError):  # it does not hear it then
        refuse(stream, first, error, min(deadline, time.monotonic() + _TELL_S))


def _beginning(stream: SocketStream, first: bytes, deadline: float) -> bytes:
    """As many bytes as tell TLS from anything else of ours: a frame that begins with these two has
    790 bytes or more, and a longer greeting than ours.
    """
    while len(first) < len(TLS_BEGINS):
        if time.monotonic() >= deadline:
            raise TimeoutError("it began no TLS handshake in time")
        more = stream.receive(deadline)
        if not more:
            raise ConnectionError("it closed the connection before the TLS handshake")
        first += more
    return first
