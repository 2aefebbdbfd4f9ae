"""gRPC channels to peers, and calls whose failures are our errors."""

from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from ..cluster.access.principal import Principal
from ..cluster.access.rights import rule_of
from ..core.settings import Settings
from ..core.wire.error_table import from_rpc_error
from .auth.credentials import Credentials, credentials_for, dialled_address
from .auth.metadata import ANSWER, AUTHORIZATION
from .dial import tls_client
from .routes import grpc_target
from .tcp import split_address
from .tls_channel import TlsChannel

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
