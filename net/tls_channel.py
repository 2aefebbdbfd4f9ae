"""gRPC's channel to a task, over TLS.

gRPC reads certificates once, when a channel is made, and after a failed handshake only reports that
the peer is not available. So this channel makes a new one of gRPC when the files have changed, for
calls that begin from then on; and when a call fails it looks for the reason with a handshake of its
own.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from .dial import find_refusal
from .tls.dial import TlsClient
from .tls.files import TlsCredentials


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
