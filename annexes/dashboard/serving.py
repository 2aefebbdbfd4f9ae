"""The page of a job or a cluster at an address of this machine, in this thread or its own."""

import contextlib
from collections.abc import Callable

from ...core.errors import ConfigurationError
from ...core.process.threads import new_thread, nobody_waits
from ...core.settings import Settings
from ...net.auth.credentials import is_loopback
from ...net.sockets import listen_tcp
from .server import ClusterViews, JobViews, Page, new_server
from .watched_cluster import WatchedCluster
from .watched_job import WatchedJob

_BACKLOG = 64
_END_S = 5.0
_EVERYWHERE = "0.0.0.0"  # noqa: S104 - with a certificate, or asked for


def certificate_of(settings: Settings, host: str) -> tuple[str, str] | None:
    """Choose the certificate and key of a page that is served at a host; None: on loopback.

    Raises:
        ConfigurationError: Other machines reach it, and the settings name none and do not say
            that it may go without.
    """
    if is_loopback(host):
        return None
    if settings.tls_cert and settings.tls_key:
        return settings.tls_cert, settings.tls_key
    if settings.insecure:
        return None
    raise ConfigurationError(
        f"other machines reach {host}, and the page would go there without encryption. Give it a "
        "certificate (--tls-cert, --tls-key), say --insecure inside a network that you trust, or "
        "leave it on loopback and reach it with `ssh -L`",
        host=host,
    )


def own_page(
    shown: WatchedJob | WatchedCluster,
    settings: Settings,
    name: str,
    port: int,
    say: Callable[[str, str], None],
) -> "ServedPage":
    """Make the page of a daemon that other machines reach: on loopback, if it has no certificate.

    Args:
        shown: The job or the cluster.
        settings: The daemon's.
        name: Host by which others reach the daemon.
        port: Port of the page.
        say: Called with each link, as in :class:`ServedPage`.

    Raises:
        OSError: The port is taken.
    """
    is_open = settings.insecure or bool(settings.tls_cert and settings.tls_key)
    if is_open and not is_loopback(name):
        return ServedPage(shown, settings, _EVERYWHERE, port, say, name)
    return ServedPage(shown, settings, "127.0.0.1", port, say)


class ServedPage:
    """The page of a job or a cluster, served at an address.

    Args:
        shown: The job or the cluster.
        settings: Settings with the certificate for a page that other machines reach.
        host: Address or name of this machine.
        port: 0: any free one.
        say: Called with ``first`` or ``next`` and each link.
        name: Host in the links; empty: ``host``.

    Raises:
        ConfigurationError: As :func:`certificate_of`.
        OSError: The port is taken, or the host is not this machine.
    """

    def __init__(
        self,
        shown: WatchedJob | WatchedCluster,
        settings: Settings,
        host: str,
        port: int,
        say: Callable[[str, str], None],
        name: str = "",
    ) -> None:
        certificate = certificate_of(settings, host)
        self._socket = listen_tcp(host, port, _BACKLOG)
        self.port: int = self._socket.getsockname()[1]
        name = name or (f"[{host}]" if ":" in host else host)
        self.address = f"{'https' if certificate else 'http'}://{name}:{self.port}"
        self.views = JobViews(shown) if isinstance(shown, WatchedJob) else ClusterViews(shown)
        self._page = Page(self.views, self.port, lambda path: say("next", self.address + path))
        self._server = new_server(self._page, certificate)
        self._thread = new_thread("dashboard", self._run, failed=nobody_waits)
        say("first", self.address + self._page.link)

    def run(self) -> None:
        """Serve until Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt):
            self._run()

    def start(self) -> None:
        """Serve in a thread."""
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(_END_S)

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])
