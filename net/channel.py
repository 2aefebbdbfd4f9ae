"""gRPC channels to peers, the base of the clients of all services, and calls whose failures are our
errors.

gRPC reads certificates once, when a channel is made, and after a failed handshake only reports that
the peer is not available. So with TLS a channel makes a new one of gRPC when the files have
changed, for calls that begin from then on; and when a call fails it looks for the reason with a
handshake of its own.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from ..cluster.access import Principal, rule_of
from ..cluster.address import parse_address
from ..core.errors import PeerLostError
from ..core.settings import Settings
from ..core.wire.error_table import from_rpc_error
from .auth.credentials import ANSWER, AUTHORIZATION, Credentials, credentials_for, dialled_address
from .auth.tls_files import TlsCredentials
from .auth.tls_handshake import TlsClient
from .dial import find_refusal, tls_client
from .routes import grpc_target
from .sockets import is_listening, split_address

_Response = TypeVar("_Response")


def open_channel(address: str, settings: Settings, who: Principal) -> grpc.Channel:
    """Open a channel that reaches a peer that is late, restarted or moved, and notices a loss.

    With TLS it uses new certificates when the files change.

    Args:
        address: host:port.
        settings: Settings, for the bounds and the credentials of this task.
        who: Principal of this task.

    Raises:
        ConfigurationError: No credentials are set, or a file cannot be used.
    """
    address = dialled_address(settings, address)
    client = tls_client(address, f"the task at {address}", settings)
    options: list[tuple[str, int | str]] = [*_options(settings)]
    target = grpc_target(address)
    if target != address:  # the server's name does not follow from the target
        options.append(("grpc.default_authority", address))
        options.append(("grpc.ssl_target_name_override", split_address(address)[0]))
    channel = (
        TlsChannel(address, target, options, client)
        if client is not None
        else grpc.insecure_channel(target, options=options)
    )
    return grpc.intercept_channel(channel, _Showing(credentials_for(settings, address, who)))


def _options(settings: Settings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        # The error of a refused call comes as metadata.
        ("grpc.max_metadata_size", 32 * 1024),
        ("grpc.absolute_max_metadata_size", 64 * 1024),
        # A peer that starts late is found within a second where its host answers, and else after
        # one attempt. gRPC's own 20 s for that are long; a busy peer's handshake may take seconds.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Pods get new addresses: resolve again on every reconnect.
        ("grpc.dns_min_time_between_resolutions_ms", 1_000),
        # A machine that vanished answers nothing; TCP alone would wait for minutes.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        # Of other pings, too: while one that measures the bandwidth is under way none of ours is
        # sent, and a peer that stands still would be waited for for a minute.
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Cluster traffic goes to peers, never through a web proxy.
        ("grpc.enable_http_proxy", 0),
        # Channels to one address must not share a connection: a session has its own.
        ("grpc.use_local_subchannel_pool", 1),
    ]


class _Showing(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Authenticates the caller with every call, and the server by its answer."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        if not rule_of(details.method).roles:
            return continuation(details, request)  # the server does not ask
        authorization = self._credentials.authorization(details.method)
        call = continuation(_with(details, authorization), request)
        if authorization:
            answers = [value for name, value in call.initial_metadata() or () if name == ANSWER]
            if answers or call.code() is grpc.StatusCode.OK:
                answer = answers[0] if answers else ""
                self._credentials.check_answer(details.method, authorization, answer)
            else:  # refused before the caller was authenticated, or not answered
                error = from_rpc_error(call, peer="", doing="")
                self._credentials.check_refusal(error)
        return call

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        authorization = self._credentials.authorization(details.method)
        return continuation(_with(details, authorization), requests)


class _Details(grpc.ClientCallDetails):
    """Details of a call, with one more metadata entry."""

    def __init__(self, details: Any, name: str, value: str) -> None:
        self.method = details.method
        self.timeout = details.timeout
        self.metadata = (*(details.metadata or ()), (name, value))
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = details.compression


def _with(details: Any, authorization: str) -> Any:
    return _Details(details, AUTHORIZATION, authorization) if authorization else details


def invoke(
    method: Callable[..., _Response],
    request: Any,
    *,
    peer: str,
    doing: str,
    timeout_s: float,
    wait_for_ready: bool = False,
) -> _Response:
    """Call a unary method.

    Args:
        method: A method of a stub.
        request: Message to send.
        peer: The callee, for messages.
        doing: The purpose, for messages.
        timeout_s: Deadline. Unit: seconds.
        wait_for_ready: Wait for a connection until the deadline instead of failing at once.

    Raises:
        RopewalkError: The peer's error, or PeerLostError if it did not answer.
    """
    try:
        return method(request, timeout=timeout_s, wait_for_ready=wait_for_ready)
    except grpc.RpcError as failure:
        raise from_rpc_error(failure, peer=peer, doing=doing) from failure


@dataclass(slots=True)
class _Generation:
    """gRPC's channel with one state of the files."""

    credentials: TlsCredentials
    channel: grpc.Channel
    calls: int = 0  # that are under way


