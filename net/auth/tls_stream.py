"""TLS over a byte stream.

OpenSSL's objects are not safe to use from two threads at once, so one thread may not simply write
while another reads. Here OpenSSL only turns bytes into other bytes, in memory and under a lock; our
own stream moves them, outside the lock. So both directions go on at the same time, and deadlines,
cancelling and spinning are those of the stream below.
"""

import contextlib
import functools
import ssl
import threading
import time
from collections.abc import Callable, Sequence

from ...cluster.access import Principal
from ...core.errors import RefusedError
from ..stream import READ_BYTES, Buffer, SocketStream
from .tls_failures import Side, explain

# Bytes to encrypt and send at a time. With 256 KiB both buffers are fresh memory each time:
# 64 MB took 65 ms to encrypt instead of 27.
_WRITE_BYTES = 64 * 1024
_READ_BYTES = 256 * 1024
_LINGER_S = 1.0
_LINGER_BYTES = 1024 * 1024


class TlsStream:
    """A byte stream through TLS. See :class:`~ropewalk.net.stream.ByteStream`.

    Made by :func:`shake_hands`.

    Args:
        stream: Carries what is encrypted; owned from now on.
        tls: OpenSSL's end.
        incoming: Memory from which it decrypts.
        outgoing: Memory into which it encrypts.
        side: Side of this process.
        peer: Name of the peer, for messages.

    Attributes:
        principal: Principal of the peer, by its certificate; None: it showed none.
    """

    description = "tls"
    passes_files = False

    def __init__(
        self,
        stream: SocketStream,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        *,
        side: Side,
        peer: str,
    ) -> None:
        self.principal: Principal | None = None
        self._stream = stream
        self._tls = tls
        self._incoming = incoming
        self._outgoing = outgoing
        self._side = side
        self._peer = peer
        self._lock = threading.Lock()  # around OpenSSL's end and its buffers
        self._unsent = memoryview(b"")  # encrypted
        self._ended = False
        self._ahead = 0  # bytes that are encrypted and were not yet reported to the caller

    @functools.cached_property
    def _room(self) -> memoryview:
        """Memory to receive into; made for sessions only, since strangers only shake hands."""
        return memoryview(bytearray(_READ_BYTES))

    @property
    def is_local(self) -> bool:
        """Whether both ends are on one machine."""
        return self._stream.is_local

    @property
    def peer_address(self) -> str:
        """Address of the other end."""
        return self._stream.peer_address

    @property
    def on_silence(self) -> Callable[[], object]:
        """Called while nothing moves."""
        return self._stream.on_silence

    @on_silence.setter
    def on_silence(self, call: Callable[[], object]) -> None:
        self._stream.on_silence = call

    # -- sending -----------------------------------------------------------------------------

    def send(self, data: Buffer, deadline: float) -> None:
        """Send all of it."""
        try:
            if not self._ahead and not self._unsent and len(data) <= _WRITE_BYTES:
                self._stream.send(self._encrypt(data), deadline)
                return
            view = memoryview(data)[self._ahead :]
            self._ahead = 0
            if self._unsent:
                unsent, self._unsent = self._unsent, memoryview(b"")
                self._stream.send(unsent, deadline)
            while view:
                self._stream.send(self._encrypt(view[:_WRITE_BYTES]), deadline)
                view = view[_WRITE_BYTES:]
        except TimeoutError:
            raise
        except OSError:
            self._raise_what_the_peer_said()
            raise

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        """Send as much as the stream below takes at once.

        Encrypted bytes cannot be taken back: if the last of them wait to be sent, one byte less is
        reported, so that the caller comes back with the rest.
        """
        if self._unsent:
            self._unsent = self._unsent[self._stream.send_now([self._unsent]) :]
            if self._unsent:
                return 0
        view = memoryview(b"".join(buffers))
        done, self._ahead = self._ahead, 0
        while done < len(view) and not self._unsent:
            encrypted = memoryview(self._encrypt(view[done : done + _WRITE_BYTES]))
            self._unsent = encrypted[self._stream.send_now([encrypted]) :]
            done = min(len(view), done + _WRITE_BYTES)
        if self._unsent:
            done, self._ahead = done - 1, 1
        return done

    def send_with_descriptor(self, data: bytes, descriptor: int, deadline: float) -> None:
        """Refuse."""
        raise RefusedError("files are handed over on a Unix socket, not over TLS")

    def take_descriptor(self) -> int:
        """Refuse."""
        raise RefusedError("no file comes over TLS")

    def _encrypt(self, piece: Buffer) -> bytes:
        with self._lock:
            written = self._tls.write(piece) if piece else 0
            while written < len(piece):
                written += self._tls.write(piece[written:])
            return self._outgoing.read()

    # -- receiving ---------------------------------------------------------------------------

    def receive(self, deadline: float) -> bytes:
        """Receive some bytes."""
        while (data := self._next_record(READ_BYTES)) is None:
            self._take_in(self._stream.receive(deadline))
        return data

    def receive_now(self, most_bytes: int) -> bytes | None:
        """Receive some bytes that have come already, at most one record."""
        while (data := self._next_record(most_bytes)) is None:
            came = self._stream.receive_now(READ_BYTES)
            if came is None:
                return None
            self._take_in(came)
        return data

    def _take_in(self, came: bytes) -> None:
        if not came:
            raise ConnectionError("the connection was cut off")
        self._incoming.write(came)

    def _next_record(self, most_bytes: int) -> bytes | None:
        """Decrypt bytes that have come; empty at the end of the stream, None: none yet."""
        with self._lock:
            if self._ended:
                return b""
            if not self._incoming.pending and not self._tls.pending():
                return None
            try:
                data = self._tls.read(most_bytes)
            except ssl.SSLZeroReturnError:
                data = b""
            except ssl.SSLWantReadError:
                return None
            except ssl.SSLError as error:
                raise self._failure(error) from error
            self._ended = not data
            return data

    def receive_into(self, target: memoryview, deadline: float) -> int:
        """Receive some bytes into ``target``."""
        while (count := self._decrypt(target)) is None:
            came = self._stream.receive_into(self._room, deadline)
            if not came:
                raise ConnectionError("the connection was cut off")
            self._incoming.write(self._room[:came])
        return count

    def is_silent(self) -> bool:
        """Return whether nothing has come."""
        with self._lock:
            waiting = self._incoming.pending or self._tls.pending()
        return not waiting and self._stream.is_silent()

    def _decrypt(self, target: memoryview) -> int | None:
        """Decrypt bytes that have come, as many as fit; 0 at the end of the stream, None: none
        yet.
        """
        filled = 0
        with self._lock:
            # Reading an empty buffer would raise, which takes longer than this check.
            while filled < len(target) and (self._incoming.pending or self._tls.pending()):
                try:
                    count = int(self._tls.read(len(target) - filled, target[filled:]))
                except ssl.SSLWantReadError:
                    break
                except ssl.SSLZeroReturnError:
                    count = 0
                except ssl.SSLError as error:
                    if filled:
                        return filled
                    raise self._failure(error) from error
                if not count:  # the other side has sent its end
                    self._ended = True
                    break
                filled += count
            return 0 if self._ended and not filled else filled or None

    def _failure(self, error: ssl.SSLError) -> Exception:
        # In TLS 1.3 a server's refusal of our certificate only comes after the handshake.
        return explain(error, side=self._side, peer=self._peer)

    def _raise_what_the_peer_said(self) -> None:
        """Raise what the peer's alert says.

        A peer that refuses a certificate sends an alert and closes, and then our next send fails
        before the alert is read.
        """
        with contextlib.suppress(OSError):
            while came := self._stream.receive(time.monotonic() + _LINGER_S):
                self._incoming.write(came)
        # The bytes that it decrypts are lost, like the connection.
        with contextlib.suppress(OSError):
            self._decrypt(memoryview(bytearray(READ_BYTES)))

    # -- ending ------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return -1: bytes may wait here while the socket has none."""
        return -1

    def readiness_fileno(self) -> int:
        """Return the descriptor for a selector, after :meth:`receive_now` has said that there is
        nothing more.
        """
        return self._stream.readiness_fileno()

    def limit_messages(self, num_bytes: int) -> None:
        """Do nothing: the bytes have no boundaries."""

    def cancel(self) -> None:
        """Reset the connection."""
        self._stream.cancel()

    def close(self) -> None:
        """Send the end of the stream, and close the stream below."""
        self.end()
        self._stream.close()

    def end(self) -> None:
        """Send the end of the stream, without waiting."""
        if self._unsent:
            return
        # It sends that, and then misses the peer's answer.
        with contextlib.suppress(OSError, ValueError), self._lock:
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._stream.send_now([self._outgoing.read()])

    def certificate(self) -> dict[str, object]:
        """Return the peer's certificate, as ``ssl`` decodes it; empty: none was asked for."""
        return dict(self._tls.getpeercert() or {})

    def certificate_bytes(self) -> bytes:
        """Return the peer's certificate as DER, trusted or not."""
        return self._tls.getpeercert(binary_form=True) or b""


