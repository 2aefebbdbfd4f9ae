"""Base of the clients of all services: unary calls to one peer, over one channel."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ..cluster.access.principal import Principal
from ..cluster.address import parse_address
from ..core.errors import PeerLostError
from ..core.settings import Settings
from .channel import invoke, open_channel
from .tcp import is_listening

_Response = TypeVar("_Response")


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
