"""Unary calls whose message does not come: bounded in number and in time, for every service.

gRPC takes a thread of its pool for a call when its headers have come, and waits for the message
without a limit; a thousand calls that say nothing would leave no thread for anybody else.
"""

from collections.abc import Callable, Iterator
from typing import Any

import grpc

from .newcomers import Newcomers


class AwaitMessages(grpc.ServerInterceptor):
    """Has the server wait for the message of a unary call itself.

    On the wire a call with one message and one with a stream of one are the same.

    Args:
        newcomers: Bounds those that are silent.
    """

    def __init__(self, newcomers: Newcomers) -> None:
        self._newcomers = newcomers

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Any],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler of a call; None: there is no such method."""
        handler = continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        if handler.response_streaming:
            # Watching a task's health, forever and under any name, is for nobody: ask with Check.
            return None

        def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            return handler.unary_unary(self._first(requests, context), context)

        return grpc.stream_unary_rpc_method_handler(
            answer, handler.request_deserializer, handler.response_serializer
        )

    def _first(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        with self._newcomers.silent(context.cancel):
            for request in requests:
                return request
        return context.abort(grpc.StatusCode.CANCELLED, "no message came")
