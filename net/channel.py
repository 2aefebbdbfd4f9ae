"""Channels to peers: one way to dial, and calls whose failures are our errors."""

from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from ..core.error_table import from_rpc_error
from ..core.settings import Settings

_Response = TypeVar("_Response")


def open_channel(address: str, settings: Settings) -> grpc.Channel:
    """A channel that finds a peer that is late, restarted or moved, and notices a loss."""
    return grpc.insecure_channel(
        address,
        options=[
            ("grpc.max_receive_message_length", settings.max_message_bytes),
            ("grpc.max_send_message_length", settings.max_message_bytes),
            # The error of a refused call comes as metadata.
            ("grpc.max_metadata_size", 32 * 1024),
            ("grpc.absolute_max_metadata_size", 64 * 1024),
            # A peer that starts late is found within a second, not after gRPC's own 20 s.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 1_000),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            # Pods get new addresses: resolve again on every reconnect.
            ("grpc.dns_min_time_between_resolutions_ms", 1_000),
            # A machine that vanished answers nothing; TCP alone would wait for minutes.
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            # Cluster traffic goes to peers, never through a web proxy.
            ("grpc.enable_http_proxy", 0),
            # Channels to one address must not share a connection: a session has its own.
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )


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
        method: Of a stub.
        request: Its message.
        peer: Whom it goes to, for messages.
        doing: What it is for, for messages.
        timeout_s: Deadline. Unit: seconds.
        wait_for_ready: Wait for a connection until the deadline instead of failing at once.

    Raises:
        WindlassError: What the peer refused with, or PeerLostError if it did not answer.
    """
    try:
        return method(request, timeout=timeout_s, wait_for_ready=wait_for_ready)
    except grpc.RpcError as failure:
        raise from_rpc_error(failure, peer=peer, doing=doing) from failure