def shake_hands(
    stream: SocketStream,
    context: ssl.SSLContext,
    *,
    host: str | None,
    peer: str,
    deadline: float,
    first: bytes = b"",
) -> TlsStream:
    """Begin TLS.

    Args:
        stream: Connected; owned by the result.
        context: TLS context of this side.
        host: The host that the server's certificate must name; None: this side is the server.
        peer: Name of the peer, for messages.
        deadline: Time limit of the whole handshake, on the clock of ``time.monotonic``.
        first: Bytes that were read already.

    Raises:
        UnauthenticatedError: The handshake failed; the other side was told why.
        OSError: The connection broke, or the deadline passed.
    """
    side: Side = "server" if host is None else "client"
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=host is None, server_hostname=host)
    secured = TlsStream(stream, tls, incoming, outgoing, side=side, peer=peer)
    incoming.write(first)
    begun = first
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            stream.send(outgoing.read(), deadline)
            more = stream.receive(deadline) if time.monotonic() < deadline else None
            if more is None:
                raise TimeoutError("the TLS handshake took too long") from None
            if not more:
                raise explain(None, side=side, peer=peer, began=begun) from None
            begun = begun or more[:8]
            incoming.write(more)
        except ssl.SSLError as error:
            failure = explain(error, side=side, peer=peer, began=begun)
            # The alert tells the other side.
            say_last(stream, outgoing.read())
            raise failure from error
        else:
            stream.send(outgoing.read(), deadline)
            return secured


def say_last(stream: SocketStream, data: bytes) -> None:
    """Send something before a connection is closed, and let the other side read it.

    A socket that is closed with unread bytes resets the connection, and then the peer may not
    receive what was sent to it: so its bytes are read, for a moment.
    """
    deadline, left = time.monotonic() + _LINGER_S, _LINGER_BYTES
    with contextlib.suppress(OSError):
        stream.send(data, deadline)
        stream.end_sending()
        while left > 0 and time.monotonic() < deadline and (more := stream.receive(deadline)):
            left -= len(more)