class TlsChannel(grpc.Channel):  # type: ignore[misc,unused-ignore]
    """See :class:`grpc.Channel`.

    Args:
        address: host:port.
        target: Target for ``address``, as gRPC dials it.
        options: gRPC's.
        client: Reads the files.
    """

    def __init__(
        self,
        address: str,
        target: str,
        options: Sequence[tuple[str, int | str]],
        client: TlsClient,
    ) -> None:
        self._address = address
        self._target = target
        self._options = list(options)
        self._client = client
        self._lock = threading.Lock()
        self._current: _Generation | None = None
        self._old: list[_Generation] = []
        self._closed = False

    def begin(self) -> _Generation:
        """Lend the channel for the next call, after which the caller calls :meth:`end`."""
        credentials = self._client.credentials()
        with self._lock:
            if self._closed:
                raise ValueError("the channel is closed")
            current = self._current
            if current is None or current.credentials is not credentials:
                fresh = self._make(credentials)
                if current is not None:
                    self._old.append(current)
                self._current = current = fresh
            current.calls += 1
            idle = self._take_idle()
        for generation in idle:
            generation.channel.close()
        return current

    def end(self, generation: _Generation) -> None:
        """Count a call as over."""
        with self._lock:
            generation.calls -= 1
            idle = self._take_idle()
        for finished in idle:
            finished.channel.close()

    def raise_refusal(self) -> None:
        """Raise the reason for which TLS with the peer fails, if it does.

        Raises:
            AccessError: Trying again would fail again.
        """
        find_refusal(self._client, self._address)

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call of one message and one answer."""
        return _Unary(self, lambda channel: channel.unary_unary(method, *args, **kwargs))

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call of messages there and back."""
        return _Stream(self, lambda channel: channel.stream_stream(method, *args, **kwargs))

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call of one message and answers."""
        return _Stream(self, lambda channel: channel.unary_stream(method, *args, **kwargs))

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call of messages and one answer."""
        return _Unary(self, lambda channel: channel.stream_unary(method, *args, **kwargs))

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        """Refuse: there is no one state of several channels."""
        raise NotImplementedError

    def unsubscribe(self, callback: Any) -> None:
        """Refuse: there are no subscriptions."""
        raise NotImplementedError

    def close(self) -> None:
        """Close it, and end its calls."""
        with self._lock:
            self._closed = True
            everyone = [*self._old, *filter(None, [self._current])]
            self._old, self._current = [], None
        for generation in everyone:
            generation.channel.close()

    def __enter__(self) -> "TlsChannel":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _take_idle(self) -> list[_Generation]:
        idle = [generation for generation in self._old if not generation.calls]
        self._old = [generation for generation in self._old if generation.calls]
        return idle

    def _make(self, credentials: TlsCredentials) -> _Generation:
        secure = grpc.ssl_channel_credentials(
            credentials.ca or None, credentials.key or None, credentials.certificate or None
        )
        channel = grpc.secure_channel(self._target, secure, options=self._options)
        return _Generation(credentials, channel)


class _Method:
    """A method of the current channel."""

    def __init__(self, channel: TlsChannel, find: Callable[[grpc.Channel], Any]) -> None:
        self._channel = channel
        self._find = find
        self._found: tuple[grpc.Channel, Any] | None = None

    def _of(self, generation: _Generation) -> Any:
        if self._found is None or self._found[0] is not generation.channel:
            self._found = generation.channel, self._find(generation.channel)
        return self._found[1]


class _Unary(_Method):
    def __call__(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return self.with_call(request, *args, **kwargs)[0]

    def with_call(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        generation = self._channel.begin()
        try:
            return self._of(generation).with_call(request, *args, **kwargs)
        except grpc.RpcError as failure:
            code = getattr(failure, "code", lambda: None)()
            waited = code is grpc.StatusCode.DEADLINE_EXCEEDED and kwargs.get("wait_for_ready")
            if waited or code is grpc.StatusCode.UNAVAILABLE:
                self._channel.raise_refusal()
            raise
        finally:
            self._channel.end(generation)


class _Stream(_Method):
    def __call__(self, requests: Any, *args: Any, **kwargs: Any) -> Any:
        generation = self._channel.begin()
        try:
            call = self._of(generation)(requests, *args, **kwargs)
            if not call.add_callback(lambda: self._channel.end(generation)):
                self._channel.end(generation)
        except BaseException:
            self._channel.end(generation)
            raise
        return call


class UnaryClient:
    """Unary calls to one peer. Thread-safe.

    Args:
        address: host:port of the peer.
        peer: Name of the peer, for messages.
        settings: Credentials of the caller, and bounds.
        who: The caller.

    Raises:
        ConfigurationError: The address is none; or no credentials are set, or a file of them cannot
            be used.
    """

    def __init__(self, address: str, peer: str, settings: Settings, who: Principal) -> None:
        parse_address(address)  # before it is waited for
        self.address = address
        self.peer = peer
        self._settings = settings
        self._channel = open_channel(address, settings, who)

    def _call(
        self,
        method: Callable[..., _Response],
        request: Any,
        doing: str,
        timeout_s: float,
        *,
        wait_for_ready: bool = False,
    ) -> _Response:
        """Call the peer, as :func:`~ropewalk.net.channel.invoke` does."""
        return invoke(
            method,
            request,
            peer=self.peer,
            doing=doing,
            timeout_s=timeout_s,
            wait_for_ready=wait_for_ready,
        )

    def is_there(self, timeout_s: float) -> bool:
        """Return whether the peer's machine takes connections for it, whatever its threads do.

        The kernel does so for a process that does not run for a while, be it that it holds the
        interpreter's lock, and for none that has ended.
        """
        return is_listening(self.address, timeout_s)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


class WatchingClient(UnaryClient):
    """A client that has also calls which wait for a change, one after the other in a thread.

    Before the channel is closed these have to end: a call that begins on a closed channel may end
    the process.
    """

    def __init__(self, address: str, peer: str, settings: Settings, who: Principal) -> None:
        super().__init__(address, peer, settings, who)
        self._watching = threading.Lock()
        self._watch_is_over = False

    def _watch(self, method: Callable[..., _Response], request: Any, timeout_s: float) -> _Response:
        """Call the peer as :meth:`_call` does, until :meth:`end_watch`.

        Raises:
            PeerLostError: No answer, or the watch is over.
        """
        with self._watching:
            if self._watch_is_over:
                raise PeerLostError(f"watch: {self.peer} is not asked any more", peer=self.peer)
            return self._call(method, request, "watch", timeout_s)

    def end_watch(self) -> None:
        """Begin no other watch; returns when none is under way. To be called before :meth:`close`,
        from any thread.
        """
        self._watch_is_over = True
        with self._watching:
            pass
